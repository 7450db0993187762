"""The purger of one shard: ended jobs that were kept for long enough, and the old end of the order.

It must never harm live work: each statement looks at a bounded number of rows, and it rests several
times as long as the statement took.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from services.mesh.clock import Clock
from services.mesh.jobs.type_settings import NO_RETENTION, Retention, RetentionRules, TypeSettings
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.runtime import Counts
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.ports import Shard

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Rows looked at in one statement.
BATCH = 500
#: It rests so many times the length of each statement, and at least so many seconds; after one that
#: took long, for dead rows that nobody may remove are in its way, for longer.
REST_FACTOR = 4.0
LEAST_REST = 0.02
LONG_SECONDS, LONG_REST_FACTOR = 0.1, 12.0

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PurgeRules:
    """What is kept where a type says nothing, and how often is looked. Times in seconds."""

    every: float = 300.0
    mesh: Retention = field(
        default_factory=lambda: Retention(7 * DAY, 30 * DAY, 30 * DAY, 30 * DAY)
    )
    order: timedelta = timedelta(hours=6)
    """How long a watch by filter can be resumed; nothing is deleted sooner."""


class Purger:
    """Goes round once per call, for as long as `keeps()`."""

    def __init__(
        self,
        shard: str,
        shards: Shards,
        types: RegistryMirror[TypeSettings],
        clock: Clock,
        measures: Measures,
        rules: PurgeRules,
        keeps: Callable[[], bool],
    ) -> None:
        self.shard = shard
        self._shards, self._types, self._clock = shards, types, clock
        self._measures, self._rules, self._keeps = measures, rules, keeps

    async def run_once(self) -> Counts:
        """One time round: the order first, since jobs go only after it."""
        counts: Counter[str] = Counter()
        while self._types.synced and self._keeps():
            gone = await self._paced(lambda store: store.purge_order(self._rules.order, BATCH))
            counts["order"] += gone
            if gone < BATCH:
                break
        while self._types.synced and self._keeps():
            # By what holds now: a walk may take hours, or go on when a shard is ours again.
            step = await self._paced(lambda store: store.purge_jobs(self._retention(), BATCH))
            counts["jobs"] += step.gone
            counts["looked_at"] += step.seen
            if step.done:
                counts["names"] += await self._paced(lambda store: store.purge_names())
                break
        self._tell(counts)
        return counts

    async def _paced(self, ask: Callable[[Shard], Awaitable[T]]) -> T:
        began = self._clock.monotonic()
        answer = await self._shards.ask(self.shard, ask)
        took = self._clock.monotonic() - began
        factor = REST_FACTOR if took < LONG_SECONDS else LONG_REST_FACTOR
        await asyncio.sleep(max(LEAST_REST, factor * took))
        return answer

    def _retention(self) -> RetentionRules:
        said = {
            type_: settings.retention
            for type_, settings in self._types.items.items()
            if settings.retention != NO_RETENTION
        }
        return RetentionRules(self._rules.mesh, said)

    def _tell(self, counts: Counts) -> None:
        if jobs := counts.get("jobs", 0):
            extra = {"action": "jobs_purged", "shard": self.shard, "count": jobs}
            log.info("deleted jobs that were kept for long enough", extra=extra)
            self._measures.purged(self.shard, jobs)
