"""What the scheduler needs from the outside, as narrow as it uses it.

The lease and registry ports are the chassis's own (`services.mesh.lease.port`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, JobEvent
from services.mesh.jobs.ties import Parent
from services.mesh.jobs.turns import Turn
from services.mesh.jobs.type_settings import RetentionRules
from services.mesh.store.answers import (
    ClaimAnswer,
    FireAnswer,
    InFlight,
    ProbeResult,
    Pulse,
    PurgeStep,
    Release,
    Rescue,
)
from services.scheduler.domain.times import Shown
from services.scheduler.domain.word import Served


class Shard(Protocol):
    """What a scheduler asks of a shard. All of it may raise ShardUnavailable, and what writes,
    OutcomeUnknown.
    """

    async def probe(self, timeout: float = 0.5) -> ProbeResult: ...

    async def claim(
        self,
        type: str,
        worker_id: str,
        limit: int,
        ahead: timedelta = timedelta(0),
        recent: timedelta | None = None,
        below: int | None = None,
        turn: Turn | None = None,
    ) -> ClaimAnswer: ...

    async def claim_keyed(
        self, type: str, worker_id: str, limit: int, per_key: int, held: Mapping[UUID, int]
    ) -> ClaimAnswer: ...

    async def pulse(
        self,
        start: datetime | None = None,
        width: timedelta = timedelta(0),
        limit: int = 1000,
        dispatch: timedelta = timedelta(0),
        *,
        deep: bool = True,
    ) -> Pulse:
        """Raises DeadlineExceeded, too, if so deep a look takes too long."""
        ...

    async def fire_due_schedules(
        self, limit: int = 100, ahead: timedelta = timedelta(0)
    ) -> FireAnswer: ...

    async def overdue_dispatches(
        self, older_than: timedelta, limit: int = 1000
    ) -> list[InFlight]: ...

    async def sweep(self, dispatches: Sequence[tuple[UUID, int]]) -> list[JobEvent]: ...

    async def inflight_workers(self) -> list[str]: ...

    async def rescue(self, worker_ids: Sequence[str], limit: int = 1000) -> Rescue: ...

    async def purge_order(self, older_than: timedelta, limit: int = 1000) -> int: ...

    async def purge_jobs(self, rules: RetentionRules, limit: int = 500) -> PurgeStep: ...

    async def purge_names(self, limit: int = 1000) -> int: ...

    async def expire_overdue(self, limit: int = 1000) -> list[JobEvent]: ...

    async def take_ended_parents(
        self, limit: int = 500, hold: timedelta = timedelta(seconds=5)
    ) -> list[Parent]: ...

    async def forget_ended_parents(self, ids: Sequence[UUID]) -> None: ...

    async def check_blocked(self, limit: int = 500) -> list[UUID]: ...

    async def parents(self, ids: Sequence[UUID]) -> list[Parent]: ...

    async def release(self, parents: Sequence[Parent], limit: int = 1000) -> Release: ...


class Broker(Protocol):
    """What a scheduler says to workers and to other schedulers. Raises DependencyUnavailable when
    it is certain that the message did not leave.
    """

    @property
    def connected(self) -> bool: ...

    async def dispatch(self, grab: Grab, jobs: Sequence[Claimed], now: Shown) -> int:
        """Answer a grab with jobs; how many bytes that took. `now`: what the shard's clock shows
        at least; jobs that are due later wait in the worker.
        """
        ...

    async def answer_empty(self, grab: Grab, *, draining: bool = False) -> None:
        """Answer a grab without jobs, so that the worker grabs anew."""
        ...

    async def nudge(
        self,
        shard: str,
        types: Sequence[str],
        first: datetime | None = None,
        *,
        long_due: bool = False,
    ) -> None:
        """Tell all schedulers that a shard has due work, some of it for long; or will have soon,
        from `first` on.
        """
        ...

    async def served(self, scheduler_ids: Iterable[str], served: Served) -> None:
        """Tell these schedulers what was taken. May be lost."""
        ...

    async def call(self, type_: str) -> None:
        """Ask all workers of the type whose grab is out for long to grab here. May be lost."""
        ...

    async def lend(self, grab: Grab, at: str, seconds: float) -> None:
        """Give a grab to an Orchestrator, which may keep those of its type for so long."""
        ...

    async def recall(self, type_: str) -> None:
        """Have all Orchestrators send the grabs of a type here. May be lost."""
        ...

    async def hint_claims(self, shard: str, worker_id: str, jobs: Sequence[Claimed]) -> None:
        """Tell whoever watches that the jobs are with a worker. May be lost."""
        ...

    async def hint(self, shard: str, events: Sequence[JobEvent]) -> None:
        """Tell whoever watches what was committed. May be lost."""
        ...

    async def stop(self, worker_id: str, job_id: UUID, fence: int) -> None:
        """Tell a worker that the row refuses this attempt from now on. May be lost."""
        ...


class Workers(Protocol):
    """The workers that hold a lease."""

    async def live(self) -> frozenset[str]:
        """A fresh look, not a remembered one."""
        ...
