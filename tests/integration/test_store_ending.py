"""Cancel, sweep, rescue and expire: the row decides who was first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from services.mesh.jobs.model import Timeouts
from services.mesh.jobs.reports import Failed, ReportOutcome, Started, Succeeded
from services.mesh.jobs.retry import LOSS_BUDGET, Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import CancelOutcome
from tests.integration.store_rig import EPOCH, new_job, opened, rig_of_test, until  # noqa: F401

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
COMMITTED, STALE = ReportOutcome.COMMITTED, ReportOutcome.STALE


# --- cancel


async def test_a_waiting_job_is_cancelled_and_never_claimed(rig):
    (job_id,) = await rig.put()
    answer = await rig.store.cancel([job_id], "not needed")
    (result,) = answer.results
    assert (result.outcome, result.worker_id) == (CancelOutcome.CANCELLED, None)
    assert answer.events == (await rig.events(job_id))[1:]
    assert answer.events[0].note == "not needed"
    assert await rig.claim() == []
    assert rig.sql("SELECT count(*) FROM queue") == [(0,)]


@pytest.mark.parametrize("started", [False, True])
async def test_a_job_in_flight_is_cancelled_at_once_and_names_its_worker(rig, started):
    job = await rig.claimed("w7")
    if started:
        await rig.say(Started(job.id, job.fence, "w7"))
    (result,) = (await rig.store.cancel([job.id])).results
    assert (result.outcome, result.worker_id, result.fence) == (CancelOutcome.CANCELLED, "w7", 1)
    assert await rig.say(Succeeded(job.id, job.fence, "w7")) == [STALE]
    assert rig.sql("SELECT count(*) FROM in_flight") == [(0,)]


async def test_a_job_between_two_attempts_has_no_worker_to_tell(rig):
    job = await rig.claimed(retry=RetryPolicy(Backoff.FIXED, 2))
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "")))
    (result,) = (await rig.store.cancel([job.id])).results
    assert (result.outcome, result.worker_id, result.fence) == (CancelOutcome.CANCELLED, None, 0)


async def test_a_cancel_says_which_end_was_there_before_it(rig):
    job = await rig.claimed()
    await rig.say(Succeeded(job.id, job.fence, "w1"))
    (other,) = await rig.put()
    await rig.store.cancel([other])
    answer = await rig.store.cancel([job.id, other, new_job().id, other])
    assert [(r.outcome, r.state) for r in answer.results] == [
        (CancelOutcome.ALREADY_TERMINAL, JobState.SUCCEEDED),
        (CancelOutcome.ALREADY_TERMINAL, JobState.CANCELLED),
        (CancelOutcome.NOT_FOUND, None),
        (CancelOutcome.ALREADY_TERMINAL, JobState.CANCELLED),
    ]
    assert answer.events == []


async def test_a_job_of_another_tenant_is_not_found(rig):
    (job_id,) = await rig.put()
    answer = await rig.store.cancel([job_id], namespace="m")
    assert answer.results[0].outcome is CancelOutcome.NOT_FOUND
    assert (await rig.get(job_id)).state is JobState.SCHEDULED
    answer = await rig.store.cancel([job_id], namespace="n")
    assert answer.results[0].outcome is CancelOutcome.CANCELLED


async def test_of_a_cancel_and_a_success_one_wins_and_both_know(rig):
    for _ in range(20):
        job = await rig.claimed()
        cancelled, reported = await asyncio.gather(
            rig.store.cancel([job.id]), rig.say(Succeeded(job.id, job.fence, "w1"))
        )
        won = cancelled.results[0].outcome is CancelOutcome.CANCELLED
        assert reported == [STALE if won else COMMITTED]
        assert ((await rig.get(job.id)).state is JobState.CANCELLED) == won


async def test_of_a_cancel_and_a_claim_the_cancel_always_holds(rig):
    for _ in range(20):
        ids = await rig.put(5)
        answer, _ = await asyncio.gather(rig.store.cancel(ids), rig.claim(limit=5))
        assert {result.outcome for result in answer.results} == {CancelOutcome.CANCELLED}
    assert await rig.claim(limit=100) == []


async def test_cancelling_a_queue_while_it_is_claimed_does_not_deadlock(rig):
    ids = [i for p in range(10) for i in await rig.put(40, priority=p)]
    async with opened(rig.dsn) as other, asyncio.timeout(10):
        await asyncio.gather(
            rig.store.cancel(ids),
            *(other.claim("t", f"w{n}", 40) for n in range(10)),
            rig.store.cancel(list(reversed(ids))),
        )


async def left_in_flight(rig) -> UUID:
    """A job whose cancel took its snapshot before the claim committed, and waited for it: it ended
    the job, but could not see the claim's row in `in_flight`.
    """
    (job_id,) = await rig.put()
    claimer = await rig.store._connections.connect()
    async with claimer.transaction():
        query = rig.store._queries["claim"].sql
        params = {"type": "t", "worker_id": "w1", "limit": 1, "ahead": timedelta(0), "recent": None}
        await claimer.execute(query, params)
        cancelling = asyncio.create_task(rig.store.cancel([job_id]), name="cancel")
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        await until(lambda: rig.sql(waits))
    await claimer.close()
    assert (await cancelling).results[0].outcome is CancelOutcome.CANCELLED
    assert rig.sql("SELECT count(*) FROM in_flight") == [(1,)]
    return job_id


async def test_what_a_cancel_left_in_flight_is_removed_by_a_rescue(rig):
    job_id = await left_in_flight(rig)
    assert await rig.store.inflight_workers() == ["w1"]
    assert (await rig.store.rescue(["w1"])).events == []
    assert await rig.store.inflight_workers() == []
    assert (await rig.get(job_id)).state is JobState.CANCELLED


async def test_what_a_cancel_left_in_flight_is_removed_by_a_sweep(rig):
    job_id = await left_in_flight(rig)
    job = await rig.claimed()
    await rig.say(Started(job.id, job.fence, "w1"))
    assert await rig.store.overdue_dispatches(HOUR) == []
    assert rig.sql("SELECT count(*) FROM in_flight") == [(2,)], "not before its time"
    rig.pass_time(6 * SECOND)
    assert await rig.store.overdue_dispatches(5 * SECOND) == []
    assert rig.sql("SELECT job_id FROM in_flight") == [(job.id,)], "what runs stays"
    assert (await rig.get(job_id)).state is JobState.CANCELLED


# --- sweep


async def test_a_dispatch_nobody_started_is_found_and_taken_back(rig):
    job = await rig.claimed("w1")
    assert await rig.store.overdue_dispatches(5 * SECOND) == []
    rig.pass_time(6 * SECOND)
    (lost,) = await rig.store.overdue_dispatches(5 * SECOND)
    assert (lost.job_id, lost.fence, lost.worker_id, lost.type) == (job.id, 1, "w1", "t")
    events = await rig.store.sweep([(lost.job_id, lost.fence)])
    assert events == (await rig.events(job.id))[2:]
    record = await rig.get(job.id)
    assert (record.state, record.attempt, record.losses) == (JobState.SCHEDULED, 0, 0)
    assert record.worker_id == "w1"  # it may still commit
    assert await rig.store.overdue_dispatches(5 * SECOND) == []


async def test_a_started_job_is_never_swept_however_old(rig):
    job = await rig.claimed()
    await rig.say(Started(job.id, job.fence, "w1"))
    rig.pass_time(1000 * HOUR)
    assert await rig.store.overdue_dispatches(5 * SECOND) == []
    assert await rig.store.sweep([(job.id, job.fence)]) == []
    assert (await rig.get(job.id)).state is JobState.RUNNING


async def test_a_sweep_with_an_old_fence_does_nothing(rig):
    job = await rig.claimed()
    await rig.store.sweep([(job.id, 1)])
    (again,) = await rig.claim("w2")
    assert await rig.store.sweep([(job.id, 1)]) == []
    assert await rig.say(Succeeded(job.id, again.fence, "w2")) == [COMMITTED]


async def test_of_a_sweep_and_a_start_one_wins(rig):
    for _ in range(20):
        job = await rig.claimed()
        swept, started = await asyncio.gather(
            rig.store.sweep([(job.id, job.fence)]), rig.say(Started(job.id, job.fence, "w1"))
        )
        assert (started == [COMMITTED]) == (swept == [])
        await rig.store.cancel([job.id])


async def test_a_swept_job_keeps_its_place_in_the_line(rig):
    job = await rig.claimed()
    await rig.put(3)
    await rig.store.sweep([(job.id, job.fence)])
    assert (await rig.claim())[0].id == job.id


# --- rescue


async def test_a_rescue_takes_back_what_a_lost_worker_held(rig):
    await rig.put(4)
    lost = await rig.claim("w1", 3)
    (kept,) = await rig.claim("w2", 1)
    await rig.say(Started(lost[0].id, 1, "w1"))
    assert await rig.store.inflight_workers() == ["w1", "w2"]
    events = (await rig.store.rescue(["w1", "nobody"])).events
    assert {event.job_id for event in events} == {job.id for job in lost}
    assert {(event.state, event.cause) for event in events} == {(JobState.SCHEDULED, Cause.RESCUED)}
    assert [e for e in events if e.job_id == lost[0].id] == (await rig.events(lost[0].id))[3:]
    assert await rig.store.inflight_workers() == ["w2"]
    assert (await rig.get(kept.id)).state is JobState.DISPATCHED


async def test_a_rescue_goes_on_where_its_limit_stopped_it(rig):
    await rig.put(5)
    await rig.claim("w1", 5)
    found = [await rig.store.rescue(["w1"], limit=2) for _ in range(4)]
    assert [(len(each.events), each.more) for each in found] == [
        (2, True),
        (2, True),
        (1, False),
        (0, False),
    ]


async def test_a_rescue_goes_on_though_some_of_what_it_saw_has_moved_on(rig):
    gone = await left_in_flight(rig)
    await rig.put(3)
    await rig.claim("w1", 3)
    earlier = "UPDATE in_flight SET dispatch_time = dispatch_time - %s WHERE job_id = %s"
    rig.sql(earlier, SECOND, gone)
    found = [await rig.store.rescue(["w1"], limit=2) for _ in range(3)]
    assert [(len(each.events), each.more) for each in found] == [(1, True), (2, True), (0, False)]


async def test_a_job_that_keeps_killing_workers_runs_out_of_attempts(rig):
    (job_id,) = await rig.put(retry=RetryPolicy(Backoff.FIXED, 2, initial_delay=timedelta(0)))
    starts = 0
    while (await rig.get(job_id)).state is JobState.SCHEDULED:
        assert len(await rig.claim(f"w{starts}")) == 1
        starts += 1
        await rig.store.rescue([f"w{starts - 1}"])
    record = await rig.get(job_id)
    assert (record.state, starts) == (JobState.FAILED, LOSS_BUDGET + 2)
    assert (record.attempt, record.losses) == (2, LOSS_BUDGET + 2)
    assert record.failure.type == "WorkerLost"
    assert (await rig.causes(job_id))[-1] is Cause.RESCUED


async def test_of_a_rescue_and_a_success_one_wins_or_the_success_comes_late(rig):
    for _ in range(20):
        job = await rig.claimed()
        _, reported = await asyncio.gather(
            rig.store.rescue(["w1"]), rig.say(Succeeded(job.id, job.fence, "w1"))
        )
        assert reported == [COMMITTED]
        assert (await rig.get(job.id)).state is JobState.SUCCEEDED


async def test_two_rescuers_count_a_loss_once(rig):
    for _ in range(10):
        job = await rig.claimed()
        await asyncio.gather(*(rig.store.rescue(["w1"]) for _ in range(4)))
        assert (await rig.get(job.id)).losses == 1
        await rig.store.cancel([job.id])


# --- expire


async def test_a_job_that_did_not_start_in_time_expires(rig):
    (job_id,) = await rig.put(timeouts=Timeouts(start=SECOND))
    await rig.put()
    assert await rig.store.expire_overdue() == []
    rig.pass_time(2 * SECOND)
    events = await rig.store.expire_overdue()
    assert events == (await rig.events(job_id))[1:]
    assert (events[0].state, events[0].cause) == (JobState.EXPIRED, Cause.EXPIRED)
    assert len(await rig.claim(limit=5)) == 1


async def test_a_job_in_the_hands_of_a_worker_does_not_expire(rig):
    job = await rig.claimed(timeouts=Timeouts(start=SECOND))
    rig.pass_time(HOUR)
    assert await rig.store.expire_overdue() == []
    await rig.store.sweep([(job.id, job.fence)])  # never started: now it does
    assert len(await rig.store.expire_overdue()) == 1


async def test_expiry_is_limited_and_goes_on(rig):
    await rig.store.put_jobs([new_job(timeouts=Timeouts(start=SECOND)) for _ in range(5)], EPOCH)
    rig.pass_time(HOUR)
    assert [len(await rig.store.expire_overdue(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
