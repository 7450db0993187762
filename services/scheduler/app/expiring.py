"""The expirer of one shard: jobs that were not started in time."""

from __future__ import annotations

from contextlib import suppress

from services.mesh.errors import DependencyUnavailable
from services.mesh.runtime import Counts
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.ports import Broker

BATCH = 1_000


class Expirer:
    """Ends jobs whose expire time passed; claims leave them alone from that instant on."""

    def __init__(self, shard: str, shards: Shards, broker: Broker, measures: Measures) -> None:
        self.shard = shard
        self._shards, self._broker, self._measures = shards, broker, measures

    async def run_once(self) -> Counts:
        """Expire all that is overdue."""
        expired = 0
        while True:
            events = await self._shards.ask(self.shard, lambda store: store.expire_overdue(BATCH))
            expired += len(events)
            if events:
                self._measures.expired(self.shard, len(events))
                with suppress(DependencyUnavailable):
                    await self._broker.hint(self.shard, events)
            if len(events) < BATCH:
                return {"expired": expired}
