"""The rescuer of one shard: jobs of workers that lost their lease.

The watch on the workers' keys tells of a loss at once. It may miss some (we were cut off, or took
the shard over a moment later), so a comparison runs now and then: first the workers that the rows
name, then the workers that live. In this order nobody is mistaken for dead: a worker registers
before it grabs, so one that a row names had its key when the list was read, unless it lost it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import JobState
from services.mesh.runtime import Counts
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.ports import Broker, Workers

log = logging.getLogger(__name__)

#: Jobs taken back in one statement.
BATCH = 1_000


class Rescuer:
    """Never by age: only a lease that is gone makes a job go back."""

    def __init__(
        self,
        shard: str,
        shards: Shards,
        workers: Workers,
        board: DueBoard,
        broker: Broker,
        measures: Measures,
    ) -> None:
        self.shard = shard
        self._shards, self._workers, self._board = shards, workers, board
        self._broker, self._measures = broker, measures
        self._lost: set[str] = set()

    def lost(self, worker_id: str) -> None:
        """The watch saw this worker's key go."""
        self._lost.add(worker_id)

    async def rescue_lost(self) -> Counts:
        """Rescue from the workers that the watch told of."""
        if not self._lost:
            return {}
        workers = frozenset(self._lost)
        rescued = await self.rescue(workers)
        self._lost -= workers
        return {"rescued": rescued}

    def forget(self) -> None:
        """Another scheduler looks after the shard now."""
        self._lost.clear()

    async def run_once(self) -> Counts:
        """Compare the rows with the living, and rescue from the dead."""
        holders = await self._shards.ask(self.shard, lambda store: store.inflight_workers())
        if not holders:
            return {"rescued": 0}
        dead = frozenset(holders) - await self._workers.live()
        return {"rescued": await self.rescue(dead) if dead else 0}

    async def rescue(self, workers: Collection[str]) -> int:
        """Take back all that these workers hold here; how many jobs."""
        names, rescued = sorted(workers), 0
        while True:
            found = await self._shards.ask(self.shard, lambda store: store.rescue(names, BATCH))
            if found.events:
                await self._tell(found.events)
            rescued += len(found.events)
            if not found.more:
                return rescued

    async def _tell(self, events: list[JobEvent]) -> None:
        extra = {"action": "jobs_rescued", "shard": self.shard, "count": len(events)}
        log.info("took back the jobs of lost workers", extra=extra)
        self._measures.returned(self.shard, "rescue", len(events))
        waiting = {event.type for event in events if event.state is JobState.SCHEDULED}
        self._board.found(self.shard, waiting, long_due=True)
        with suppress(DependencyUnavailable):
            await self._broker.hint(self.shard, events)
