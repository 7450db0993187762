"""How many jobs are on their way into the shards at once, and whose go next.

To store a job costs a third of running it. Where submitters send more than the mesh can run, and
all of it were stored as fast as it comes, storing would take the time of running: the backlog grows
twice as fast, and less is done. So no more jobs are under way at once than it takes to keep the
shards busy; the rest waits here, by namespace in turn, so that one which sends much waits for
itself. How long the line may get is the gate's business.

What takes long, as it does where a shard is away, holds up nobody: after a moment its room is given
to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.mesh.telemetry.metrics import Metrics

#: Jobs under way at once, unless one call alone has more.
MOST = 2000
#: In seconds; many times what storing a batch takes.
LATE_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class _Visit:
    jobs: int
    over: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    jobs: int
    turn: asyncio.Future[None]


class Turnstile:
    """One per process."""

    def __init__(
        self, most: int = MOST, late: float = LATE_SECONDS, metrics: Metrics | None = None
    ) -> None:
        self._most, self._late = most, late
        self._inside = 0
        #: Who waits, by lane; the first lane is next. No lane is empty.
        self._lanes: dict[str, deque[_Waiter]] = {}
        if metrics is not None:
            waiting = metrics.gauge("waiting_jobs", "Jobs that wait for their turn to be stored.")
            waiting.set_function(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """Jobs in the line."""
        return sum(w.jobs for lane in self._lanes.values() for w in lane if not w.turn.done())

    @asynccontextmanager
    async def passing(self, lane: str, jobs: int) -> AsyncIterator[None]:
        """Wait for the turn of these jobs; they are under way for the length of the block."""
        if self._lanes or not self._fits(jobs):
            await self._turn(lane, jobs)
        else:
            self._inside += jobs
        visit = _Visit(jobs)
        late = asyncio.get_running_loop().call_later(self._late, self._leave, visit)
        try:
            yield
        finally:
            late.cancel()
            self._leave(visit)

    def _fits(self, jobs: int) -> bool:
        return not self._inside or self._inside + jobs <= self._most

    async def _turn(self, lane: str, jobs: int) -> None:
        waiter = _Waiter(jobs, asyncio.get_running_loop().create_future())
        self._lanes.setdefault(lane, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                # Its turn came at the very moment that the caller went away.
                self._leave(_Visit(jobs))
            raise

    def _leave(self, visit: _Visit) -> None:
        if not visit.over:
            visit.over = True
            self._inside -= visit.jobs
            self._admit()

    def _admit(self) -> None:
        """Let in whom there is room for: the first of each lane in turn."""
        while self._lanes:
            name, lane = next(iter(self._lanes.items()))
            if not lane[0].turn.done():
                if not self._fits(lane[0].jobs):
                    return
                self._inside += lane[0].jobs
                lane[0].turn.set_result(None)
            lane.popleft()
            del self._lanes[name]
            if lane:  # to the end of the line
                self._lanes[name] = lane
