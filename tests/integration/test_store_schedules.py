"""Schedules: one job per nominal time, whoever fires, and definitions that can change under way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg

from services.mesh.jobs.ids import bucket_for_key, bucket_of, new_job_id
from services.mesh.jobs.model import JobFilter, ObjectRef, Payload, Timeouts
from services.mesh.jobs.recurrence import CatchUp, CatchUpPolicy, Interval
from services.mesh.jobs.retry import Backoff, RetryPolicy
from services.mesh.jobs.schedules import Definition, JobTemplate, NewSchedule, SchedulePut
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import JobChange
from tests.integration.store_rig import new_job, opened, rig_of_test  # noqa: F401

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
HOURLY = Definition((Interval(HOUR),), JobTemplate("tick"))


def new_schedule(name: str = "daily", definition: Definition = HOURLY, **fields) -> NewSchedule:
    bucket = bucket_for_key("n", name)
    schedule_id = new_job_id(bucket, 0, new_job_random())
    return NewSchedule(schedule_id, "n", name, definition, **fields)


def new_job_random():
    from tests.integration.store_rig import RANDOM

    return RANDOM


async def due(rig, definition: Definition = HOURLY, late: timedelta = SECOND, name: str = "daily"):
    """A schedule whose next nominal time has come `late` ago, by moving it there."""
    _, record = await rig.store.put_schedule(new_schedule(name, definition))
    every = definition.recurrences[0].every
    phase = timedelta(0)
    now = (await rig.store.probe()).now
    # Shift the rule so that a nominal time lies exactly `late` before now.
    phase = (now - late - datetime(1970, 1, 1, tzinfo=UTC)) % every
    moved = replace(definition, recurrences=(Interval(every, phase),))
    _, record = await rig.store.put_schedule(replace(new_schedule(name), definition=moved), True)
    rig.sql("UPDATE schedules SET next_time = %s WHERE id = %s", now - late, record.id)
    return await rig.store.get_schedule("n", name)


async def jobs_of(rig, schedule) -> list:
    wanted = JobFilter("n", schedule_id=schedule.id)
    return await rig.store.list_jobs(wanted, None, 1000, payloads=True)


async def test_a_schedule_reads_back_as_it_was_written(rig):
    definition = Definition(
        (Interval(HOUR, MINUTE), Interval(5 * MINUTE)),
        JobTemplate(
            "tick",
            Payload.inline(b"in", "x/y"),
            3,
            Timeouts(run=SECOND),
            RetryPolicy(Backoff.FIXED, 3),
            {"a": "b"},
        ),
        CatchUpPolicy(CatchUp.ALL, 2 * HOUR, MINUTE),
        start_time=datetime(2090, 1, 1, tzinfo=UTC),
        end_time=datetime(2091, 1, 1, tzinfo=UTC),
        max_runs=7,
        jitter=SECOND,
    )
    outcome, record = await rig.store.put_schedule(new_schedule("a", definition))
    assert outcome is SchedulePut.CREATED
    assert record.definition == definition
    assert record == await rig.store.get_schedule("n", "a")
    assert record.next_time == datetime(2090, 1, 1, tzinfo=UTC)
    stored = replace(definition.template, input=Payload.stored(ObjectRef("n/k", 1)))
    _, record = await rig.store.put_schedule(
        new_schedule("b", replace(definition, template=stored))
    )
    assert record.definition.template == stored


async def test_the_first_nominal_time_is_after_creation(rig):
    _, record = await rig.store.put_schedule(new_schedule())
    assert record.create_time < record.next_time <= record.create_time + HOUR
    assert record.next_time == record.next_time.replace(minute=0, second=0, microsecond=0)


async def test_a_name_is_taken_once(rig):
    await rig.store.put_schedule(new_schedule())
    outcome, record = await rig.store.put_schedule(new_schedule())
    assert (outcome, record.version) == (SchedulePut.EXISTS, 1)
    outcomes = await asyncio.gather(
        *(rig.store.put_schedule(new_schedule("race")) for _ in range(5))
    )
    assert [o for o, _ in outcomes].count(SchedulePut.CREATED) == 1


async def test_replacing_keeps_the_history_and_checks_the_version(rig):
    schedule = await due(rig)
    await rig.store.fire_due_schedules()
    before = await rig.store.get_schedule("n", "daily")
    outcome, _ = await rig.store.put_schedule(new_schedule(), True, before.version + 1)
    assert outcome is SchedulePut.ETAG_MISMATCH
    outcome, after = await rig.store.put_schedule(new_schedule(), True, before.version)
    assert outcome is SchedulePut.REPLACED
    assert (after.id, after.runs, after.last_job_id) == (schedule.id, 1, before.last_job_id)
    assert after.version == before.version + 1
    assert len(await jobs_of(rig, schedule)) == 1
    outcome, none = await rig.store.put_schedule(new_schedule("other"), True, 1)
    assert (outcome, none) == (SchedulePut.NOT_FOUND, None)


async def test_a_due_schedule_makes_a_job_from_its_template(rig):
    template = JobTemplate(
        "tick",
        Payload.inline(b"in"),
        4,
        Timeouts(run=SECOND),
        RetryPolicy(Backoff.FIXED, 2),
        {"a": "b"},
    )
    schedule = await due(rig, replace(HOURLY, template=template))
    answer = await rig.store.fire_due_schedules()
    assert (answer.fired, answer.missed) == (1, 0)
    (job,) = await jobs_of(rig, schedule)
    assert answer.events == await rig.events(job.id)
    assert (job.state, job.type, job.priority) == (JobState.SCHEDULED, "tick", 4)
    assert (job.input, job.retry, job.labels) == (template.input, template.retry, template.labels)
    assert (job.schedule_id, job.nominal_time) == (schedule.id, schedule.next_time)
    assert bucket_of(job.id) == bucket_of(schedule.id)
    after = await rig.store.get_schedule("n", "daily")
    assert after.next_time == schedule.next_time + HOUR
    assert (after.last_time, after.last_job_id, after.runs) == (schedule.next_time, job.id, 1)
    assert (await rig.store.fire_due_schedules()).fired == 0
    (claimed,) = await rig.claim(type="tick")
    assert (claimed.id, claimed.due_time) == (job.id, schedule.next_time)


async def test_two_schedulers_make_one_job_per_nominal_time(rig):
    async with opened(rig.dsn) as other:
        for round_ in range(5):
            schedules = [await due(rig, name=f"s{round_}-{n}") for n in range(6)]
            await asyncio.gather(
                *(store.fire_due_schedules(limit=4) for store in (rig.store, other) * 4)
            )
            for schedule in schedules:
                assert len(await jobs_of(rig, schedule)) == 1


async def test_a_nominal_time_that_comes_up_again_makes_no_second_job(rig):
    schedule = await due(rig)
    await rig.store.fire_due_schedules()
    rig.sql("UPDATE schedules SET next_time = %s", schedule.next_time)
    answer = await rig.store.fire_due_schedules()
    assert (answer.fired, answer.events) == (0, [])
    assert len(await jobs_of(rig, schedule)) == 1
    assert (await rig.store.get_schedule("n", "daily")).next_time == schedule.next_time + HOUR


async def test_after_an_outage_the_newest_missed_time_runs_once(rig):
    definition = replace(HOURLY, recurrences=(Interval(SECOND),))
    schedule = await due(rig, definition, late=600 * SECOND)
    answer = await rig.store.fire_due_schedules()
    assert answer.fired == 1
    assert 599 <= answer.missed <= 660
    (job,) = await jobs_of(rig, schedule)
    assert job.nominal_time >= schedule.next_time + 600 * SECOND


async def test_catching_up_with_all_goes_in_bounded_steps(rig):
    definition = Definition((Interval(SECOND),), JobTemplate("tick"), CatchUpPolicy(CatchUp.ALL))
    schedule = await due(rig, definition, late=250 * SECOND)
    fired = [(await rig.store.fire_due_schedules()).fired for _ in range(3)]
    assert fired[:2] == [100, 100]
    assert fired[2] >= 51
    nominal = [job.nominal_time for job in await jobs_of(rig, schedule)]
    assert len(nominal) == len(set(nominal)) == sum(fired)


async def test_a_schedule_ends_after_its_last_run(rig):
    schedule = await due(rig, replace(HOURLY, max_runs=1))
    assert (await rig.store.fire_due_schedules()).fired == 1
    assert (await rig.store.get_schedule("n", "daily")).next_time is None
    rig.sql("UPDATE schedules SET next_time = now() - interval '1 hour'")
    assert (await rig.store.fire_due_schedules()).fired == 0
    assert len(await jobs_of(rig, schedule)) == 1


async def test_a_schedule_makes_nothing_at_or_after_its_end(rig):
    definition = replace(HOURLY, end_time=datetime(2020, 1, 1, tzinfo=UTC))
    _, record = await rig.store.put_schedule(new_schedule("over", definition))
    assert record.next_time is None


async def test_jitter_moves_the_due_time_not_the_nominal_time(rig):
    schedule = await due(rig, replace(HOURLY, jitter=HOUR))
    await rig.store.fire_due_schedules()
    (job,) = await jobs_of(rig, schedule)
    assert job.nominal_time == schedule.next_time
    assert job.due_time < schedule.next_time + HOUR + MINUTE


async def test_a_paused_schedule_makes_nothing_and_does_not_catch_up_when_resumed(rig):
    await due(rig)
    paused = await rig.store.pause_schedule("n", "daily", True, "holiday")
    assert (paused.paused, paused.pause_note) == (True, "holiday")
    assert (await rig.store.fire_due_schedules()).fired == 0
    resumed = await rig.store.pause_schedule("n", "daily", False)
    assert (resumed.paused, resumed.pause_note) == (False, "")
    assert resumed.next_time > (await rig.store.probe()).now
    assert (await rig.store.fire_due_schedules()).fired == 0
    assert await rig.store.pause_schedule("n", "nobody", True) is None


async def test_deleting_a_schedule_leaves_its_jobs(rig):
    schedule = await due(rig)
    await rig.store.fire_due_schedules()
    assert await rig.store.delete_schedule("n", "daily")
    assert not await rig.store.delete_schedule("n", "daily")
    assert await rig.store.get_schedule("n", "daily") is None
    assert len(await jobs_of(rig, schedule)) == 1


async def test_schedules_are_listed_by_name_in_pages(rig):
    for name in ("c", "a", "d", "b"):
        await rig.store.put_schedule(new_schedule(name))
    first = await rig.store.list_schedules("n", "", 3)
    assert [record.name for record in first] == ["a", "b", "c"]
    rest = await rig.store.list_schedules("n", "c", 3)
    assert [record.name for record in rest] == ["d"]
    assert await rig.store.list_schedules("m", "", 3) == []


async def test_the_next_run_of_a_schedule_is_part_of_the_load(rig):
    _, record = await rig.store.put_schedule(new_schedule())
    (stat,) = await rig.store.backlog()
    assert (stat.type, stat.due, stat.dispatched) == ("tick", 0, 0)
    assert stat.next_due_time == record.next_time
    rig.sql("UPDATE schedules SET check_time = now() - interval '1 second'")
    (stat,) = await rig.store.backlog()
    assert stat.next_due_time == record.next_time
    rig.sql("UPDATE schedules SET paused = true")
    assert await rig.store.backlog() == []


async def test_a_run_that_is_due_belongs_to_the_firing_of_schedules_and_not_to_the_load(rig):
    await due(rig)
    assert await rig.store.backlog() == []


async def test_many_schedules_are_not_walked_to_find_the_load(rig):
    await rig.store.put_schedule(new_schedule())
    rig.sql(
        "INSERT INTO schedules"
        " (id, namespace, name, definition, next_time, create_time, update_time)"
        " SELECT gen_random_uuid(), 'n', 'many' || g, definition, now() + g * interval '1 day',"
        " now(), now() FROM schedules, generate_series(1, 20000) g"
    )
    for analyzed in (False, True):
        if analyzed:
            rig.sql("ANALYZE schedules")
        (stat,) = await rig.store.backlog()
        assert stat.next_due_time < (await rig.store.probe()).now + HOUR
        statement = rig.store._queries["backlog"].sql.replace(")b", ")s")
        params = {"cap": 100, "deep": True, "everything": False}
        with psycopg.connect(rig.dsn) as connection:
            explained = connection.execute(
                f"EXPLAIN (ANALYZE, SUMMARY OFF) {statement}".encode(), params
            )
            plan = "\n".join(row[0] for row in explained)
        assert "Seq Scan on schedules" not in plan, plan
        assert "schedules_look" in plan, plan


async def test_a_late_run_of_a_schedule_has_its_total_time_after_a_change_too(rig):
    template = JobTemplate("t", timeouts=Timeouts(total=HOUR))
    catch_up = CatchUpPolicy(CatchUp.ALL, 9 * HOUR)
    definition = Definition((Interval(24 * HOUR),), template, catch_up)
    schedule = await due(rig, definition, late=2 * HOUR)
    await rig.store.fire_due_schedules()
    (job,) = await jobs_of(rig, schedule)
    await rig.store.change(job.id, "n", JobChange(priority=3))
    assert await rig.store.expire_overdue() == []
    assert [claimed.id for claimed in await rig.claim(type="t")] == [job.id]
