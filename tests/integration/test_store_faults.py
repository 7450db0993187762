"""What is known when a shard fails: certainly nothing committed, or unknown; never a guess."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from services.mesh.errors import OutcomeUnknown, ShardBusy, ShardUnavailable
from services.mesh.jobs.model import JobFilter
from services.mesh.jobs.reports import ReportOutcome, Succeeded
from services.mesh.jobs.states import JobState
from services.mesh.store import connection
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.queries import Query
from services.mesh.store.settings import StoreSettings
from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.store_rig import EPOCH, Rig, Wire, audit, new_job, opened, rig_of_test, until  # noqa: F401

PID = Query("pid", "SELECT pg_backend_pid()", writes=False)
QUICK: dict[str, Any] = {
    "lock_timeout": 0.3,
    "statement_timeout": 0.5,
    "call_timeout": 1.0,
    "acquire_timeout": 0.5,
}


async def backends_ended(rig: Rig) -> None:
    """End every connection to this database but our own, and wait until they are gone."""
    own = "datname = current_database() AND pid <> pg_backend_pid()"
    rig.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}")
    await until(lambda: rig.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {own}") == [(0,)])


async def test_a_shard_that_was_never_there_is_unavailable():
    store = PostgresShard("s0", "postgresql://nobody@127.0.0.1:1/none", StoreSettings(**QUICK))
    await store.open()
    with pytest.raises(ShardUnavailable):
        await store.put_jobs([new_job()], EPOCH)
    with pytest.raises(ShardUnavailable):
        await store.probe()
    with pytest.raises(ShardUnavailable):
        await store.migrate()
    await store.close()


async def test_a_shard_that_is_not_open_is_unavailable(shard_dsn):
    store = PostgresShard("s0", shard_dsn)
    with pytest.raises(ShardUnavailable):
        await store.inflight_workers()
    await store.close()
    await store.close()


async def test_a_row_that_others_hold_for_long_is_said_to_be_busy(rig):
    (job_id,) = await rig.put()
    async with (
        await psycopg.AsyncConnection.connect(rig.dsn) as other,
        opened(rig.dsn, **QUICK) as store,
    ):
        await other.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [job_id])
        with pytest.raises(ShardUnavailable, match="busy"):
            await store.cancel([job_id])
        await other.rollback()
        (cancelled,) = (await store.cancel([job_id])).results
    assert cancelled.state is JobState.CANCELLED


async def test_connections_that_died_while_idle_are_replaced_unnoticed(rig):
    await rig.put()
    await backends_ended(rig)
    await rig.put(3)
    assert len(await rig.claim(limit=10)) == 4


async def test_a_connection_that_breaks_during_a_write_leaves_the_outcome_unknown(rig):
    one = QUICK | {"max_connections": 1}
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn, **one) as store:
        await store.put_jobs([new_job()], EPOCH)  # the statement is prepared by now
        wire.cut_on_answer = True
        job = new_job()
        with pytest.raises(OutcomeUnknown) as unknown:
            await store.put_jobs([job], EPOCH)
        assert unknown.value.metadata["shard"] == "s0"
        # It was committed, as it happens; repeating the same call finds that out and makes no twin.
        wire.cut_on_answer = False
        assert len(await rig.store.get_jobs([job.id])) == 1
        await store.put_jobs([job], EPOCH)
    assert len(await rig.store.list_jobs(JobFilter("n"), None, 10)) == 2


async def test_a_connection_that_breaks_during_a_read_is_certain(rig):
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn, **QUICK) as store:
        await store.inflight_workers()
        wire.cut_on_answer = True
        with pytest.raises(ShardUnavailable):
            await store.inflight_workers()


@pytest.mark.parametrize("writes", [False, True])
async def test_a_statement_that_took_too_long_is_given_up_by_a_shard_that_lives(rig, writes):
    async with opened(rig.dsn, **QUICK) as store:
        connections = store._connections
        (before,) = await connections.fetch(PID)
        answers = store.answers
        with pytest.raises(ShardBusy, match="took too long; nothing was changed"):
            await connections.fetch(Query("slow", "SELECT pg_sleep(3)", writes=writes))
        assert store.answers == answers + 1, "its own word is a sign of life"
        assert await connections.fetch(PID) == [before], "and the connection stays"


async def test_a_shard_that_ends_a_connection_has_not_answered(rig):
    async with opened(rig.dsn, **QUICK) as store:
        answers = store.answers
        end = "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(0.1)"
        with pytest.raises(ShardUnavailable) as away:
            await store._connections.fetch(Query("end", end, writes=False))
        assert not isinstance(away.value, ShardBusy)
        assert store.answers == answers


async def test_a_shard_that_hangs_is_cut_off_at_the_deadline(rig):
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn, **QUICK) as store:
        await store.inflight_workers()
        wire.mute = True
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await store.put_jobs([new_job()], EPOCH)
        with pytest.raises(ShardUnavailable):
            await store.inflight_workers()
        assert time.monotonic() - started < 5
        wire.mute = False
        wire.cut()
        await _answers(store)


async def test_calls_under_way_end_when_the_shard_is_given_up(rig):
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn) as store:
        await store.inflight_workers()
        wire.mute = True
        started = time.monotonic()
        job = new_job()
        writing = asyncio.create_task(store.put_jobs([job], EPOCH), name="writing")
        await wire.swallowed.wait()
        store.abandon()
        with pytest.raises(OutcomeUnknown):
            await writing
        assert time.monotonic() - started < StoreSettings().call_timeout / 2
        wire.mute = False
        await _answers(store)
        await store.put_jobs([job], EPOCH)
    assert len(await rig.store.list_jobs(JobFilter("n"), None, 10)) == 1


PATIENT: dict[str, Any] = {"acquire_timeout": 60.0}


@asynccontextmanager
async def linked(rig: Rig, **settings: Any) -> AsyncIterator[tuple[FaultProxy, PostgresShard]]:
    """A store that has asked its shard once, by a link that can be cut."""
    async with FaultProxy(int(conninfo_to_dict(rig.dsn)["port"] or 0)) as link:
        dsn = make_conninfo(rig.dsn, host="127.0.0.1", port=link.port)
        async with opened(dsn, **settings) as store:
            await store.inflight_workers()
            yield link, store


async def test_a_statement_that_hangs_is_told_of_long_before_it_is_cut(rig):
    async with linked(rig, **QUICK) as (link, store):
        slow = asyncio.Event()
        store.when_slow(slow.set)
        answers = store.answers
        await store.inflight_workers()
        assert not slow.is_set()
        assert store.answers == answers + 1
        link.become(Link.HOLD)
        started = time.monotonic()
        call = asyncio.create_task(store.put_jobs([new_job()], EPOCH))
        await slow.wait()
        assert not call.done()
        with pytest.raises(OutcomeUnknown):
            await call
        assert QUICK["call_timeout"] * 0.9 < time.monotonic() - started < 5
        assert store.answers == answers + 1


async def test_nobody_waits_for_a_connection_to_a_shard_that_refuses_them(rig):
    async with linked(rig, **PATIENT) as (link, store):
        link.become(Link.CUT)
        async with asyncio.timeout(20):
            calls = [store.put_jobs([new_job()], EPOCH) for _ in range(5)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
        # Certain: none of them had a connection to send anything by.
        assert {type(end) for end in ends} == {ShardUnavailable}
        link.become(Link.PASS)
        assert await store.inflight_workers() == []


async def test_who_waits_for_a_connection_stops_when_the_shard_is_given_up(rig):
    one = PATIENT | {"max_connections": 1}
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn, **one) as store:
        await store.inflight_workers()
        wire.mute = True
        writing = asyncio.create_task(store.put_jobs([new_job()], EPOCH), name="writing")
        await wire.swallowed.wait()
        waiting = asyncio.create_task(store.put_jobs([new_job()], EPOCH), name="waiting")
        await asyncio.sleep(0)  # it asks the pool for a connection
        store.abandon()
        await asyncio.sleep(0)  # it is being told
        store.abandon()
        async with asyncio.timeout(20):
            ends = await asyncio.gather(writing, waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [OutcomeUnknown, ShardUnavailable]


async def test_a_shard_that_was_away_for_long_serves_the_first_call_after_it_is_back(rig):
    async with linked(rig, **QUICK) as (link, store):
        link.become(Link.CUT)
        # Long enough for a pool that doubles its pauses to have fallen asleep.
        until_asleep = time.monotonic() + 4.0
        while time.monotonic() < until_asleep:
            with pytest.raises(ShardUnavailable):
                await store.inflight_workers()
        link.become(Link.PASS)
        assert await store.inflight_workers() == []


async def test_a_probe_gives_up_at_its_own_deadline_and_recovers(rig):
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn) as store:
        await store.probe()
        wire.mute = True
        for _ in range(2):
            started = time.monotonic()
            with pytest.raises(ShardUnavailable):
                await store.probe(timeout=0.2)
            assert time.monotonic() - started < 1.5
        wire.mute = False
        assert (await store.probe(timeout=5)).writable


async def test_a_probe_does_not_queue_behind_a_full_pool(rig):
    async with opened(rig.dsn, max_connections=1, **QUICK) as store:
        slow = Query("slow", "SELECT pg_sleep(0.4)", writes=False)
        busy = asyncio.create_task(store._connections.fetch(slow), name="busy")
        sleeping = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        await until(lambda: rig.sql(sleeping))
        assert (await store.probe()).writable
        assert not busy.done()
        await busy


async def test_a_statement_that_takes_too_long_is_rolled_back_for_certain(rig):
    async with opened(rig.dsn, **QUICK) as store:
        slow = Query("slow", "SELECT pg_sleep(9)", writes=True)
        with pytest.raises(ShardUnavailable):
            await store._connections.fetch(slow)


async def test_a_lock_that_is_held_too_long_is_given_up_for_certain(rig):
    job = await rig.claimed()
    async with opened(rig.dsn, **QUICK) as store:
        holder = await psycopg.AsyncConnection.connect(rig.dsn)
        await holder.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [job.id])
        with pytest.raises(ShardUnavailable):
            await store.report([Succeeded(job.id, job.fence, "w1")])
        await holder.rollback()
        await holder.close()
        answer = await store.report([Succeeded(job.id, job.fence, "w1")])
        assert answer.results[0].outcome is ReportOutcome.COMMITTED


async def test_a_full_pool_is_unavailable_soon(rig):
    async with opened(rig.dsn, max_connections=1, **QUICK) as store:
        slow = Query("slow", "SELECT pg_sleep(0.45)", writes=False)
        calls = [store._connections.fetch(slow) for _ in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [result for result in results if isinstance(result, ShardUnavailable)]
        assert 3 <= len(refused) <= 5


async def test_a_shard_that_is_read_only_says_so_and_refuses_for_certain(rig):
    assert (await rig.store.probe()).writable
    name = rig.sql("SELECT current_database()")[0][0]
    rig.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with opened_without_migrating(rig.dsn) as store:
        assert not (await store.probe()).writable
        with pytest.raises(ShardUnavailable):
            await store.put_jobs([new_job()], EPOCH)
        with pytest.raises(ShardUnavailable):
            await store.fire_due_schedules()
        assert await store.list_jobs(JobFilter("n"), None, 10) == []
    rig.sql("SET transaction_read_only = off")


async def test_an_error_of_ours_is_not_dressed_up_as_an_absence(rig):
    with pytest.raises(psycopg.errors.UndefinedTable):
        await rig.store._connections.fetch(Query("wrong", "SELECT FROM nowhere", writes=False))
    assert await rig.store.inflight_workers() == []  # the connection is as good as before


async def test_a_commit_that_is_not_answered_is_unknown_and_nothing_else_is(rig):
    async with Wire.to(rig.dsn) as (wire, dsn), opened(dsn, **QUICK) as store:
        noop = Query("noop", "SELECT 1", writes=False)

        async def transact(cut_before: str) -> None:
            async with store._connections.transaction() as connection:
                wire.cut_on_answer = cut_before == "statement"
                await store._connections.run(connection, noop)
                wire.cut_on_answer = cut_before == "commit"

        with pytest.raises(OutcomeUnknown):
            await transact("commit")
        wire.cut_on_answer = False
        with pytest.raises(ShardUnavailable):
            await transact("statement")


async def test_a_probe_tells_a_restored_copy_from_its_original(rig):
    first = await rig.store.probe()
    await rig.put()
    second = await rig.store.probe()
    assert second.incarnation == first.incarnation
    assert second.next_xid > first.next_xid


async def test_settings_whose_timeouts_do_not_grow_are_refused():
    with pytest.raises(ValueError, match="grow"):
        StoreSettings(statement_timeout=6, call_timeout=5)


async def test_acknowledged_jobs_are_on_disk(rig):
    shown = Query("shown", "SELECT current_setting('synchronous_commit')", writes=False)
    assert await rig.store._connections.fetch(shown) == [("on",)]


async def test_a_shard_that_may_lose_commits_says_so(rig, monkeypatch):
    assert (await rig.store.probe()).durable
    careless = {"options": "-c synchronous_commit=off"}
    monkeypatch.setattr(connection, "connection_options", lambda settings: careless)
    async with opened_without_migrating(rig.dsn) as store:
        assert not (await store.probe(timeout=5)).durable


async def test_cancelling_a_call_frees_its_connection(rig):
    async with opened(rig.dsn, max_connections=1) as store:
        slow = Query("slow", "SELECT pg_sleep(30)", writes=False)
        for _ in range(3):
            call = asyncio.create_task(store._connections.fetch(slow), name="slow")
            await until(
                lambda: rig.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            )
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert await store.inflight_workers() == []


class opened_without_migrating:  # noqa: N801 - reads as a function
    """A shard whose schema somebody else has made."""

    def __init__(self, dsn: str) -> None:
        self._store = PostgresShard("s0", dsn)

    async def __aenter__(self) -> PostgresShard:
        await self._store.open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


async def _answers(store: PostgresShard) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            await store.inflight_workers()
            return
        except ShardUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(timedelta(milliseconds=20).total_seconds())
