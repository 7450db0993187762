"""Searches that take long leave connections for the others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from services.mesh.clock import ManualClock
from services.mesh.jobs.model import JobFilter
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.shards import Shards

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class SlowShard:
    """Lists take until the gate is opened; a lookup by id does not."""

    name = "s0"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.listing = self.most = 0

    async def list_jobs(self, *_: Any, **__: Any) -> list[Any]:
        self.listing += 1
        self.most = max(self.most, self.listing)
        await self.gate.wait()
        self.listing -= 1
        return []


def lookup_of(shard: SlowShard, searches: int) -> Lookup:
    shards = Shards({"s0": shard}, ManualClock(NOW), Readiness().require("shards"))  # type: ignore[dict-item]
    for _ in range(2):
        shards.probed("s0", ProbeResult(NOW, UUID(int=1), 1, True, 1), 1.0)
    return Lookup(shards, None, None, searches)  # type: ignore[arg-type]


async def test_no_more_lists_at_once_than_leave_connections_for_others() -> None:
    shard = SlowShard()
    lookup = lookup_of(shard, searches=3)
    jobs = JobFilter(namespace="n")
    pages = [asyncio.create_task(lookup.page(jobs, None, 10, full=False)) for _ in range(9)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert shard.listing == 3
    pages[0].cancel()  # gives its place to the next
    shard.gate.set()
    answers = await asyncio.gather(*pages[1:])
    assert [page.missing for page in answers] == [[]] * 8
    assert shard.most == 3
