"""Where looks at the small tables begin: past what is dead, and never past what lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from services.mesh.errors import DeadlineExceeded, ShardUnavailable
from services.mesh.jobs.model import JobFilter
from services.mesh.jobs.recurrence import CatchUp, CatchUpPolicy, Interval
from services.mesh.jobs.reports import HandedBack
from services.mesh.jobs.schedules import Definition, JobTemplate
from services.mesh.jobs.states import IN_FLIGHT, LIVE, JobState
from services.mesh.jobs.turns import Turn
from services.mesh.store.answers import JobChange
from services.mesh.store.base import Int8
from services.mesh.store.floors import MOST_LONG_AGO, FloorPace, FloorRules
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.settling import settle_params, settle_swept
from tests.integration.store_rig import opened, rig_of_test, transaction, until  # noqa: F401
from tests.integration.test_store_claim import _reads, long_gone
from tests.integration.test_store_schedules import new_schedule
from tests.integration.ties_rig import REPLACE, child_of, finish, keyed, store

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
Work = Callable[[], Awaitable[object]]
RAISING = {"deep": True, "everything": False, "most": Int8(MOST_LONG_AGO)}


async def raised(rig) -> None:
    """As a keeper does it: once for the mark, and once more when what was under way has ended."""
    async with opened(rig.dsn) as keeper:
        for _ in range(2):
            await keeper._fetch("raise_floors", RAISING)


def floors(rig) -> tuple[bool, bool]:
    """Whether they are above all that became due, or was dispatched, a minute ago."""
    minute = "now() - interval '1 minute'"
    (found,) = rig.sql(f"SELECT due_time > {minute}, dispatch_time > {minute} FROM floors")
    return found


async def aged(rig, span: timedelta = MINUTE) -> None:
    """What was put and claimed before is so old; and so are the floors, which were below it."""
    rig.pass_time(span)
    await raised(rig)
    assert floors(rig) == (True, True)


SCHEDULED = JobFilter("n", frozenset({JobState.SCHEDULED}))
LOOKS = {
    "pulse": lambda store: store.pulse(),
    "backlog": lambda store: store.backlog(),
    "claim": lambda store: store.claim("t", "w1", 10),
    "claim in turn": lambda store: store.claim("t", "w1", 10, turn=Turn()),
    "claim by keys": lambda store: store.claim_keyed("t", "w1", 10, 1, {}),
    "overdue": lambda store: store.overdue_dispatches(SECOND),
    "workers": lambda store: store.inflight_workers(),
    "rescue": lambda store: store.rescue(["w1"]),
    "list what lives": lambda store: store.list_jobs(JobFilter("n", LIVE), None, 10),
    "list what waits": lambda store: store.list_jobs(SCHEDULED, None, 10),
    "list what is in flight": lambda store: store.list_jobs(JobFilter("n", IN_FLIGHT), None, 10),
    "count what waits": lambda store: store.count_jobs(SCHEDULED),
}


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_cannot_be_vacuumed_is_not_walked(rig, name, analyzed):
    with long_gone(rig):
        await rig.put(type="slow")  # nobody takes it
        await rig.put(type="long")
        await rig.claim("w2", type="long")
        rig.pass_time(HOUR)
        if analyzed:
            rig.sql("VACUUM ANALYZE queue, in_flight")
        await raised(rig)
        await rig.put()
        async with opened(rig.dsn) as fresh:
            fresh._floors.looked(asyncio.get_running_loop().time(), 1.0)
            before = _reads(rig, "queue", "in_flight")
            await LOOKS[name](fresh)
        assert _reads(rig, "queue", "in_flight") - before < 500


async def test_work_below_the_floor_is_found_by_every_look(rig):
    (old,) = await rig.put(type="slow")
    (less_old,) = await rig.put(type="slow", priority=-3)
    await rig.put(type="long")
    await rig.claim("w2", type="long")
    await aged(rig)
    (young,) = await rig.put()
    rig.store._floors.looked(asyncio.get_running_loop().time(), 1.0)
    seen = await rig.store.pulse(dispatch=SECOND)
    assert (seen.due_types, seen.in_flight, seen.overdue) == (["slow", "t"], True, True)
    assert seen.slot.now - seen.due_since[0] > MINUTE
    loads = {stat.type: stat for stat in await rig.store.backlog()}
    assert {type_: (s.due, s.dispatched) for type_, s in loads.items()} == {
        "slow": (2, 0),
        "long": (0, 1),
        "t": (1, 0),
    }
    assert loads["slow"].oldest_age > MINUTE
    assert await rig.store.inflight_workers() == ["w2"]
    assert len(await rig.store.overdue_dispatches(SECOND)) == 1
    assert len(await rig.store.list_jobs(JobFilter("n", LIVE), None, 10)) == 4
    assert len(await rig.store.list_jobs(JobFilter("n", IN_FLIGHT), None, 10)) == 1
    assert await rig.store.count_jobs(SCHEDULED) == {JobState.SCHEDULED: 3}
    assert [job.id for job in await rig.claim(limit=5, type="slow")] == [old, less_old]
    assert [job.id for job in await rig.claim(limit=5)] == [young]
    assert len((await rig.store.rescue(["w2"])).events) == 1


async def test_floors_that_were_raised_again_still_know_what_is_older(rig):
    await rig.put(type="slow")
    await rig.put(type="long")
    await rig.claim("w2", type="long")
    await aged(rig)
    await raised(rig)
    await raised(rig)
    assert len(await rig.claim(type="slow")) == 1
    assert await rig.store.inflight_workers() == ["w1", "w2"]
    await raised(rig)
    assert rig.sql("SELECT types FROM floors") == [({},)], "none is left"


async def swept(rig, job) -> None:
    await rig.store.sweep([(job.id, job.fence)])


async def handed_back(rig, job) -> None:
    await rig.say(HandedBack(job.id, job.fence, "w1"))


async def rescued(rig, job) -> None:
    await rig.store.rescue(["w1"])


@pytest.mark.parametrize("comes_back", [swept, handed_back, rescued])
async def test_a_job_that_comes_back_with_an_old_due_time_is_claimed(rig, comes_back):
    job = await rig.claimed()
    await aged(rig)
    await comes_back(rig, job)
    assert [again.id for again in await rig.claim()] == [job.id]
    assert floors(rig) == (True, True), "it concerns its type only"


async def test_a_late_run_of_a_schedule_is_claimed(rig):
    catch_up = CatchUpPolicy(CatchUp.ALL, window=HOUR)
    definition = Definition((Interval(MINUTE),), JobTemplate("t"), catch_up=catch_up)
    await rig.store.put_schedule(new_schedule(definition=definition))
    rig.sql("UPDATE schedules SET next_time = next_time - interval '5 minutes'")
    await raised(rig)
    made = (await rig.store.fire_due_schedules()).fired
    assert made > 1
    assert len(await rig.claim(limit=10)) == made


async def test_who_raises_the_floors_does_not_pass_a_job_that_is_just_coming_back(rig):
    """It does not see that job; its waiting for the other's commit must not end in a raise."""
    job = await rig.claimed()
    rig.pass_time(MINUTE)
    await rig.store._fetch("raise_floors", RAISING)
    connections, settle = rig.store._connections, rig.store._queries["settle"]
    async with connections.transaction() as session:
        params = settle_params([settle_swept(job.id, job.fence)])
        assert await connections.run(session, settle, params)
        # All that began before the mark has ended, but for what is under way since.
        rig_raise = asyncio.create_task(rig.store._fetch("raise_floors", RAISING), name="raise")
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await until(lambda: rig.sql(waits) != [(0,)] or rig_raise.done())
    await rig_raise
    assert [again.id for again in await rig.claim()] == [job.id]


async def test_no_floor_passes_what_a_transaction_is_just_putting_there(rig):
    (job,) = await rig.put()
    with psycopg.connect(rig.dsn) as other:
        # As if it had been put by a transaction that has been under way for a minute.
        other.execute("UPDATE queue SET due_time = due_time - interval '1 minute'")
        other.execute("UPDATE jobs SET due_time = due_time - interval '1 minute'")
        await raised(rig)
        await raised(rig)
        other.commit()
    assert [found.id for found in await rig.claim()] == [job]


async def changes(rig) -> tuple[UUID, Work, str]:
    (job,) = await rig.put(delay=HOUR)
    return job, lambda: rig.store.change(job, "n", JobChange(move=True)), "queue"


async def replaces(rig) -> tuple[UUID, Work, str]:
    job = keyed("k", delay=HOUR)
    await store(rig, job)
    return job.id, lambda: store(rig, keyed("k", REPLACE)), "queue"


async def releases(rig) -> tuple[UUID, Work, str]:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    await finish(rig, parent)
    (ended,) = await rig.store.take_ended_parents()
    return child, lambda: rig.store.release([ended]), "waits"


@pytest.mark.parametrize("prepared", [changes, replaces, releases])
async def test_no_floor_passes_who_has_read_the_clock_and_waits_for_a_row(rig, prepared):
    """It waits for two rows: the mark is made during the first wait, the raise in the second."""
    job, work, table = await prepared(rig)
    with psycopg.connect(rig.dsn) as first, psycopg.connect(rig.dsn) as second:
        locked = lock(first, f"SELECT 1 FROM {table} FOR UPDATE")
        working = asyncio.create_task(work(), name="work")
        await until(lambda: rig.sql(WAITS, locked))
        ((waited,),) = rig.sql("SELECT clock_timestamp()")
        await rig.store._fetch("raise_floors", RAISING)
        locked = lock(second, f"SELECT 1 FROM jobs WHERE id = '{job}' FOR UPDATE")
        first.commit()
        await until(lambda: rig.sql(WAITS, locked))
        await rig.store._fetch("raise_floors", RAISING)
        ((passed,),) = rig.sql("SELECT due_time > '-infinity' FROM floors")
        second.commit()
    await working
    assert not passed or (await rig.get(job)).due_time > waited


WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid::text = %s"


def lock(connection, statement: str) -> str:
    """Take locks, and the number of the transaction that others wait for then."""
    connection.execute(statement.encode())
    return connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0]


async def test_what_an_older_version_puts_below_the_floor_is_found_by_a_look_at_everything(rig):
    await aged(rig)
    await rig.put()
    await rig.put(type="long")
    await rig.claim("w2", type="long")
    rig.pass_time(MINUTE)  # tells no floor
    assert await rig.claim() == []
    async with opened(rig.dsn) as fresh:
        seen = await fresh.pulse(dispatch=SECOND)
    assert (seen.due_types, seen.in_flight, seen.overdue) == (["t"], True, True)
    assert len(await rig.claim()) == 1
    assert await rig.store.inflight_workers() == ["w1", "w2"]


async def test_what_is_in_flight_below_the_floor_is_found_beside_an_older_one_that_is_noted(rig):
    await rig.put(type="long")
    await rig.claim("w1", type="long")
    await aged(rig, HOUR)
    await rig.put()
    await rig.claim("w2")
    earlier = "UPDATE in_flight SET dispatch_time = dispatch_time - %s WHERE worker_id = 'w2'"
    rig.sql(earlier, MINUTE)  # as after a clock was set back: no floor knows of it
    assert await rig.store.inflight_workers() == ["w1"]
    async with opened(rig.dsn) as fresh:
        await fresh.pulse()
    assert await rig.store.inflight_workers() == ["w1", "w2"]
    assert len((await rig.store.rescue(["w2"])).events) == 1


async def test_of_more_attempts_that_last_than_can_be_noted_none_is_lost(rig):
    many = MOST_LONG_AGO + 50
    await rig.put(many)
    await rig.claim(limit=many)
    await rig.put(type="other")
    await rig.claim("w2", type="other")
    rig.pass_time(MINUTE)
    rig.sql(
        "UPDATE in_flight SET dispatch_time = dispatch_time + interval '50 s'"
        " WHERE worker_id = 'w2'"
    )
    await raised(rig)
    assert floors(rig)[0]
    held = {stat.type: stat.dispatched for stat in await rig.store.backlog()}
    assert held == {"t": many, "other": 1}
    assert rig.sql("SELECT cardinality(long_ago) > 0, dispatch_time > '-infinity' FROM floors") == [
        (True, True)
    ]


async def test_a_keeper_raises_the_floors_where_much_is_dead(rig):
    with long_gone(rig):
        rig.sql("SELECT pg_stat_force_next_flush()")
        async with opened(rig.dsn) as fresh:
            await fresh.pulse()
            marks = rig.sql("SELECT mark_time > now() - interval '1 minute' FROM floors")
            assert marks == [(True,)]
            await fresh.pulse()
            assert rig.sql("SELECT version FROM floors") == [(1,)], "not with every look"


def warnings(caplog) -> list[str]:
    return [record.action for record in caplog.records if record.levelname == "WARNING"]


async def test_a_look_holds_though_the_floors_cannot_be_lowered(rig, caplog):
    await aged(rig)
    await rig.put()
    rig.pass_time(MINUTE)
    async with opened(rig.dsn, lock_timeout=0.05) as fresh:
        with transaction(rig.dsn) as other:
            other.execute("SELECT FROM floors FOR UPDATE")
            assert (await fresh.pulse()).due_types == ["t"]
            assert warnings(caplog) == ["floors_not_lowered"]
        assert await rig.claim() == []
        await fresh.pulse()
        assert len(await rig.claim()) == 1, "the next look said it"


async def test_who_raises_the_floors_waits_for_nobody(rig):
    with transaction(rig.dsn) as other:
        other.execute("SELECT FROM floors FOR UPDATE")
        async with opened(rig.dsn, lock_timeout=0.05) as fresh:
            await fresh._fetch("raise_floors", RAISING)
    assert rig.sql("SELECT version FROM floors") == [(0,)]


async def test_a_look_holds_though_the_floors_cannot_be_raised(rig, caplog):
    rig.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'held' USING ERRCODE = '55P03'; END $$"
    )
    rig.sql("CREATE TRIGGER held BEFORE UPDATE ON floors EXECUTE FUNCTION refuse()")
    await rig.put()
    rig.store._floors = FloorPace(FloorRules(dead=0))
    assert (await rig.store.pulse()).due_types == ["t"]
    assert warnings(caplog) == ["floors_not_raised"]


async def test_a_look_says_how_long_it_walked(rig):
    with long_gone(rig):
        async with opened(rig.dsn) as fresh:
            everything = await fresh.pulse()
            assert everything.took > 0.002
            fresh._floors.looked(asyncio.get_running_loop().time(), 1.0)
            await raised(rig)
            assert (await fresh.pulse()).took < everything.took


@contextmanager
def endless_for(rig, type_: str) -> Iterator[None]:
    """Looks that come by work of this type do not come to an end."""
    ((before,),) = rig.sql("SELECT pg_get_functiondef('floor_of'::regproc)")
    rig.sql(
        "CREATE OR REPLACE FUNCTION floor_of(f floors, type text) RETURNS timestamptz"
        f" LANGUAGE plpgsql STABLE AS $$ BEGIN PERFORM pg_sleep(60) WHERE type = '{type_}';"
        " RETURN least(f.due_time, (f.types ->> type)::timestamptz); END $$"
    )
    yield
    rig.sql(before)


async def test_a_look_at_everything_that_takes_too_long_is_followed_by_one_from_the_floors(rig):
    await aged(rig)
    await rig.put(type="below")
    rig.pass_time(MINUTE)
    await rig.put()
    with endless_for(rig, "below"):
        async with opened(rig.dsn, statement_timeout=1.0, lock_timeout=1.0) as fresh:
            with pytest.raises(DeadlineExceeded):
                await fresh.pulse()
            assert (await fresh.pulse()).due_types == ["t"]
    async with opened(rig.dsn) as fresh:
        assert (await fresh.pulse()).due_types == ["below", "t"]


async def test_where_a_deep_look_takes_too_long_the_slot_can_be_read(rig):
    await rig.put(type="endless")
    await rig.put(delay=MINUTE)
    with endless_for(rig, "endless"):
        async with opened(rig.dsn, statement_timeout=1.0, lock_timeout=1.0) as fresh:
            fresh._floors.looking(asyncio.get_running_loop().time())
            with pytest.raises(DeadlineExceeded):
                await fresh.pulse()
            seen = await fresh.pulse(None, HOUR, deep=False)
            assert [due.type for due in seen.slot.due_times] == ["t"]


async def test_a_look_at_a_shard_that_is_away_is_at_everything_again_when_it_is_back(rig):
    store = PostgresShard("s0", rig.dsn)
    with pytest.raises(ShardUnavailable):
        await store.pulse()
    assert store._floors.everything(asyncio.get_running_loop().time())


async def test_a_shard_at_rest_writes_nothing_for_its_floors(rig):
    await rig.put()
    await rig.store.pulse()
    assert rig.sql("SELECT version FROM floors") == [(0,)]


async def test_a_mark_of_another_server_is_set_anew(rig):
    rig.sql("UPDATE floors SET mark_xid = '9000000000', mark_time = %s", datetime.now(UTC))
    await raised(rig)
    (found,) = rig.sql("SELECT mark_xid < '9000000000', due_time > '-infinity' FROM floors")
    assert found == (True, True)


AHEAD = "now() + interval '1 hour'"


def set_back(rig, floor: str) -> None:
    """As if the shard's clock had been set back by an hour since the floors were looked at."""
    rig.sql(
        f"UPDATE floors SET due_time = {floor}, dispatch_time = {floor}, mark_time = {AHEAD},"
        " mark_xid = '1'"
    )


async def test_floors_that_lie_in_the_future_come_down_when_they_are_raised(rig):
    set_back(rig, AHEAD)
    await raised(rig)
    assert rig.sql("SELECT due_time < now(), dispatch_time < now() FROM floors") == [(True, True)]
    await rig.put()
    assert len(await rig.claim()) == 1
    assert await rig.store.inflight_workers() == ["w1"]


async def test_floors_that_lie_in_the_future_come_down_when_a_look_finds_something_below(rig):
    set_back(rig, AHEAD)
    await rig.put()
    assert await rig.claim() == []
    async with opened(rig.dsn) as fresh:
        await fresh.pulse()
    assert len(await rig.claim()) == 1
    await rig.put(type="other")
    assert len(await rig.claim("w2", type="other")) == 1, "of a type that the look did not find"
    assert await rig.store.inflight_workers() == ["w1", "w2"]


async def test_a_mark_in_the_future_raises_no_floor(rig):
    set_back(rig, "'-infinity'")
    await rig.store._fetch("raise_floors", RAISING)
    lowest = "due_time = '-infinity' AND dispatch_time = '-infinity'"
    assert rig.sql(f"SELECT {lowest}, mark_time <= now() FROM floors") == [(True, True)]
