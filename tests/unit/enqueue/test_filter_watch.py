"""Watches by filter: what lives, then every transition, and tokens to go on from."""

from __future__ import annotations

import asyncio

import pytest

from services.enqueue.app.watch import Kind
from services.enqueue.domain.filtering import WatchFilter
from services.mesh.errors import (
    ResumeTokenExpired,
    ResumeTokenInvalid,
    SlowConsumer,
)
from services.mesh.testing.waiting import eventually
from tests.unit.enqueue.filter_stand import (
    ANY,
    ENDED,
    NS,
    Source,
    Stand,
    take,
    until_beat,
)


async def test_a_watch_is_what_lives_and_then_every_transition():
    source = Source("s0", "s1")
    source.by_name["s0"].change("a")
    source.by_name["s1"].change("b")
    source.by_name["s1"].change("b", ENDED)
    async with Stand(source).watch() as watch:
        snapshot, token = await until_beat(watch)
        assert snapshot == [(Kind.SNAPSHOT, ("a", 1))]
        assert token
        source.by_name["s0"].change("a", 2)
        source.by_name["s0"].change("a", ENDED)
        assert [(d.kind, d.message) for d in await take(watch, 2)] == [
            (Kind.EVENT, ("a", 2)),
            (Kind.EVENT, ("a", 3)),
        ]


async def test_what_was_listed_already_does_not_come_again():
    source = Source("s0")
    shard = source.by_name["s0"]
    shard.change("a")

    def meanwhile():
        shard.change("a", 2)
        source.during_list = lambda: None

    source.during_list = meanwhile  # after the place was taken, before the row is read
    async with Stand(source).watch() as watch:
        found, _ = await until_beat(watch)
        shard.change("a", 3)
        (last,) = await take(watch, 1)
    assert found == [(Kind.SNAPSHOT, ("a", 2))]
    assert last.message == ("a", 3)


async def test_a_transaction_that_commits_late_is_not_skipped():
    source = Source("s0")
    shard = source.by_name["s0"]
    async with Stand(source).watch() as watch:
        await until_beat(watch)
        late = shard.begin()
        shard.write(late, "slow")
        shard.change("quick")
        pending = asyncio.ensure_future(anext(watch))
        done, _ = await asyncio.wait({pending}, timeout=0.1)
        assert not done, "what began later waits, or a token could pass the late one"
        shard.commit(late)
        assert (await pending).message == ("slow", 1)
        assert (await take(watch, 1))[0].message == ("quick", 1)


async def test_there_is_no_token_while_the_snapshot_may_hold_more_than_the_order_has_shown():
    source = Source("s0")
    shard = source.by_name["s0"]
    late = shard.begin()
    shard.change("a")
    async with Stand(source).watch() as watch:
        (first,) = await take(watch, 1)
        assert (first.message, first.token) == (("a", 1), "")
        pending = asyncio.ensure_future(until_beat(watch))
        done, _ = await asyncio.wait({pending}, timeout=0.1)
        assert not done
        shard.commit(late)
        found, token = await pending
        assert found == []
        assert token


async def test_a_watch_that_resumes_where_nothing_happened_hears_so_at_once():
    source = Source("s0", "s1")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    stand = Stand(source)
    stand.hub._heartbeat = 3600
    async with stand.watch(token) as watch:
        assert (await until_beat(watch))[0] == []


async def test_a_watch_resumes_after_any_of_its_tokens_on_another_replica():
    source = Source("s0", "s1")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
        tokens = [token]
        for number in range(6):
            source.by_name[f"s{number % 2}"].change(f"j{number % 2}", 2)
            tokens.append((await take(watch, 1))[0].token)
    for place, token in enumerate(tokens):
        async with Stand(source).watch(token) as watch:
            rest = [d.message for d in await take(watch, 6 - place)]
            expected = {(f"j{n % 2}", n // 2 + 1) for n in range(place, 6)}
            assert set(rest) == expected
            assert len(rest) == len(expected)


async def test_a_token_is_for_its_filter_and_nothing_else():
    source = Source("s0")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    for wanted, given_token in [
        (WatchFilter(NS, types=frozenset({"x"})), token),
        (WatchFilter("other"), token),
        (ANY, "garbage"),
    ]:
        async with Stand(source).watch(given_token, wanted) as watch:
            with pytest.raises(ResumeTokenInvalid):
                await anext(watch)
    async with Stand(Source("s9")).watch(token) as watch:
        with pytest.raises(ResumeTokenInvalid):
            await anext(watch)


async def test_a_token_older_than_what_is_kept_has_expired():
    source = Source("s0")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    shard = source.by_name["s0"]
    shard.change("a")
    shard.change("b")
    shard.purged = shard.next_xid - 1
    async with Stand(source).watch(token) as watch:
        with pytest.raises(ResumeTokenExpired):
            await anext(watch)


async def test_a_slow_reader_is_cut_off_and_its_last_token_is_valid():
    source = Source("s0")
    shard = source.by_name["s0"]
    stand = Stand(source, backlog=5)
    received = []
    token = ""
    async with stand.watch() as watch:
        await until_beat(watch)
        for _ in range(20):
            shard.change("a")
        await eventually(lambda: all(one.failure for one in stand.hub._all))
        for delivery in await take(watch, 5):
            received.append(delivery.message)
            token = delivery.token
        with pytest.raises(SlowConsumer):
            await anext(watch)
    async with Stand(source).watch(token) as watch:
        received += [d.message for d in await take(watch, 20 - len(received))]
    assert received == [("a", version) for version in range(1, 21)]


async def test_a_page_with_more_than_may_wait_is_no_fault_of_its_reader():
    source = Source("s0")
    shard = source.by_name["s0"]

    def change_three_at_once():
        xid = shard.begin()
        for job in "abc":
            shard.write(xid, job)
        shard.commit(xid)

    async with Stand(source, backlog=2).watch() as watch:
        _, token = await until_beat(watch)
        pending = asyncio.ensure_future(anext(watch))
        change_three_at_once()
        found = [(await pending).message] + [d.message for d in await take(watch, 2)]
        assert found == [("a", 1), ("b", 1), ("c", 1)]
    change_three_at_once()
    async with Stand(source, backlog=2).watch(token) as watch:
        assert len(await take(watch, 6)) == 6, "it asked for these itself"


async def test_a_drain_ends_a_watch_with_its_token():
    stand = Stand(Source("s0"))
    await stand.hub.start()
    async with stand.watch() as watch:
        _, token = await until_beat(watch)
        stand.drain.set()
        (last,) = await take(watch, 1)
        assert (last.kind, last.token) == (Kind.DRAIN, token)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_only_what_matches_is_delivered_and_many_come_as_one():
    source = Source("s0")
    wanted = WatchFilter(NS, types=frozenset({"echo"}), states=frozenset({2}))
    async with Stand(source).watch(wanted=wanted, most=100) as watch:
        await until_beat(watch)
        shard = source.by_name["s0"]
        xid = shard.begin()
        for number in range(4):
            shard.write(xid, f"j{number}", 2, "echo" if number % 2 else "other")
            shard.write(xid, f"k{number}", 1, "echo")
        shard.commit(xid)
        (batch,) = await take(watch, 1)
        assert [part.message for part in batch.message] == [("j1", 1), ("j3", 1)]
