"""What the Scaler asks of the world around it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from services.scaler.domain.crashes import CLEAN, CrashRecord
from services.scaler.domain.decision import Decision, PoolStatus
from services.scaler.domain.fleet import Worker
from services.scaler.domain.load import LoadReport
from services.scaler.domain.pool import PoolRecord, PoolSpec

T_co = TypeVar("T_co", covariant=True)


class PoolStore(Protocol):
    """Where pools are kept. Every write is conditional on the revision that was read."""

    async def get(self, type_: str) -> PoolRecord | None: ...

    async def all(self) -> list[PoolRecord]:
        """Every pool, by type."""
        ...

    async def create(self, spec: PoolSpec) -> PoolRecord | None:
        """Keep a new pool and make its type known; None if the type has a pool already."""
        ...

    async def replace(self, record: PoolRecord) -> PoolRecord | None:
        """Keep the record in place of the one at its revision; None if that changed meanwhile."""
        ...

    async def delete(self, type_: str) -> bool:
        """Whether there was such a pool."""
        ...


class Mirror(Protocol[T_co]):
    """A part of the shared store, followed: what stands there now, by name."""

    @property
    def synced(self) -> bool:
        """Whether it has been read at least once."""
        ...

    @property
    def items(self) -> Mapping[str, T_co]: ...

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call back with the name of everything that is written or goes away."""
        ...


class StatusStore(Protocol):
    """Where the acting Scaler writes what it decided, for the others to read.

    Writes are fenced: from a Scaler that no longer leads they are refused (False).
    """

    async def put(self, type_: str, status: PoolStatus, trail: Sequence[Decision]) -> bool: ...

    async def delete(self, type_: str) -> bool: ...

    async def trail(self, type_: str) -> tuple[Decision, ...]:
        """The decisions last written, newest first."""
        ...


class LoadSource(Protocol):
    """Where the backlog comes from."""

    def follow(self) -> AsyncGenerator[LoadReport, None]:
        """What there is now, then every change. Raises MeshError when the source goes away."""
        ...


class Leader(Protocol):
    """Whether this process is the one that acts, by the clock of this instant."""

    @property
    def is_leader(self) -> bool: ...


class WorkerCalls(Protocol):
    """What is asked of a worker directly."""

    async def running(self, worker: Worker) -> int | None:
        """How many attempts it has in hand; None if it does not answer."""
        ...

    async def finished(self, worker: Worker) -> int | None:
        """How many attempts it has finished since its start; None if it does not answer."""
        ...

    async def drain(self, worker: Worker, timeout: timedelta | None) -> None:
        """Have it take no more work, finish what it has, and end. Raises MeshError."""
        ...


@dataclass(frozen=True, slots=True)
class Crew:
    """What a driver knows of a pool's workers beyond their registrations."""

    starting: int = 0
    #: Workers that were told to go.
    leaving: frozenset[str] = frozenset()
    #: Workers whose end was seen, though their registration has not expired yet.
    dead: frozenset[str] = frozenset()
    crashes: CrashRecord = CLEAN
    #: From start to registration, as measured.
    lead: timedelta = timedelta(seconds=1)


class Driver(Protocol):
    """How workers are started and let go: the seam for processes, Kubernetes, ECS, ….

    The law and everything around it are the same for all drivers; a driver only turns "two more"
    and "these two" into deeds. It is called from one task at a time per type.
    """

    def adopt(self) -> None:
        """Take over what a predecessor has started. Called when this process begins to act."""
        ...

    def observe(self, spec: PoolSpec, workers: Collection[Worker]) -> Crew:
        """Compare what was started with all who are registered; cheap, called on every pass."""
        ...

    def observe_others(self, types: Collection[str], workers: Collection[Worker]) -> None:
        """The same of what was started for other types than these, whose pools are gone: who hangs
        at its start is ended there too.
        """
        ...

    async def grow(self, spec: PoolSpec, count: int) -> int:
        """Start so many workers and return how many could be."""
        ...

    async def shrink(self, spec: PoolSpec | None, workers: Sequence[Worker]) -> None:
        """Let exactly these workers go, unharmed. Called again, with the same, until they are gone.

        `spec` is None for workers whose pool was deleted.
        """
        ...
