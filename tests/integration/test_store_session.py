"""Statements on a connection of their own making: large ones, broken ones, given up ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.store import session as sessions
from services.mesh.store.arrays import Blobs
from services.mesh.store.connection import ShardConnections
from services.mesh.store.queries import Query
from services.mesh.store.settings import StoreSettings
from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.store_rig import until

MEGABYTE = 1 << 20
SIZES = Query("sizes", "SELECT length(b), b FROM unnest(%(blobs)b) AS r (b)", writes=False)
LONG = Query("long", "SELECT repeat('x', %(count)s::int)", writes=False)
LONG_WRITE = Query("long_write", LONG.sql, writes=True)
PID = Query("pid", "SELECT pg_backend_pid()", writes=False)
SLEEP = Query("sleep", "SELECT pg_sleep(30)", writes=True)


@asynccontextmanager
async def connected(dsn: str, **settings: Any) -> AsyncIterator[ShardConnections]:
    connections = ShardConnections("s0", dsn, StoreSettings(**settings))
    await connections.open()
    try:
        yield connections
    finally:
        await connections.close()


@asynccontextmanager
async def linked(dsn: str, **settings: Any) -> AsyncIterator[tuple[FaultProxy, ShardConnections]]:
    """Connections that were used once, by a link that can be spoilt."""
    async with FaultProxy(int(conninfo_to_dict(dsn)["port"] or 0)) as link:
        there = make_conninfo(dsn, host="127.0.0.1", port=link.port)
        async with connected(there, **settings) as connections:
            await connections.fetch(PID)
            yield link, connections


def asked(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def asleep(dsn: str) -> bool:
    here = "wait_event = 'PgSleep' AND datname = current_database()"
    return bool(asked(dsn, f"SELECT 1 FROM pg_stat_activity WHERE {here}"))


# --- large statements


async def test_what_the_socket_does_not_take_at_once_is_sent_when_it_does(shard_dsn):
    blobs = [bytes([65 + i]) * 3 * MEGABYTE for i in range(4)]
    async with linked(shard_dsn, max_connections=1) as (link, connections):
        link.become(Link.HOLD_REQUESTS)
        call = asyncio.create_task(connections.fetch(SIZES, {"blobs": Blobs(blobs)}), name="large")
        await asyncio.sleep(0.2)
        assert not call.done()
        link.become(Link.PASS)
        assert await call == [(len(blob), blob) for blob in blobs]
        (first,) = await connections.fetch(PID)
        assert await connections.fetch(PID) == [first]


async def test_a_large_statement_and_its_answer_pass_a_narrow_link(shard_dsn):
    blobs = [bytes([65 + i]) * MEGABYTE for i in range(2)]
    async with linked(shard_dsn, max_connections=1) as (link, connections):
        link.become(Link.THROTTLE, bytes_=4 * MEGABYTE)
        rows = await connections.fetch(SIZES, {"blobs": Blobs(blobs)})
    assert rows == [(MEGABYTE, blob) for blob in blobs]


@pytest.mark.parametrize(("query", "end"), [(LONG, ShardUnavailable), (LONG_WRITE, OutcomeUnknown)])
async def test_an_answer_that_is_cut_short_is_no_answer(shard_dsn, query, end):
    async with linked(shard_dsn, max_connections=1) as (link, connections):
        link.become(Link.CUT_AFTER, bytes_=MEGABYTE)
        with pytest.raises(end):
            await connections.fetch(query, {"count": 8 * MEGABYTE})
        link.become(Link.PASS)
        assert await connections.fetch(query, {"count": 3}) == [("xxx",)]


async def test_a_shard_that_stops_reading_is_cut_off_at_the_deadline(shard_dsn):
    quick = {"lock_timeout": 0.3, "statement_timeout": 0.4, "call_timeout": 0.6}
    async with linked(shard_dsn, **quick) as (link, connections):
        link.become(Link.HOLD_REQUESTS)
        started = time.monotonic()
        write = Query("sizes", SIZES.sql, writes=True)
        with pytest.raises(OutcomeUnknown):
            await connections.fetch(write, {"blobs": Blobs([b"x" * 12 * MEGABYTE])})
        assert time.monotonic() - started < 5


# --- errors and types


async def test_errors_are_the_drivers_with_all_that_they_say(shard_dsn):
    asked(shard_dsn, "CREATE TABLE marks (name text PRIMARY KEY)")
    mark = Query("mark", "INSERT INTO marks VALUES (%(name)s)", writes=True)
    wrong = Query("wrong", "SELECT 1 / %(by)s::int", writes=False)
    async with connected(shard_dsn, max_connections=1) as connections:
        (pid,) = await connections.fetch(PID)
        assert await connections.fetch(mark, {"name": "m"}) == []
        with pytest.raises(psycopg.errors.UniqueViolation) as refused:
            await connections.fetch(mark, {"name": "m"})
        assert refused.value.sqlstate == "23505"
        assert refused.value.diag.table_name == "marks"
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connections.fetch(wrong, {"by": 0})
        assert await connections.fetch(wrong, {"by": 1}) == [(1,)]
        assert await connections.fetch(PID) == [pid]  # the connection is as good as before


async def test_a_statement_may_be_called_with_other_types(shard_dsn):
    said = Query("said", "SELECT %(what)s || '!'", writes=False)
    async with connected(shard_dsn, max_connections=1) as connections:
        for what, text in (("a", "a!"), (Int8(7), "7!"), (None, None), ("b", "b!")):
            assert await connections.fetch(said, {"what": what}) == [(text,)]


async def test_statements_are_forgotten_when_there_are_too_many(shard_dsn, monkeypatch):
    monkeypatch.setattr(sessions, "_MOST_PREPARED", 3)
    many = [Query(f"q{i}", f"SELECT {i}", writes=False) for i in range(5)]
    known = Query("known", "SELECT count(*) FROM pg_prepared_statements", writes=False)
    async with connected(shard_dsn, max_connections=1) as connections:
        for _ in range(2):
            assert [await connections.fetch(query) for query in many] == [[(i,)] for i in range(5)]
        ((count,),) = await connections.fetch(known)
    assert count <= 3


# --- given up in the middle


async def test_an_answer_that_nobody_waits_for_is_not_the_next_ones(shard_dsn):
    async with connected(shard_dsn, max_connections=1) as connections:
        for _ in range(2):
            call = asyncio.create_task(connections.fetch(SLEEP), name="sleep")
            await until(lambda: asleep(shard_dsn))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await connections.fetch(LONG, {"count": 2}) == [("xx",)]
            # It was not only left: the server stopped it, and holds no locks for it.
            await until(lambda: not asleep(shard_dsn))


async def test_who_goes_away_while_a_statement_is_prepared_spoils_nothing(shard_dsn, monkeypatch):
    result = sessions.Session._result

    async def cut(self):
        await result(self)
        monkeypatch.undo()
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with connected(shard_dsn, max_connections=1) as connections:
        await connections.fetch(PID)
        monkeypatch.setattr(sessions.Session, "_result", cut)
        call = asyncio.create_task(connections.fetch(LONG, {"count": 2}))
        with pytest.raises(asyncio.CancelledError):
            await call
        for count in range(3):  # statements that the connection has not met
            query = Query(f"new{count}", f"SELECT {count}", writes=False)
            assert await connections.fetch(query) == [(count,)]


async def test_a_transaction_that_is_given_up_leaves_nothing_behind(shard_dsn):
    asked(shard_dsn, "CREATE TABLE marks (name text)")
    mark = Query("mark", "INSERT INTO marks VALUES ('m')", writes=True)
    async with connected(shard_dsn, max_connections=1) as connections:
        (pid,) = await connections.fetch(PID)

        async def give_up(error: BaseException) -> None:
            async with connections.transaction() as session:
                await connections.run(session, mark)
                raise error

        with pytest.raises(ValueError, match="enough"):
            await give_up(ValueError("enough"))
        assert await connections.fetch(PID) == [pid]
        with pytest.raises(asyncio.CancelledError):
            await give_up(asyncio.CancelledError())
        assert await connections.fetch(PID) != [pid]
    assert asked(shard_dsn, "SELECT count(*) FROM marks") == [(0,)]


async def test_a_connection_that_ends_between_two_statements_is_found_at_the_second(shard_dsn):
    async def interrupted(connections: ShardConnections) -> None:
        async with connections.transaction() as session:
            ((pid,),) = await connections.run(session, PID)
            asked(shard_dsn, f"SELECT pg_terminate_backend({pid}, 5000)")
            await asyncio.sleep(0.05)  # the loop is told that there is something to read
            await connections.run(session, PID)

    async with connected(shard_dsn) as connections:
        started = time.monotonic()
        with pytest.raises(ShardUnavailable):
            await interrupted(connections)
        assert time.monotonic() - started < StoreSettings().call_timeout / 2
        assert len(await connections.fetch(PID)) == 1


async def test_a_transaction_that_stood_still_for_too_long_is_told_to_be_over(shard_dsn):
    """As one of a process that was frozen in the middle of it."""

    async def stand_still(connections: ShardConnections) -> None:
        async with connections.transaction() as session:
            await connections.run(session, PID)
            await until(session.hung_up)
            await connections.run(session, PID)

    async with connected(shard_dsn, lock_timeout=0.1, statement_timeout=0.2) as connections:
        with pytest.raises(ShardUnavailable):
            await stand_still(connections)
        assert len(await connections.fetch(PID)) == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_last_words_of_a_server_and_then_its_end_are_heard(shard_dsn, run):
    """Services run on uvloop, which tells only once of a socket that is in error."""

    async def heard() -> None:
        async with connected(shard_dsn) as connections:
            session = await connections.session()
            ((pid,),) = await connections.run(session, PID)
            asked(shard_dsn, f"SELECT pg_terminate_backend({pid})")
            await until(session.hung_up)
            with pytest.raises(psycopg.OperationalError):
                await asyncio.wait_for(connections.run(session, PID), 5)
            session.close()

    run(heard())
