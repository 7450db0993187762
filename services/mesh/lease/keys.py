"""Names of the keys the mesh keeps in etcd, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of one mesh, under its prefix. Prefixes end in a slash, so that they match no
    neighbour.
    """

    prefix: str = "/jobmesh"

    def __post_init__(self) -> None:
        if not self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise ValueError(
                f"etcd prefix {self.prefix!r}: expected to start with a slash and not to end in one"
            )

    @property
    def topology(self) -> str:
        """Bucket map and shards, with the epoch."""
        return f"{self.prefix}/topology"

    @property
    def schedulers(self) -> str:
        return f"{self.prefix}/schedulers/"

    def scheduler(self, scheduler_id: str) -> str:
        return self.schedulers + scheduler_id

    @property
    def workers(self) -> str:
        return f"{self.prefix}/workers/"

    def worker(self, worker_id: str) -> str:
        return self.workers + worker_id

    @property
    def locks(self) -> str:
        return f"{self.prefix}/locks/"

    def lock(self, job_id: UUID) -> str:
        return f"{self.prefix}/locks/{job_id}"

    @property
    def limits(self) -> str:
        """Places of limits, each under the lease of the worker whose attempt has it."""
        return f"{self.prefix}/limits/"

    def place(self, limit: str, number: int) -> str:
        """One place; by name they are in the order of their numbers."""
        return f"{self.limits}{limit}/{number:07d}"

    @property
    def types(self) -> str:
        return f"{self.prefix}/types/"

    def type(self, type_: str) -> str:
        return self.types + type_

    @property
    def pools(self) -> str:
        return f"{self.prefix}/pools/"

    def pool(self, type_: str) -> str:
        return self.pools + type_

    @property
    def pool_statuses(self) -> str:
        """What the acting Scaler found and decided, by type."""
        return f"{self.prefix}/pool-status/"

    @property
    def paused(self) -> str:
        """The types of which no job is started, each with a note."""
        return f"{self.prefix}/paused/"

    @property
    def type_settings(self) -> str:
        """Defaults, limits and retention of types, as protobuf TypeSettings."""
        return f"{self.prefix}/type-settings/"

    @property
    def scaler_leader(self) -> str:
        return f"{self.prefix}/scaler/leader"

    @property
    def collector(self) -> str:
        """Held by the one process that collects orphaned objects."""
        return f"{self.prefix}/collector"

    @property
    def compactor(self) -> str:
        """Held by the one process that compacts etcd's history."""
        return f"{self.prefix}/compactor"
