"""What the Orchestrator's use cases need from outside, as narrow as they use it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, EventColumns, JobEvent, JobProgress
from services.orchestrator.domain.dueness import NOTHING_SOON, Soon


class Announcer(Protocol):
    """Tells the rest of the mesh what was committed. Never raises: what is lost is found later."""

    async def committed(
        self, shard: str, events: Sequence[JobEvent], columns: Sequence[EventColumns] = ()
    ) -> None:
        """These transitions are in the shard; some may come in columns."""
        ...

    async def progressed(self, shard: str, progress: Sequence[JobProgress]) -> None:
        """Running handlers said this, and the rows accepted it."""
        ...

    async def stored(self, shard: str, names: Iterable[str]) -> None:
        """New jobs of these namespaces and types are in the shard."""
        ...

    async def due(
        self,
        shard: str,
        types: Collection[str],
        soon: Mapping[str, Soon] = NOTHING_SOON,
        long: Collection[str] = (),
        *,
        new: bool = False,
    ) -> None:
        """Jobs of these types are due, some of those of `long` for long; or will be in a moment.
        `new`: they were stored here, and more may be.
        """
        ...

    async def scheduled(self, shard: str, type_: str, next_time: datetime) -> None:
        """A schedule of this type is new, or changed, and runs next at this time."""
        ...

    async def cancelled(self, worker_id: str, attempts: Sequence[tuple[UUID, int]]) -> None:
        """The row refuses these attempts `(job, fence)` of a worker from now on."""
        ...


class Hands(Protocol):
    """The workers whose grabs are here on loan, and the schedulers that lent them."""

    @property
    def connected(self) -> bool: ...

    async def dispatch(
        self, grab: Grab, jobs: Sequence[Claimed], *, stay: bool, more: bool = False
    ) -> None:
        """Answer a grab with jobs, or with `more` a part of it, which goes on; with `stay` the next
        one may come here. Raises DependencyUnavailable if it is certain that it did not leave.
        """
        ...

    async def answer_empty(self, grab: Grab, *, stay: bool = False) -> None:
        """Let the worker grab anew; with `stay` here. May be lost."""
        ...

    async def pass_on(self, grab: Grab, to: str = "", *, back: bool = False) -> None:
        """Give a grab to a scheduler: to the one that wants it, or to any; with `back` it is asked
        to lend it again, if nothing waits. May be lost.
        """
        ...
