"""How long ended jobs are kept, by type and state, and what goes with them."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

import psycopg

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import JobFilter, Position
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.type_settings import Retention, RetentionRules
from services.mesh.store.purging import FROM_FIRST
from tests.integration.store_rig import (  # noqa: F401
    EPOCH,
    RANDOM,
    kept,
    new_job,
    opened,
    purge,
    rig_of_test,
)
from tests.integration.test_store_claim import _reads

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGINNING = Position(0, 0)


def old_id(age: timedelta) -> UUID:
    """As it was minted so long ago."""
    now_ms = int((time.time() - age.total_seconds()) * 1000)
    return new_job_id(RANDOM.randrange(4096), now_ms, RANDOM)


async def put_old(rig, count: int, age: timedelta = 10 * DAY, **fields) -> list[UUID]:
    jobs = [new_job(id=old_id(age), **fields) for _ in range(count)]
    await rig.store.put_jobs(jobs, EPOCH)
    return [job.id for job in jobs]


async def ended(rig, count: int, type: str = "t", fail: bool = False, **fields) -> list[UUID]:
    """Jobs that were made long ago, and end now."""
    ids = await put_old(rig, count, type=type, **fields)
    reports = []
    for job in (await rig.store.claim(type, "w1", count)).jobs:
        if fail:
            reports.append(Failed(job.id, job.fence, "w1", Failure("E", "no")))
        else:
            reports.append(Succeeded(job.id, job.fence, "w1"))
    await rig.say(*reports)
    return ids


async def left(rig, ids: list[UUID]) -> set[UUID]:
    return {record.id for record in await rig.store.get_jobs(ids)}


async def test_each_state_is_kept_for_its_own_time(rig):
    good, bad = await ended(rig, 3), await ended(rig, 2, fail=True)
    cancelled = await put_old(rig, 1)
    await rig.store.cancel(cancelled)
    rig.pass_time(3 * DAY)
    rules = RetentionRules(Retention(2 * DAY, 4 * DAY, 5 * DAY, 5 * DAY))
    assert await purge(rig.store, rules) == 3
    assert await left(rig, [*good, *bad, *cancelled]) == {*bad, *cancelled}
    rig.pass_time(DAY + HOUR)
    assert await purge(rig.store, rules) == 2
    assert await left(rig, [*good, *bad, *cancelled]) == {*cancelled}


async def test_a_type_may_say_less_or_more_than_the_mesh(rig):
    usual, brief = await ended(rig, 2), await ended(rig, 2, type="brief")
    brief += await ended(rig, 2, type="brief", namespace="m")
    long = await ended(rig, 2, type="long")
    rules = kept(2 * DAY, brief=Retention(succeeded=HOUR), long=Retention(succeeded=9 * DAY))
    rig.pass_time(2 * HOUR)
    assert await purge(rig.store, rules, limit=3) == 4
    assert not await left(rig, brief)
    rig.pass_time(3 * DAY)
    assert await purge(rig.store, rules) == 2
    assert await left(rig, [*usual, *long]) == {*long}


async def test_what_is_kept_for_no_time_goes_at_once(rig):
    ids = await ended(rig, 2, type="brief")
    assert await purge(rig.store, kept(DAY, brief=Retention(succeeded=timedelta(0)))) == 2
    assert not await left(rig, ids)


async def test_nothing_goes_while_the_order_of_events_names_it(rig):
    ids = await ended(rig, 3)
    rig.pass_time(2 * HOUR)
    rules = kept(HOUR)
    assert await purge(rig.store, rules, order=DAY) == 0
    page = await rig.store.events_since(BEGINNING, 100)
    assert len(page.events) == 12
    assert not page.truncated
    # Then the order first: a reader that was there is told, and the jobs go.
    assert await purge(rig.store, rules, order=HOUR) == 3
    assert (await rig.store.events_since(Position(1, 0), 100)).truncated
    assert not await left(rig, ids)


async def test_what_has_not_ended_stays_however_old(rig):
    waiting = await put_old(rig, 1, delay=1000 * DAY)
    running = await put_old(rig, 1)
    await rig.claim()
    rig.pass_time(100 * DAY)
    assert await purge(rig.store, kept(timedelta(0))) == 0
    assert await left(rig, [*waiting, *running]) == {*waiting, *running}


async def test_all_that_belongs_to_a_job_goes_with_it(rig):
    await ended(rig, 2, labels={"a": "b"}, idempotency_key=None)
    (keyed,) = await ended(rig, 1, idempotency_key="k", request_hash=b"1")
    await ended(rig, 2, fail=True)
    rig.pass_time(2 * DAY)
    assert await purge(rig.store, kept(DAY)) == 5
    for table in ("jobs", "event_rows", "job_terms", "commits", "queue", "in_flight"):
        assert rig.sql(f"SELECT count(*) FROM {table}") == [(0,)], table
    # The key lived as long as the job: the same one makes a new job now.
    job = new_job(idempotency_key="k", request_hash=b"2")
    (result,) = (await rig.store.put_jobs([job], EPOCH)).results
    assert result.job_id == job.id != keyed


async def test_a_parent_whose_end_is_still_to_be_told_stays(rig):
    parent, other = await ended(rig, 2)
    rig.sql(
        "CREATE TABLE IF NOT EXISTS ended_parents (job_id uuid PRIMARY KEY,"
        " look_time timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    rig.sql("INSERT INTO ended_parents (job_id) VALUES (%s)", parent)
    rig.pass_time(2 * DAY)
    assert await purge(rig.store, kept(DAY)) == 1
    assert await left(rig, [parent, other]) == {parent}
    rig.sql("DELETE FROM ended_parents")
    assert await purge(rig.store, kept(DAY)) == 1


async def test_names_of_schedules_go_with_their_last_job(rig):
    from uuid import uuid4

    alone, used = uuid4(), uuid4()
    for name in (alone, used):
        rig.sql("INSERT INTO schedule_names VALUES (%s, 'x')", name)
    (job,) = await ended(rig, 1)
    rig.sql("UPDATE jobs SET schedule_id = %s, nominal_time = now() WHERE id = %s", used, job)
    assert await rig.store.purge_names() == 1
    assert rig.sql("SELECT id FROM schedule_names") == [(used,)]


async def test_names_are_walked_on_from_where_the_last_call_stopped_and_round(rig):
    ids = [UUID(int=number) for number in range(1, 7)]
    for name in ids:
        rig.sql("INSERT INTO schedule_names VALUES (%s, 'x')", name)
    jobs = await put_old(rig, 4)
    for name, job in zip(ids, jobs, strict=False):
        rig.sql("UPDATE jobs SET schedule_id = %s, nominal_time = now() WHERE id = %s", name, job)
    # The first four are in use: a walk that always begins there never comes to the last two.
    assert [await rig.store.purge_names(limit=2) for _ in range(3)] == [0, 0, 2]
    rig.sql("UPDATE jobs SET schedule_id = NULL")
    assert [await rig.store.purge_names(limit=3) for _ in range(3)] == [0, 3, 1]
    assert rig.sql("SELECT id FROM schedule_names") == []


async def test_a_step_looks_at_few_and_the_walk_goes_on_where_it_stopped(rig):
    await ended(rig, 5)
    await put_old(rig, 5, delay=1000 * DAY)
    young = await rig.put(3)
    rig.pass_time(2 * DAY)
    await rig.store.purge_order(timedelta(0))
    steps = [await rig.store.purge_jobs(kept(DAY), limit=4) for _ in range(3)]
    assert [step.seen for step in steps] == [4, 4, 2]  # never the young ones
    assert [step.done for step in steps] == [False, False, True]
    assert sum(step.gone for step in steps) == 5
    assert await left(rig, young) == {*young}
    assert len(await rig.store.list_jobs(JobFilter(namespace="n"), None, 100)) == 8


async def test_a_walk_under_way_keeps_what_is_to_be_kept_for_longer_from_now_on(rig):
    jobs = await ended(rig, 4)
    rig.pass_time(2 * DAY)
    await rig.store.purge_order(timedelta(0))
    step = await rig.store.purge_jobs(kept(DAY), limit=2)
    assert (step.gone, step.done) == (2, False)
    while not step.done:
        step = await rig.store.purge_jobs(kept(30 * DAY), limit=2)
        assert step.gone == 0
    assert len(await left(rig, jobs)) == 2


async def test_what_was_purged_and_cannot_be_vacuumed_is_not_walked_again(rig):
    with psycopg.connect(rig.dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM jobs")
        rig.sql(
            "INSERT INTO jobs (id, namespace, type, state, version, create_time, due_time,"
            " first_due_time, end_time)"
            " SELECT uuidv7(interval '-10 days'), 'n', 't', 6, 2, t, t, t, t"
            " FROM generate_series(1, 5000), (SELECT now() - interval '10 days') AS l (t)"
        )
        await ended(rig, 1, type="u")  # stays, and is younger
        before = _reads(rig, "jobs")
        async with opened(rig.dsn) as keeper:
            assert await purge(keeper, kept(9 * DAY)) == 5000
            for _ in range(FROM_FIRST - 2):
                assert await purge(keeper, kept(9 * DAY)) == 0
        assert _reads(rig, "jobs") - before < 10 * 5000


async def test_a_job_whose_id_is_older_than_all_that_are_left_goes_too(rig):
    await put_old(rig, 1, age=5 * DAY, type="u")
    assert await purge(rig.store, kept(DAY)) == 0
    late = await ended(rig, 1)  # its id was minted by a clock that is behind
    rig.pass_time(2 * DAY)
    gone = [await purge(rig.store, kept(DAY)) for _ in range(FROM_FIRST)]
    assert sum(gone) == 1
    assert await left(rig, late) == set()


async def test_the_order_is_shortened_without_gaps(rig):
    """What begins where the last time ended must not have left anything behind."""
    for _ in range(3):
        await rig.put()
    rig.sql("UPDATE commits SET time = now() - interval '1 hour'")
    first = "(SELECT xid FROM commits ORDER BY xid LIMIT 1)"
    rig.sql(f"UPDATE commits SET time = now() WHERE xid = {first}")
    assert await rig.store.purge_order(timedelta(minutes=1)) == 0
    rig.sql("UPDATE commits SET time = now() - interval '1 hour'")
    assert await rig.store.purge_order(timedelta(minutes=1), limit=2) == 2
    assert await rig.store.purge_order(timedelta(minutes=1), limit=2) == 1
    assert rig.sql("SELECT count(*) FROM commits") == [(0,)]


async def test_the_order_is_not_shortened_past_a_transaction_that_has_not_ended(rig):
    with psycopg.connect(rig.dsn) as other:
        other.execute("UPDATE shard_meta SET epoch = epoch")  # takes a number
        await rig.put()
        assert await rig.store.purge_order(timedelta(0)) == 0
    assert await rig.store.purge_order(timedelta(0)) == 1
