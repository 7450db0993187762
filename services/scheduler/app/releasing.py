"""The releaser of one shard: jobs that wait for others, here or elsewhere.

Whoever ends a job that others wait for writes that down in its shard, in the same statement. The
releaser takes such ends, releases those who waited in every shard, and only then forgets them. A
shard that is away keeps the end on the list; if we die in the middle, the end comes up again. So
nothing is missed, whoever dies when; told twice, an end changes nothing more.

One case is left: a job may be stored while its parent ends, by an Orchestrator that dies before it
looks at the parent once more. So jobs that have been BLOCKED for a while have their parents looked
at, the longer the more seldom. That also finds a parent that is no longer there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from services.mesh.errors import DependencyUnavailable, OutcomeUnknown, ShardUnavailable
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.ties import Parent
from services.mesh.runtime import Counts
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)

#: Ends taken at once, and jobs released in one statement.
PARENTS, CHILDREN = 500, 1_000
#: BLOCKED jobs whose parents are looked at in one pass.
CHECKED = 500
#: What is due later than this is read in time anyway.
SOON = timedelta(seconds=5)
#: How long ends are ours; longer than it takes to release those who wait for them.
HOLD = timedelta(seconds=5)


class Releaser:
    """Tells the jobs that wait, in all shards, that parents of this shard have ended."""

    def __init__(
        self, shard: str, shards: Shards, board: DueBoard, broker: Broker, measures: Measures
    ) -> None:
        self.shard = shard
        self._shards, self._board = shards, board
        self._broker, self._measures = broker, measures

    async def run_once(self) -> Counts:
        """Release all who wait for what has ended here."""
        released = 0
        while True:
            parents = await self._shards.ask(
                self.shard, lambda store: store.take_ended_parents(PARENTS, HOLD)
            )
            if not parents:
                return {"released": released}
            count, everywhere = await self._release_everywhere(parents)
            released += count
            if everywhere:
                await self._forget([parent.job_id for parent in parents])

    async def check(self) -> Counts:
        """Look at the parents of jobs that have been BLOCKED here for a while."""
        ids = await self._shards.ask(self.shard, lambda store: store.check_blocked(CHECKED))
        if not ids:
            return {}
        ended = [parent for parent in await self._standing(ids) if parent.ended]
        return {"released": await self._release(self.shard, ended) if ended else 0}

    async def _forget(self, ids: Sequence[UUID]) -> None:
        await self._shards.ask(self.shard, lambda store: store.forget_ended_parents(ids))

    async def _release_everywhere(self, parents: Sequence[Parent]) -> tuple[int, bool]:
        """How many were released, and whether every shard was asked."""

        async def one(name: str) -> int | None:
            try:
                return await self._release(name, parents)
            except (ShardUnavailable, OutcomeUnknown):
                return None

        counts = await asyncio.gather(*(one(name) for name in self._shards.names))
        return sum(count or 0 for count in counts), None not in counts

    async def _release(self, name: str, parents: Sequence[Parent]) -> int:
        count, more = 0, True
        while more:
            answer = await self._shards.ask(name, lambda store: store.release(parents, CHILDREN))
            more = answer.more
            if answer.events:
                count += len(answer.events)
                await self._tell(name, answer.events)
        return count

    async def _standing(self, ids: Sequence[UUID]) -> list[Parent]:
        """How jobs stand, in whichever shard. One that no shard has is gone, if all answered."""
        found: dict[UUID, Parent] = {}
        complete = True
        for name in self._shards.names:
            try:
                answer = await self._shards.ask(name, lambda store: store.parents(ids))
            except (ShardUnavailable, OutcomeUnknown):
                complete = False
            else:
                found |= {parent.job_id: parent for parent in answer}
        if complete:
            found |= {job_id: Parent(job_id, None) for job_id in ids if job_id not in found}
        return list(found.values())

    async def _tell(self, name: str, events: Sequence[JobEvent]) -> None:
        extra = {"action": "jobs_released", "shard": name, "count": len(events)}
        log.debug("released jobs that waited for others", extra=extra)
        self._measures.released(name, len(events))
        freed = [(e.type, e.due_time, e.time) for e in events if e.due_time is not None]
        due_types = {type_ for type_, due, now in freed if due <= now}
        self._board.found(name, due_types, long_due=True)
        # What is due in a moment belongs into a slot: whoever keeps that shard should look.
        soon = [(type_, due) for type_, due, now in freed if now < due <= now + SOON]
        with suppress(DependencyUnavailable):
            await self._broker.hint(name, events)
            if soon:
                types = sorted({type_ for type_, _ in soon})
                await self._broker.nudge(name, types, min(due for _, due in soon))
