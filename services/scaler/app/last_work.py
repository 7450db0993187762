"""When the workers of a pool last did something, by their own word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from services.mesh.clock import Clock
from services.mesh.runtime import Tasks
from services.scaler.domain.fleet import Worker
from services.scaler.ports import WorkerCalls

#: An answer older than this says nothing about the present.
FRESH = timedelta(seconds=3)


class LastWork:
    """Asks the workers of one pool how many attempts they have finished, in the background.

    Statistics show the load at single moments, and a job that begins and ends between two of them
    is in none. What a worker has counted is compared with what it said before; of one that was not
    asked before, any work counts as new: at worst it stays for one more idle time.
    """

    def __init__(self, calls: WorkerCalls, clock: Clock, tasks: Tasks) -> None:
        self._calls, self._clock, self._tasks = calls, clock, tasks
        self._finished: dict[str, int] = {}
        self._asked_at: datetime | None = None
        self._under_way = False
        #: When it was last found that there had been work since the time before.
        self.worked_at: datetime | None = None

    def asked_since(self, moment: datetime) -> bool:
        """Whether they have answered after that moment, and just now."""
        asked_at = self._asked_at
        return asked_at is not None and asked_at >= max(moment, self._clock.now() - FRESH)

    def ask(self, workers: Sequence[Worker], done: Callable[[], None]) -> None:
        """Ask all of them, unless that is under way; `done` is called with the answers here."""
        if not self._under_way:
            self._under_way = True
            self._tasks.spawn(self._ask(workers, done), "last-work", vital=False)

    async def _ask(self, workers: Sequence[Worker], done: Callable[[], None]) -> None:
        try:
            counts = await asyncio.gather(*(self._calls.finished(worker) for worker in workers))
        finally:
            self._under_way = False
        said = {
            worker.worker_id: count
            for worker, count in zip(workers, counts, strict=True)
            # One that does not answer is not known to have worked.
            if count is not None
        }
        self._asked_at = self._clock.now()
        if any(count > self._finished.get(worker_id, 0) for worker_id, count in said.items()):
            self.worked_at = self._asked_at
        known = {w.worker_id: self._finished.get(w.worker_id, 0) for w in workers}
        self._finished = known | said
        done()
