"""What schedules make: cron, overlap, failures, triggers, backfills, and edits in between."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from services.mesh.jobs.cron import Cron
from services.mesh.jobs.overlap import Overlap
from services.mesh.jobs.recurrence import CatchUp, CatchUpPolicy, Interval
from services.mesh.jobs.reports import Failed, Started, Succeeded
from services.mesh.jobs.retry import Failure, RetryPolicy
from services.mesh.jobs.schedules import Definition, JobTemplate
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import CancelOutcome
from services.mesh.testing.waiting import eventually
from tests.integration.store_rig import opened, rig_of_test  # noqa: F401
from tests.integration.test_store_schedules import jobs_of, new_schedule

SECOND, MINUTE, HOUR, DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)
EVERY_MINUTE = Definition((Cron("* * * * *"),), JobTemplate("t"))


@pytest.fixture(autouse=True)
async def well_within_a_minute():
    """These tests reckon in minutes of the clock: none begins shortly before one ends."""
    await eventually(lambda: time.time() % 60 < 48)


async def scheduled(rig, definition: Definition = EVERY_MINUTE, name: str = "daily"):
    """A schedule that is due for the newest full minute."""
    _, record = await rig.store.put_schedule(new_schedule(name, definition))
    return await come_due(rig, record)


async def come_due(rig, record):
    """Its next time is the newest full minute again; runs of before are an earlier minute's."""
    rig.sql(
        "UPDATE jobs SET nominal_time = nominal_time - interval '1 day' WHERE schedule_id = %s",
        record.id,
    )
    rig.sql(
        "UPDATE schedules SET next_time = date_trunc('minute', clock_timestamp()) WHERE id = %s",
        record.id,
    )
    return await rig.store.get_schedule(record.namespace, record.name)


async def check_now(rig) -> None:
    rig.sql("UPDATE schedules SET check_time = now() WHERE check_time IS NOT NULL")


async def end(rig, report=Succeeded, **fields) -> None:
    (job,) = await rig.claim()
    if report is Failed:
        await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "no"), **fields))
    else:
        await rig.say(Succeeded(job.id, job.fence, "w1"))


async def test_a_run_is_due_at_its_nominal_time_and_names_its_schedule(rig):
    schedule = await scheduled(rig)
    assert (await rig.store.fire_due_schedules()).fired == 1
    (job,) = await jobs_of(rig, schedule)
    assert job.due_time == job.nominal_time == schedule.next_time
    assert job.first_due_time >= job.create_time
    assert job.schedule == "daily"
    await rig.store.delete_schedule("n", "daily")
    assert (await rig.get(job.id)).schedule == "daily"
    (claimed,) = await rig.claim()
    assert claimed.id == job.id


async def test_two_schedulers_make_one_cron_job_per_nominal_time(rig):
    many = [await scheduled(rig, name=f"c{n}") for n in range(30)]
    async with opened(rig.dsn) as other:
        answers = await asyncio.gather(
            *(store.fire_due_schedules(7) for _ in range(5) for store in (rig.store, other))
        )
    assert sum(answer.fired for answer in answers) == 30
    for schedule in many:
        assert [job.nominal_time for job in await jobs_of(rig, schedule)] == [schedule.next_time]


async def test_a_cron_time_that_comes_up_again_makes_no_second_job(rig):
    schedule = await scheduled(rig)
    await rig.store.fire_due_schedules()
    rig.sql("UPDATE schedules SET next_time = %s", schedule.next_time)
    assert (await rig.store.fire_due_schedules()).fired == 0
    (job,) = await jobs_of(rig, schedule)
    after = await rig.store.get_schedule("n", "daily")
    assert (after.runs, after.last_job_id) == (1, job.id)


@pytest.mark.parametrize(
    ("policy", "jobs", "waiting", "missed"),
    [
        (Overlap.ALLOW_ALL, 3, 0, 0),
        (Overlap.SKIP, 1, 0, 2),
        (Overlap.BUFFER_ONE, 1, 1, 1),
        (Overlap.BUFFER_ALL, 1, 2, 0),
        (Overlap.CANCEL_OTHER, 3, 0, 0),
    ],
)
async def test_runs_that_overlap_follow_the_policy(rig, policy, jobs, waiting, missed):
    schedule = await scheduled(rig, replace(EVERY_MINUTE, overlap=policy))
    await rig.store.fire_due_schedules()
    for late in (1, 2):
        rig.sql(
            "UPDATE schedules SET next_time = next_time - %s, check_time = NULL, waiting = (SELECT"
            " coalesce(array_agg(w - %s), '{}') FROM unnest(waiting) w)",
            *[MINUTE * late] * 2,
        )
        await come_due(rig, schedule)
        await rig.store.fire_due_schedules()
    made = await jobs_of(rig, schedule)
    after = await rig.store.get_schedule("n", "daily")
    assert (len(made), len(after.waiting), after.missed) == (jobs, waiting, missed)
    alive = [job for job in made if job.state is JobState.SCHEDULED]
    assert len(alive) == (1 if policy is Overlap.CANCEL_OTHER else jobs)


async def test_what_waits_runs_when_the_one_before_has_ended_one_at_a_time(rig):
    schedule = await scheduled(rig, replace(EVERY_MINUTE, overlap=Overlap.BUFFER_ALL))
    await rig.store.fire_due_schedules()
    times = [datetime(2026, 1, 1, 0, n, tzinfo=UTC) for n in (1, 2)]
    rig.sql("UPDATE schedules SET waiting = %s, check_time = now()", times)
    assert (await rig.store.fire_due_schedules()).fired == 0
    for expected in times:
        await end(rig)
        await check_now(rig)
        assert (await rig.store.fire_due_schedules()).fired == 1
        made = await jobs_of(rig, schedule)
        assert made[0].nominal_time == expected
        await check_now(rig)
        assert (await rig.store.fire_due_schedules()).fired == 0
    after = await rig.store.get_schedule("n", "daily")
    assert (after.waiting, after.runs) == ((), 3)


async def test_a_run_that_makes_way_is_cancelled_and_its_worker_told(rig):
    schedule = await scheduled(rig, replace(EVERY_MINUTE, overlap=Overlap.CANCEL_OTHER))
    await rig.store.fire_due_schedules()
    (held,) = await rig.claim()
    await rig.say(Started(held.id, held.fence, "w1"))
    await come_due(rig, schedule)
    answer = await rig.store.fire_due_schedules()
    (stopped,) = answer.cancelled
    assert (stopped.job_id, stopped.worker_id, stopped.fence) == (held.id, "w1", held.fence)
    assert stopped.outcome is CancelOutcome.CANCELLED
    assert answer.fired == 1
    assert (await rig.get(held.id)).state is JobState.CANCELLED
    assert (await rig.store.get_schedule("n", "daily")).open_jobs == (
        (await jobs_of(rig, schedule))[0].id,
    )


async def test_a_run_makes_no_way_for_itself(rig):
    schedule = await scheduled(rig, replace(EVERY_MINUTE, overlap=Overlap.CANCEL_OTHER))
    now = (await rig.store.probe()).now
    backfilled = await rig.store.backfill_schedule("n", "daily", schedule.next_time, now)
    assert backfilled.made == 1, "before anybody fired it"
    answer = await rig.store.fire_due_schedules()
    assert (answer.fired, answer.cancelled) == (0, [])
    (job,) = await jobs_of(rig, schedule)
    assert job.state is JobState.SCHEDULED
    after = await rig.store.get_schedule("n", "daily")
    assert after.open_jobs == (job.id,), "the next run is to cancel it"
    assert after.next_time == schedule.next_time + MINUTE


async def test_a_failed_run_pauses_the_schedule_with_a_note(rig):
    template = replace(EVERY_MINUTE.template, retry=RetryPolicy(max_attempts=1))
    definition = replace(EVERY_MINUTE, template=template, pause_on_failure=True)
    schedule = await scheduled(rig, definition)
    await rig.store.fire_due_schedules()
    await end(rig, Failed)
    await check_now(rig)
    assert (await rig.store.fire_due_schedules()).fired == 0
    after = await rig.store.get_schedule("n", "daily")
    (job,) = await jobs_of(rig, schedule)
    assert (after.paused, after.pause_note) == (True, f"its run {job.id} failed")
    assert after.version == schedule.version + 1
    await come_due(rig, schedule)
    assert (await rig.store.fire_due_schedules()).fired == 0
    resumed = await rig.store.pause_schedule("n", "daily", False)
    assert (resumed.paused, resumed.open_jobs) == (False, ())
    await come_due(rig, schedule)
    assert (await rig.store.fire_due_schedules()).fired == 1


async def test_a_run_that_succeeds_pauses_nothing(rig):
    await scheduled(rig, replace(EVERY_MINUTE, pause_on_failure=True))
    await rig.store.fire_due_schedules()
    await end(rig)
    await check_now(rig)
    await rig.store.fire_due_schedules()
    after = await rig.store.get_schedule("n", "daily")
    assert (after.paused, after.open_jobs) == (False, ())


async def test_the_last_run_may_wait_for_its_turn(rig):
    definition = replace(EVERY_MINUTE, overlap=Overlap.BUFFER_ONE, max_runs=2)
    schedule = await scheduled(rig, definition)
    await rig.store.fire_due_schedules()
    await come_due(rig, schedule)
    await rig.store.fire_due_schedules()
    after = await rig.store.get_schedule("n", "daily")
    assert (after.next_time, len(after.waiting)) == (None, 1)
    await end(rig)
    await check_now(rig)
    assert (await rig.store.fire_due_schedules()).fired == 1
    assert (await rig.store.get_schedule("n", "daily")).runs == 2


# --- by hand


async def test_a_trigger_makes_one_job_now_even_of_a_paused_schedule(rig):
    _, schedule = await rig.store.put_schedule(new_schedule(definition=EVERY_MINUTE))
    await rig.store.pause_schedule("n", "daily", True)
    answer = await rig.store.trigger_schedule("n", "daily")
    (job,) = await jobs_of(rig, schedule)
    assert (answer.job_id, answer.type) == (job.id, "t")
    assert [event.job_id for event in answer.events] == [job.id]
    after = await rig.store.get_schedule("n", "daily")
    assert (after.paused, after.runs, after.last_job_id) == (True, 1, job.id)
    assert after.next_time == schedule.next_time
    assert await rig.store.trigger_schedule("n", "nobody") is None


async def test_a_backfill_makes_what_is_missing_and_nothing_twice(rig):
    _, schedule = await rig.store.put_schedule(new_schedule(definition=EVERY_MINUTE))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    first = await rig.store.backfill_schedule("n", "daily", start, start + 10 * MINUTE, limit=4)
    assert (first.made, first.further) == (4, start + 4 * MINUTE)
    again = await rig.store.backfill_schedule("n", "daily", start, start + 10 * MINUTE)
    assert (again.made, again.further) == (6, None)
    nominal = sorted(job.nominal_time for job in await jobs_of(rig, schedule))
    assert nominal == [start + n * MINUTE for n in range(10)]
    after = await rig.store.get_schedule("n", "daily")
    assert (after.next_time, after.runs) == (schedule.next_time, 10)
    assert await rig.store.backfill_schedule("n", "nobody", start, start + HOUR) is None


@pytest.mark.parametrize(
    ("policy", "made", "waiting", "left_out"),
    [
        (Overlap.SKIP, 1, 0, 4),
        (Overlap.BUFFER_ONE, 1, 1, 3),
        (Overlap.BUFFER_ALL, 1, 4, 0),
        (Overlap.CANCEL_OTHER, 1, 0, 4),
    ],
)
async def test_a_backfill_runs_under_the_overlap_policy(rig, policy, made, waiting, left_out):
    definition = replace(EVERY_MINUTE, overlap=policy)
    await rig.store.put_schedule(new_schedule(definition=definition))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    answer = await rig.store.backfill_schedule("n", "daily", start, start + 5 * MINUTE)
    assert (answer.made, answer.waiting, answer.left_out) == (made, waiting, left_out)


# --- edits


async def test_an_edit_loses_no_run_that_is_due_and_touches_none_that_was_made(rig):
    schedule = await scheduled(rig)
    await rig.store.fire_due_schedules()
    await come_due(rig, schedule)
    edited = replace(EVERY_MINUTE, template=JobTemplate("t", priority=3))
    _, after = await rig.store.put_schedule(new_schedule(definition=edited), True)
    assert after.next_time <= (await rig.store.probe()).now
    assert (await rig.store.fire_due_schedules()).fired == 1
    assert [job.priority for job in await jobs_of(rig, schedule)] == [3, 0]
    assert {job.state for job in await jobs_of(rig, schedule)} == {JobState.SCHEDULED}


async def test_an_edit_never_fires_a_nominal_time_again(rig):
    schedule = await scheduled(rig)
    await rig.store.fire_due_schedules()
    same = replace(EVERY_MINUTE, recurrences=(Interval(MINUTE), Cron("*/1 * * * *")))
    _, after = await rig.store.put_schedule(new_schedule(definition=same), True)
    assert after.next_time > schedule.next_time
    await rig.store.fire_due_schedules()
    nominal = [job.nominal_time for job in await jobs_of(rig, schedule)]
    assert len(nominal) == len(set(nominal))


async def test_an_edit_to_skip_sees_the_runs_made_before_it(rig):
    schedule = await scheduled(rig)
    await rig.store.fire_due_schedules()
    skip = replace(EVERY_MINUTE, overlap=Overlap.SKIP)
    _, after = await rig.store.put_schedule(new_schedule(definition=skip), True)
    assert len(after.open_jobs) == 1
    await come_due(rig, schedule)
    answer = await rig.store.fire_due_schedules()
    assert (answer.fired, answer.missed) == (0, 1)


async def test_edits_and_firing_at_once_lose_nothing_and_double_nothing(rig):
    """Eight editors, four schedulers, one schedule that is due again and again."""
    definition = Definition((Interval(SECOND),), JobTemplate("t"), CatchUpPolicy(CatchUp.ALL))
    _, schedule = await rig.store.put_schedule(new_schedule(definition=definition))
    rig.sql(
        "UPDATE schedules SET next_time = date_trunc('second', clock_timestamp()) - interval '30 s'"
    )
    due = (await rig.store.get_schedule("n", "daily")).next_time

    async def edit(number: int) -> None:
        changed = replace(definition, template=JobTemplate("t", priority=number % 10))
        await rig.store.put_schedule(new_schedule(definition=changed), True)

    async def fire() -> None:
        await rig.store.fire_due_schedules(1)

    await asyncio.gather(*(edit(n) if n % 3 else fire() for n in range(24)))
    await fire()
    after = await rig.store.get_schedule("n", "daily")
    nominal = sorted(job.nominal_time for job in await jobs_of(rig, schedule))
    assert nominal == [due + n * SECOND for n in range(len(nominal))]
    assert after.next_time == nominal[-1] + SECOND
    assert len(nominal) >= 31


# --- ahead of their time


async def test_times_soon_to_come_make_their_jobs_ahead_each_once(rig):
    definition = Definition((Cron("* * * * * *"),), JobTemplate("t"))
    _, schedule = await rig.store.put_schedule(new_schedule(definition=definition))
    answer = await rig.store.fire_due_schedules(ahead=5 * SECOND)
    assert answer.fired in (5, 6)
    jobs = sorted(await jobs_of(rig, schedule), key=lambda job: job.nominal_time)
    assert [job.nominal_time for job in jobs] == [
        schedule.next_time + n * SECOND for n in range(len(jobs))
    ]
    assert all(job.due_time == job.nominal_time for job in jobs)
    after = await rig.store.get_schedule("n", "daily")
    assert (after.missed, after.next_time) == (0, jobs[-1].nominal_time + SECOND)
    _, edited = await rig.store.put_schedule(new_schedule(definition=definition), True)
    assert edited.next_time == after.next_time


async def test_many_schedules_that_missed_much_are_planned_within_the_time_of_a_transaction(rig):
    """To count what each has missed takes long, and the server ends a transaction that rests."""
    definition = replace(EVERY_MINUTE, exclusions=(Cron("* * * * 6,0"),))
    count = 60
    for number in range(count):
        await rig.store.put_schedule(new_schedule(f"s-{number}", definition))
    rig.sql("UPDATE schedules SET next_time = next_time - interval '60 days'")
    impatient = {"statement_timeout": 2.0, "lock_timeout": 1.0, "call_timeout": 3.0}
    async with opened(rig.dsn, **impatient) as store:
        answers = [await store.fire_due_schedules()]
        while answers[-1].more:
            answers.append(await store.fire_due_schedules())
    assert answers[0].moved < count, "the others are for the next transaction"
    assert sum(answer.moved for answer in answers) == count
    assert sum(answer.missed for answer in answers) >= count * 900
    now = (await rig.store.probe()).now
    left = await rig.store.list_schedules("n", "", 100)
    assert all(schedule.next_time > now for schedule in left)


async def test_a_schedule_that_follows_its_runs_waits_for_its_time(rig):
    definition = Definition((Cron("0 0 1 1 *"),), JobTemplate("t"), overlap=Overlap.SKIP)
    await rig.store.put_schedule(new_schedule(definition=definition))
    answer = await rig.store.fire_due_schedules(1, ahead=400 * DAY)
    assert (answer.fired, answer.more) == (0, False)
