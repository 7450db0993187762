"""The sweeper of one shard: dispatches that got lost between the claim and the worker.

A job that is DISPATCHED for longer than the dispatch deadline, and whose lock nobody took for this
dispatch, never arrived: its message was lost, its worker could not take it, or we died between
commit and publish. It goes back to SCHEDULED under its fence; no attempt is spent. If the worker
takes it after all, the row decides.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.model import JobEvent
from services.mesh.lease.port import LockTable
from services.mesh.runtime import Counts
from services.mesh.store.answers import InFlight
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)

#: Overdue dispatches looked at in one pass. Locked ones count, too: they wait in their worker.
BATCH = 5_000


class Sweeper:
    """Without etcd there is no telling which dispatches are lost: then none is swept."""

    def __init__(
        self,
        shard: str,
        shards: Shards,
        locks: LockTable,
        board: DueBoard,
        broker: Broker,
        measures: Measures,
        dispatch_seconds: float,
    ) -> None:
        self.shard = shard
        self._shards, self._locks, self._board = shards, locks, board
        self._broker, self._measures = broker, measures
        self._deadline = timedelta(seconds=dispatch_seconds)

    async def run_once(self) -> Counts:
        """Take back what got lost."""
        overdue = await self._shards.ask(
            self.shard, lambda store: store.overdue_dispatches(self._deadline, BATCH)
        )
        lost = await self._unlocked(overdue) if overdue else []
        swept: list[JobEvent] = []
        if lost:
            swept = await self._shards.ask(self.shard, lambda store: store.sweep(lost))
        if swept:
            await self._tell(swept)
        return {"overdue": len(overdue), "swept": len(swept)}

    async def _unlocked(self, overdue: list[InFlight]) -> list[tuple[UUID, int]]:
        held = await self._locks.held([row.job_id.bytes for row in overdue])
        owners = ((row, held.get(row.job_id.bytes)) for row in overdue)
        return [
            (row.job_id, row.fence)
            for row, owner in owners
            if owner is None or owner.fence != row.fence
        ]

    async def _tell(self, swept: list[JobEvent]) -> None:
        extra = {"action": "jobs_swept", "shard": self.shard, "count": len(swept)}
        log.info("took back lost dispatches", extra=extra)
        self._measures.returned(self.shard, "sweep", len(swept))
        self._board.found(self.shard, {event.type for event in swept}, long_due=True)
        with suppress(DependencyUnavailable):
            await self._broker.hint(self.shard, swept)
