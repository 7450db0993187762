"""Watches that want nothing but how their jobs end."""

from contextlib import aclosing

import pytest

from services.enqueue.app.watch import Kind
from services.mesh.errors import JobNotFound, ShardUnavailable
from tests.unit.enqueue.watch_stand import NOBODY, J, K, Stand, news


async def test_a_watch_of_ends_tells_each_end_once_whenever_it_was():
    stand = Stand()
    stand.rows.add(J, ended=True)
    stand.rows.add(K)
    async with aclosing(stand.hub.watch("n", [J, K], "", ends_only=True)) as watch:
        first = await anext(watch)
        assert (first.kind, first.message) == (Kind.EVENT, "j v1")
        stand.hub.hinted([stand.rows.add(K)])
        end = stand.rows.add(K, ended=True)
        stand.hub.hinted([end])
        stand.hub.hinted([end])
        assert (await anext(watch)).message == "k v3"
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_a_lost_hint_of_an_end_is_found_by_the_re_read():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "", ends_only=True)) as watch:
        assert (await anext(watch)).kind is Kind.HEARTBEAT
        stand.rows.add(J, ended=True)
        await stand.reread()
        assert (await news(watch)).message == "j v2"


async def test_a_watch_of_ends_resumes_with_the_ends_it_has_not_told():
    stand = Stand()
    stand.rows.add(J, ended=True)
    stand.rows.add(K)
    async with aclosing(stand.hub.watch("n", [J, K], "", ends_only=True)) as watch:
        token = (await anext(watch)).token
    stand.rows.add(K, ended=True)
    async with aclosing(stand.hub.watch("n", [J, K], token, ends_only=True)) as watch:
        assert [d.message async for d in watch] == ["k v2"]


async def test_a_watch_of_ends_of_a_job_that_is_not_there_is_refused():
    with pytest.raises(JobNotFound):
        async with aclosing(Stand().hub.watch("n", [NOBODY], "", ends_only=True)) as watch:
            await anext(watch)


async def test_a_watch_of_ends_whose_shard_is_away_is_refused():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.lagging = ["shard-1"]
    with pytest.raises(ShardUnavailable):
        async with aclosing(stand.hub.watch("n", [J], "", ends_only=True)) as watch:
            await anext(watch)


async def test_hints_are_looked_through_for_ends_while_nobody_wants_more():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "", ends_only=True)) as ends:
        await anext(ends)
        assert stand.feed.ends_only()
        async with aclosing(stand.hub.watch("n", [J], "")) as all_of_it:
            await anext(all_of_it)
            assert not stand.feed.ends_only()
        assert stand.feed.ends_only()


async def test_a_job_that_is_there_no_more_ends_its_watch_and_no_other():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.add(K)
    async with (
        aclosing(stand.hub.watch("n", [J], "", ends_only=True)) as of_one_deleted,
        aclosing(stand.hub.watch("n", [K], "", ends_only=True)) as other,
    ):
        await anext(of_one_deleted)
        await anext(other)
        del stand.rows.events[J]
        stand.rows.add(K, ended=True)
        await stand.reread()
        assert (await news(other)).message == "k v2"
        with pytest.raises(JobNotFound):
            await news(of_one_deleted)
