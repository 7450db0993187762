"""How many jobs are on their way into the shards at once, and whose go next.

To store a job costs a third of running it. Where submitters send more than the mesh can run, and
all of it were stored as fast as it comes, storing would take the time of running: the backlog grows
twice as fast, and less is done. So no more jobs are under way at once than one large batch has,
which keeps one process of Enqueue busy; the rest waits here, by namespace in turn, so that one
which sends much waits for itself. How long the line may get is the gate's business.

Of a namespace that nothing else waits of, a few jobs need not wait for somebody's large batch,
which may take a while: beside those that have their turn there is some room for them.

What takes long, as it does where a shard is away, holds up nobody: after a moment its room is given
to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from services.mesh.runtime import Overdue
from services.mesh.telemetry.metrics import Metrics

#: Jobs under way at once, unless one call alone has more.
MOST = 500
#: In seconds; many times what storing a batch takes.
LATE_SECONDS = 0.5
#: So many are few; and so many of these may be under way beside the others.
FEW, BESIDE = 64, 128


@dataclass(slots=True, eq=False)
class _Visit:
    """Jobs that are under way for the length of a block."""

    turnstile: Turnstile
    lane: str
    jobs: int
    over: bool = False
    beside: bool = False

    async def __aenter__(self) -> None:
        await self.turnstile.enter(self)

    async def __aexit__(self, *error: object) -> None:
        self.turnstile.leave(self)


@dataclass(slots=True, eq=False)
class _Waiter:
    jobs: int
    turn: asyncio.Future[None]


class Turnstile:
    """One per process."""

    def __init__(
        self,
        most: int = MOST,
        late: float = LATE_SECONDS,
        metrics: Metrics | None = None,
        *,
        most_beside: int = BESIDE,
    ) -> None:
        self._most, self._most_beside = most, most_beside
        self._late: Overdue[_Visit] = Overdue(late, self._give_room)
        self._inside = self._beside = 0
        #: Who waits, by lane; the first lane is next. No lane is empty.
        self._lanes: dict[str, deque[_Waiter]] = {}
        if metrics is not None:
            waiting = metrics.gauge("waiting_jobs", "Jobs that wait for their turn to be stored.")
            waiting.set_function(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """Jobs in the line."""
        return sum(w.jobs for lane in self._lanes.values() for w in lane if not w.turn.done())

    def passing(self, lane: str, jobs: int) -> _Visit:
        """Wait for the turn of these jobs; they are under way for the length of the block."""
        return _Visit(self, lane, jobs)

    async def enter(self, visit: _Visit) -> None:
        if not self._lanes and self._fits(visit.jobs):
            self._inside += visit.jobs
        elif self._fits_beside(visit):
            visit.beside = True
            self._beside += visit.jobs
        else:
            await self._turn(visit)
        self._late.begin(visit)

    def leave(self, visit: _Visit) -> None:
        self._late.end(visit)
        self._give_room(visit)

    def _fits(self, jobs: int) -> bool:
        return not self._inside or self._inside + jobs <= self._most

    def _fits_beside(self, visit: _Visit) -> bool:
        is_few = visit.jobs <= FEW and visit.lane not in self._lanes
        return is_few and self._beside + visit.jobs <= self._most_beside

    async def _turn(self, visit: _Visit) -> None:
        waiter = _Waiter(visit.jobs, asyncio.get_running_loop().create_future())
        self._lanes.setdefault(visit.lane, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                # Its turn came at the very moment that the caller went away.
                self._give_room(visit)
            else:
                self._drop(visit.lane, waiter)
            raise

    def _drop(self, name: str, waiter: _Waiter) -> None:
        """Who went away keeps nobody behind it who would fit."""
        lane = self._lanes.get(name)
        if lane is None or waiter not in lane:
            return
        lane.remove(waiter)
        if not lane:
            del self._lanes[name]
        self._admit()

    def _give_room(self, visit: _Visit) -> None:
        if not visit.over:
            visit.over = True
            if visit.beside:
                self._beside -= visit.jobs
            else:
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
