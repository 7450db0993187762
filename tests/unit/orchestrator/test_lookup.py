"""Searches that take long leave connections for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import Overloaded, ShardUnavailable
from services.mesh.jobs.model import JobFilter
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult
from services.orchestrator.app.changes import Changes
from services.orchestrator.app.lookup import CALLS_PER_SEARCH, Lookup
from services.orchestrator.app.shards import Shards

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T = TypeVar("T")


class SlowShard:
    """Lists take until the gate is opened, or it is given up."""

    name = "s0"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.listing = self.most = 0
        self._given_up = False

    async def match_jobs(self, *_: Any) -> list[Any]:
        return await self.list_jobs()

    async def list_jobs(self, *_: Any, **__: Any) -> list[Any]:
        self.listing += 1
        self.most = max(self.most, self.listing)
        await self.gate.wait()
        self.listing -= 1
        if self._given_up:
            raise ShardUnavailable(self.name)
        return []

    def abandon(self) -> None:
        """What is under way is cut; who comes later waits as before."""
        self._given_up = True
        self.gate.set()
        asyncio.get_running_loop().call_soon(self.gate.clear)


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


async def answered_once_it_is_gone(lookup: Lookup, calls: Sequence[asyncio.Task[T]]) -> list[T]:
    """The answers of calls that wait for a shard, after it went away."""
    for _ in range(5):
        await asyncio.sleep(0)
    for _ in range(3):
        lookup._shards.missed("s0", "gone")
    async with asyncio.timeout(10):
        return await asyncio.gather(*calls)


async def test_who_waits_for_a_shard_that_goes_away_waits_no_longer() -> None:
    shard = SlowShard()
    lookup = lookup_of(shard, searches=1)
    jobs = JobFilter(namespace="n")
    pages = [asyncio.create_task(lookup.page(jobs, None, 10, full=False)) for _ in range(3)]
    answers = await answered_once_it_is_gone(lookup, pages)
    assert [page.missing for page in answers] == [["s0"]] * 3
    assert shard.most == 1


async def test_changes_by_filter_wait_for_a_place_among_the_searches() -> None:
    shard = SlowShard()
    lookup = lookup_of(shard, searches=2)
    changes = Changes(lookup, lookup._shards, None, None, ManualClock(NOW), Random(1))  # type: ignore[arg-type]
    jobs = JobFilter(namespace="n")
    calls = [
        asyncio.create_task(call)
        for _ in range(3)
        for call in (
            changes.cancel(jobs, None, "", dry_run=False),
            changes.redrive_matching(jobs, None, "", dry_run=False),
        )
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    shard.gate.set()
    await asyncio.gather(*calls)
    assert shard.most == 2


async def test_who_changes_by_filter_waits_no_longer_for_a_shard_that_goes_away() -> None:
    shard = SlowShard()
    lookup = lookup_of(shard, searches=1)
    changes = Changes(lookup, lookup._shards, None, None, ManualClock(NOW), Random(1))  # type: ignore[arg-type]
    jobs = JobFilter(namespace="n")
    calls = [asyncio.create_task(changes.cancel(jobs, None, "", dry_run=False)) for _ in range(3)]
    answers = await answered_once_it_is_gone(lookup, calls)
    assert [done.missing for done in answers] == [["s0"]] * 3
    assert shard.most == 1


async def test_who_comes_after_too_many_searches_is_refused_with_a_time() -> None:
    shard = SlowShard()
    lookup = lookup_of(shard, searches=1)
    changes = Changes(lookup, lookup._shards, None, None, ManualClock(NOW), Random(1))  # type: ignore[arg-type]
    jobs = JobFilter(namespace="n")
    half = CALLS_PER_SEARCH // 2
    pages = [asyncio.create_task(lookup.page(jobs, None, 10, full=False)) for _ in range(half)]
    walks = [
        asyncio.create_task(changes.cancel(jobs, None, "", dry_run=False)) for _ in range(half)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    for late in (
        lambda: lookup.page(jobs, None, 10, full=False),
        lambda: changes.count(jobs),
        lambda: changes.cancel(jobs, None, "", dry_run=False),
    ):
        with pytest.raises(Overloaded) as refused:
            async with asyncio.timeout(5):
                await late()
        assert refused.value.retry_after
    pages[-1].cancel()
    await asyncio.wait({pages.pop()})
    next_one = asyncio.create_task(lookup.page(jobs, None, 10, full=False))
    shard.gate.set()
    await asyncio.gather(next_one, *pages, *walks)
    assert shard.most == 1
    assert (await lookup.page(jobs, None, 10, full=False)).missing == []
