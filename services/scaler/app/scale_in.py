"""Letting workers go without hurting what they do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.mesh.runtime import Tasks
from services.scaler.domain.fleet import Candidate, Worker, choose_victims
from services.scaler.domain.pool import PoolSpec
from services.scaler.ports import Driver, Leader, WorkerCalls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Departure:
    """Who of a pool goes: some already do, and `surplus` of those staying should too.

    Only workers that were started for the pool: one that somebody started by hand is theirs.
    """

    type: str
    driver: Driver
    #: None: the pool was deleted, and all its workers go.
    spec: PoolSpec | None
    going: Sequence[Worker]
    staying: Sequence[Worker] = ()
    surplus: int = 0

    @property
    def eligible(self) -> list[Worker]:
        return [worker for worker in self.staying if worker.ours]

    @property
    def count(self) -> int:
        """How many more have to go than do already."""
        return min(self.surplus, len(self.eligible))


class ScaleIn:
    """Chooses who goes and follows them out, in the background: it takes calls to workers, and a
    pool that has to grow must not wait for them.
    """

    def __init__(self, calls: WorkerCalls, leader: Leader, tasks: Tasks) -> None:
        self._calls, self._leader, self._tasks = calls, leader, tasks
        self._under_way: set[str] = set()

    def begin(self, departure: Departure, done: Callable[[], None]) -> None:
        """Start a round unless there is nothing to do or one is under way for the type.

        The next pass sees what this round has done; `done` is called if it did something.
        """
        type_ = departure.type
        idle = not departure.count and not any(worker.ours for worker in departure.going)
        if idle or type_ in self._under_way:
            return
        self._under_way.add(type_)
        work = self._round(departure, done)
        self._tasks.spawn(work, f"scale-in-{type_ or 'orphans'}", vital=False)

    async def _round(self, departure: Departure, done: Callable[[], None]) -> None:
        try:
            victims = await self._victims(departure)
            # The calls may have outlasted the lease.
            if self._leader.is_leader:
                going = [worker for worker in departure.going if worker.ours]
                await departure.driver.shrink(departure.spec, [*going, *victims])
        finally:
            self._under_way.discard(departure.type)
        if victims:
            ids = [worker.worker_id for worker in victims]
            extra = {"action": "workers_released", "type": departure.type, "workers": ids}
            log.info("letting workers go", extra=extra)
            done()

    async def _victims(self, departure: Departure) -> list[Worker]:
        if not departure.count:
            return []
        ours = departure.eligible
        loads = await asyncio.gather(*(self._calls.running(worker) for worker in ours))
        candidates = [Candidate(w, running) for w, running in zip(ours, loads, strict=True)]
        return choose_victims(candidates, departure.count)
