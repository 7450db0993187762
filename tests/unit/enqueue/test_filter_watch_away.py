"""Watches by filter while shards are away, also in the middle of a list."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from services.enqueue.app.watch import Kind
from services.mesh.errors import ShardUnavailable, SlowConsumer
from services.mesh.testing.waiting import eventually
from tests.unit.enqueue.filter_stand import (
    ENDED,
    NS,
    Source,
    Stand,
    take,
    until_beat,
)


async def test_a_shard_that_is_away_lags_and_follows_when_it_is_back():
    source = Source("s0", "s1")
    source.by_name["s1"].change("b")
    source.by_name["s1"].away = True
    stand = Stand(source)
    async with stand.watch() as watch:
        source.by_name["s0"].change("a")
        (first,) = await take(watch, 1)
        assert (first.message, first.token) == (("a", 1), "")
        source.by_name["s1"].away = False
        found, token = await until_beat(watch)
        assert found == [(Kind.SNAPSHOT, ("b", 1))]
        assert token


@asynccontextmanager
async def half_listed():
    """A watch that was shown one job of s1, and not the other: s1 was away for that page."""
    source = Source("s0", "s1")
    for shard, job in [("s0", "b"), ("s0", "y"), ("s1", "a"), ("s1", "z")]:
        source.by_name[shard].change(job)
    source.blinks["s1"] = 2
    stand = Stand(source)
    async with stand.watch() as watch:
        assert [d.message for d in await take(watch, 3)] == [("z", 1), ("y", 1), ("b", 1)]
        yield source.by_name["s1"], stand.hub, watch


async def passed(hub, shard):
    """The tail has read all that happened in a shard."""
    await eventually(lambda: hub._tails[shard.name].at == shard.lasting)


async def test_a_job_that_ends_while_its_shard_is_away_in_the_middle_of_a_list_is_told_of():
    async with half_listed() as (shard, hub, watch):
        shard.change("z", 2)
        shard.change("z", ENDED)
        await passed(hub, shard)
        found, token = await until_beat(watch)
    assert found == [
        (Kind.SNAPSHOT, ("a", 1)),
        (Kind.EVENT, ("z", 2)),
        (Kind.EVENT, ("z", 3)),
    ]
    assert token


async def test_a_job_that_ends_while_its_shard_is_away_at_the_end_of_a_list_is_told_of():
    source = Source("s0")
    shard = source.by_name["s0"]
    shard.change("a")

    def leave():
        shard.away, source.after_list = True, lambda: None

    source.after_list = leave
    stand = Stand(source)
    async with stand.watch() as watch:
        assert [d.message for d in await take(watch, 1)] == [("a", 1)]
        pending = asyncio.ensure_future(until_beat(watch))
        await eventually(lambda: stand.hub._tails["s0"].lagging)
        source.during_list = lambda: source.blinks.update(s0=1)
        shard.away = False
        shard.change("a", ENDED)
        await passed(stand.hub, shard)
        source.during_list = lambda: None
        found, token = await pending
    assert found == [(Kind.EVENT, ("a", 2))]
    assert token


async def test_a_job_that_moves_on_while_its_shard_is_away_skips_no_transition():
    async with half_listed() as (shard, hub, watch):
        shard.change("z", 2)
        shard.change("z", 3)
        await passed(hub, shard)
        found, _ = await until_beat(watch)
    assert found[1:] == [(Kind.EVENT, ("z", 2)), (Kind.EVENT, ("z", 3))]


async def test_the_snapshot_of_a_job_comes_before_its_transitions_also_when_its_shard_was_away():
    async with half_listed() as (shard, hub, watch):
        shard.change("a", 2)
        await passed(hub, shard)
        found, _ = await until_beat(watch)
        shard.change("a", 3)
        (last,) = await take(watch, 1)
    assert found == [(Kind.SNAPSHOT, ("a", 2))]
    assert (last.kind, last.message) == (Kind.EVENT, ("a", 3))


async def test_what_is_held_for_a_shard_that_is_not_listed_is_bounded():
    source = Source("s0")
    shard = source.by_name["s0"]
    stand = Stand(source, backlog=5)
    source.during_list = lambda: source.blinks.update(s0=1)
    async with stand.watch() as watch:
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: any("s0" in one.attached for one in stand.hub._all))
        for _ in range(7):
            shard.change("a")
        with pytest.raises(ShardUnavailable):  # its reader waits, and is not to blame
            await pending


async def test_who_takes_its_snapshot_too_slowly_is_a_slow_consumer():
    source = Source("s0")
    shard = source.by_name["s0"]
    for job in "abc":
        shard.change(job)
    stand = Stand(source, backlog=5)
    async with stand.watch() as watch:
        await take(watch, 1)
        for _ in range(7):
            shard.change("a")
        await eventually(lambda: all(one.failure for one in stand.hub._all))
        with pytest.raises(SlowConsumer):
            await take(watch, 5)


async def test_a_shard_that_is_slow_to_list_its_jobs_holds_up_no_news_of_others():
    source = Source("s0", "s1")
    source.by_name["s1"].away = True
    stand = Stand(source, backlog=5)
    original, asked, gate = source.live_jobs, asyncio.Event(), asyncio.Event()

    async def live_jobs(namespace, matching, before):
        asked.set()
        await gate.wait()
        return await original(namespace, matching, before)

    async with stand.watch() as watch:
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: any(w.pending == {"s1"} for w in stand.hub._all))
        source.live_jobs, source.by_name["s1"].away = live_jobs, False
        await asked.wait()
        for version in range(1, 11):
            source.by_name["s0"].change("a")
            async with asyncio.timeout(5):
                assert (await pending).message == ("a", version)
            pending = asyncio.ensure_future(anext(watch))
        gate.set()
        assert (await pending).kind is Kind.HEARTBEAT


def lists_of(source, away):
    """Where each page of a list begins, from now on; of a shard that is away for all of them."""
    original, begins = source.live_jobs, []

    async def live_jobs(namespace, matching, before):
        begins.append(before)
        source.blinks[away] = 1
        return await original(namespace, matching, before)

    source.live_jobs = live_jobs
    return begins


async def test_other_shards_are_not_listed_again_for_one_that_is_away():
    source = Source("s0", "s1")
    for job in "abcdef":
        source.by_name["s0"].change(job)
    begins = lists_of(source, "s1")
    async with Stand(source).watch() as watch:
        await take(watch, 6)
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: len(begins) > 5)
        source.by_name["s0"].change("a")
        assert (await pending).message == ("a", 2)
    assert begins[:3] == ["", "e", "c"]
    assert set(begins[3:]) == {""}


async def test_news_of_other_shards_do_not_make_a_watch_ask_for_one_that_is_away():
    source = Source("s0", "s1")
    begins = lists_of(source, "s1")
    stand = Stand(source)
    stand.hub._reread = 3600
    async with stand.watch() as watch:
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: begins and all("s0" not in w.pending for w in stand.hub._all))
        for version in range(1, 4):
            source.by_name["s0"].change("a")
            stand.hub.rung("s0", [NS])
            assert (await pending).message == ("a", version)
            pending = asyncio.ensure_future(anext(watch))
        pending.cancel()
        await asyncio.wait({pending})
    assert begins == [""]


async def test_a_heartbeat_names_the_shards_that_are_away():
    source = Source("s0", "s1")
    stand = Stand(source)
    async with stand.watch() as watch:
        await until_beat(watch)
        source.by_name["s1"].away = True
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: stand.hub._tails["s1"].lagging)
        stand.clock.advance(6)
        for one in stand.hub._all:
            one.wake.set()
        beat = await pending
        assert (beat.kind, beat.lagging) == (Kind.HEARTBEAT, ("s1",))
