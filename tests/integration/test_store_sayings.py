"""What running handlers say, in the rows: progress, checkpoints, snooze; and the total time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from services.mesh.jobs.attempts import Outcome, attempts_from_events
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import NO_PAYLOAD, Payload, Progress, Timeouts
from services.mesh.jobs.reports import (
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    ReportOutcome,
    Started,
    Succeeded,
)
from services.mesh.jobs.retry import TOTAL_TIMEOUT, Backoff, Failure, FailureKind, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import ChangeOutcome, JobChange
from tests.integration.store_rig import RANDOM, kept, new_job, purge, rig_of_test  # noqa: F401

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
COMMITTED, STALE, NOT_FOUND = ReportOutcome.COMMITTED, ReportOutcome.STALE, ReportOutcome.NOT_FOUND
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HALF = Progress(1.0, 2.0, "half", NOON)
PAGE = Payload.inline(b'{"page": 7}', "application/json")
OTHER = Payload.inline(b"\x00raw", "application/octet-stream")
THRICE = RetryPolicy(Backoff.FIXED, 3, initial_delay=timedelta(0))
BOOM = Failure("ValueError", "boom")


def checkpoints(rig):
    return rig.sql("SELECT job_id FROM job_checkpoints")


# --- progress


async def test_progress_is_noted_without_a_transition(rig):
    job = await rig.claimed()
    answer = await rig.store.report([Progressed(job.id, job.fence, "w1", HALF)])
    assert (answer.results[0].outcome, answer.events) == (COMMITTED, [])
    (said,) = answer.progress
    assert (said.job_id, said.namespace, said.type, said.attempt) == (job.id, "n", "t", 1)
    record = await rig.get(job.id)
    assert (record.progress, record.version) == (HALF, 2)
    (basic,) = await rig.store.get_jobs([job.id])
    assert basic.progress == HALF


async def test_older_news_never_replaces_newer_news(rig):
    job = await rig.claimed()
    newer = Progress(2.0, 2.0, "done", NOON + SECOND)
    assert await rig.say(Progressed(job.id, job.fence, "w1", newer)) == [COMMITTED]
    assert await rig.say(Progressed(job.id, job.fence, "w1", HALF)) == [COMMITTED]
    assert (await rig.get(job.id)).progress == newer


@pytest.mark.parametrize(
    "say",
    [
        lambda job, fence, worker: Progressed(job, fence, worker, HALF),
        lambda job, fence, worker: Checkpointed(job, fence, worker, PAGE),
    ],
    ids=["progress", "checkpoint"],
)
async def test_only_the_newest_dispatch_is_heard(rig, say):
    job = await rig.claimed("w1")
    assert await rig.say(HandedBack(job.id, job.fence, "w1")) == [COMMITTED]
    assert await rig.say(say(job.id, job.fence, "w1")) == [STALE]  # it waits
    (again,) = await rig.claim("w2")
    assert await rig.say(say(job.id, job.fence, "w1")) == [STALE]  # somebody else has it
    assert await rig.say(say(job.id, again.fence, "w1")) == [STALE]
    assert await rig.say(say(new_job().id, 1, "w1")) == [NOT_FOUND]
    record = await rig.get(job.id)
    assert (record.progress, record.version, checkpoints(rig)) == (None, 4, [])
    assert await rig.say(say(job.id, again.fence, "w2")) == [COMMITTED]
    await rig.say(Succeeded(job.id, again.fence, "w2"))
    assert await rig.say(say(job.id, again.fence, "w2")) == [STALE]  # it has ended


async def test_a_new_attempt_begins_without_the_progress_of_the_last(rig):
    job = await rig.claimed(retry=THRICE)
    await rig.say(Progressed(job.id, job.fence, "w1", HALF))
    await rig.say(Failed(job.id, job.fence, "w1", BOOM))
    assert (await rig.get(job.id)).progress == HALF
    await rig.claim("w2")
    assert (await rig.get(job.id)).progress is None


# --- checkpoints


async def test_a_checkpoint_goes_with_the_next_attempt(rig):
    job = await rig.claimed(retry=THRICE)
    assert job.checkpoint is None
    answer = await rig.store.report([Checkpointed(job.id, job.fence, "w1", PAGE)])
    assert (answer.results[0].outcome, answer.events) == (COMMITTED, [])
    await rig.say(Failed(job.id, job.fence, "w1", BOOM))
    (retried,) = await rig.claim("w2")
    assert retried.checkpoint == PAGE
    assert len((await rig.store.rescue(["w2"])).events) == 1
    (rescued,) = await rig.claim("w3")
    assert rescued.checkpoint == PAGE
    assert await rig.say(Checkpointed(job.id, rescued.fence, "w3", OTHER)) == [COMMITTED]
    await rig.say(HandedBack(job.id, rescued.fence, "w3", snoozed=True))
    (snoozed,) = await rig.claim("w4")
    assert snoozed.checkpoint == OTHER
    assert await rig.say(Checkpointed(job.id, snoozed.fence, "w4", NO_PAYLOAD)) == [COMMITTED]
    await rig.say(HandedBack(job.id, snoozed.fence, "w4"))
    (last,) = await rig.claim("w5")
    assert (last.checkpoint, checkpoints(rig)) == (None, [])


async def test_a_checkpoint_and_the_end_of_its_attempt_in_one_batch_both_count(rig):
    job = await rig.claimed(retry=THRICE)
    said = [
        Failed(job.id, job.fence, "w1", BOOM),
        Checkpointed(job.id, job.fence, "w1", OTHER),
        Progressed(job.id, job.fence, "w1", HALF),
        Checkpointed(job.id, job.fence, "w1", PAGE),
    ]
    assert await rig.say(*said) == [COMMITTED] * 4
    (again,) = await rig.claim("w2")
    assert again.checkpoint == PAGE


async def test_a_success_needs_its_checkpoint_no_more(rig):
    job, other = await rig.claimed(), await rig.claimed()
    for one in (job, other):
        await rig.say(Checkpointed(one.id, one.fence, "w1", PAGE))
    assert await rig.say(Succeeded(job.id, job.fence, "w1")) == [COMMITTED]
    assert checkpoints(rig) == [(other.id,)]


async def test_of_a_zombies_checkpoint_and_a_rescue_the_row_decides(rig):
    for _ in range(10):
        job = await rig.claimed("w1")
        said, _ = await asyncio.gather(
            rig.say(Checkpointed(job.id, job.fence, "w1", PAGE)), rig.store.rescue(["w1"])
        )
        (again,) = await rig.claim("w2")
        assert (again.checkpoint == PAGE) == (said == [COMMITTED])
        await rig.say(Succeeded(job.id, again.fence, "w2"))


async def test_what_was_said_is_forgotten_with_the_job(rig):
    long_ago = new_job_id(1, int((time.time() - 86_400) * 1000), RANDOM)
    job = await rig.claimed(id=long_ago)
    await rig.say(
        Progressed(job.id, job.fence, "w1", HALF), Checkpointed(job.id, job.fence, "w1", PAGE)
    )
    await rig.store.cancel([job.id])
    rig.pass_time(2 * HOUR)
    assert await purge(rig.store, kept(HOUR)) == 1
    assert (checkpoints(rig), rig.sql("SELECT job_id FROM job_progress")) == ([], [])


# --- snooze


async def test_a_snooze_costs_no_attempt_and_is_remembered_as_one(rig):
    job = await rig.claimed(retry=THRICE)
    answer = await rig.store.report(
        [HandedBack(job.id, job.fence, "w1", "", HOUR, True, 2 * SECOND)]
    )
    assert [(e.state, e.cause) for e in answer.events] == [
        (JobState.RUNNING, Cause.STARTED),
        (JobState.SCHEDULED, Cause.SNOOZED),
    ]
    record = await rig.get(job.id)
    assert (record.state, record.attempt) == (JobState.SCHEDULED, 0)
    assert record.due_time == answer.events[1].time + HOUR
    (attempt,) = attempts_from_events(await rig.events(job.id))
    assert (attempt.outcome, attempt.number) == (Outcome.SNOOZED, 1)
    assert attempt.start_time is not None


async def test_a_job_that_snoozed_has_started_in_time(rig):
    job = await rig.claimed(timeouts=Timeouts(start=HOUR))
    await rig.say(HandedBack(job.id, job.fence, "w1", snoozed=True, delay=2 * HOUR))
    rig.pass_time(3 * HOUR)
    assert await rig.store.expire_overdue() == []
    assert len(await rig.claim("w2")) == 1


# --- the total time


async def test_a_dispatch_says_what_is_left_of_the_total_time(rig):
    job = await rig.claimed(timeouts=Timeouts(total=HOUR))
    assert timedelta(minutes=59) < job.total_left <= HOUR
    assert (await rig.claimed()).total_left is None


async def test_a_job_that_never_started_expires_when_its_total_time_is_over(rig):
    (job_id,) = await rig.put(timeouts=Timeouts(total=HOUR))
    assert await rig.store.expire_overdue() == []
    rig.pass_time(2 * HOUR)
    assert await rig.claim() == []
    (event,) = await rig.store.expire_overdue()
    assert (event.state, event.cause, event.failure) == (JobState.EXPIRED, Cause.EXPIRED, None)
    assert event == (await rig.events(job_id))[-1]


@pytest.mark.parametrize("wait", ["retry", "snooze", "hand back after a start"])
async def test_a_job_that_was_tried_fails_when_it_waits_past_its_total_time(rig, wait):
    job = await rig.claimed(
        timeouts=Timeouts(total=2 * HOUR, start=timedelta(minutes=1)),
        retry=RetryPolicy(Backoff.FIXED, 3, initial_delay=HOUR),
    )
    ends = {
        "retry": Failed(job.id, job.fence, "w1", BOOM),
        "snooze": HandedBack(job.id, job.fence, "w1", snoozed=True, delay=9 * HOUR),
        "hand back after a start": HandedBack(job.id, job.fence, "w1"),
    }
    await rig.say(Started(job.id, job.fence, "w1"))
    await rig.say(ends[wait])
    rig.pass_time(3 * HOUR)
    assert await rig.claim("w2") == []
    (event,) = await rig.store.expire_overdue()
    assert (event.state, event.cause) == (JobState.FAILED, Cause.EXPIRED)
    assert (event.failure.type, event.failure.kind) == (TOTAL_TIMEOUT, FailureKind.TIMEOUT)
    record = await rig.get(job.id)
    assert (record.state, record.failure) == (JobState.FAILED, event.failure)
    assert event == (await rig.events(job.id))[-1]
    assert attempts_from_events(await rig.events(job.id))[-1].outcome is not Outcome.TIMED_OUT


async def test_a_passed_total_time_is_final_whatever_the_policy_says(rig):
    job = await rig.claimed(retry=THRICE, timeouts=Timeouts(total=HOUR))
    over = Failure(TOTAL_TIMEOUT, "over", kind=FailureKind.TIMEOUT)
    await rig.say(Failed(job.id, job.fence, "w1", over))
    record = await rig.get(job.id)
    assert (record.state, record.failure) == (JobState.FAILED, over)
    (attempt,) = attempts_from_events(await rig.events(job.id))
    assert attempt.outcome is Outcome.TIMED_OUT


async def test_a_job_that_is_moved_before_it_started_has_its_whole_total_time(rig):
    (job_id,) = await rig.put(timeouts=Timeouts(total=HOUR))
    now = rig.sql("SELECT clock_timestamp()")[0][0]
    change = JobChange(move=True, due_time=now + 3 * HOUR)
    answer = await rig.store.change(job_id, "n", change)
    assert answer.outcome is ChangeOutcome.CHANGED
    assert rig.sql("SELECT expire_time FROM queue") == [(now + 4 * HOUR,)]


# --- changes of a job that waits do not start its clocks anew


async def test_a_change_of_labels_leaves_the_total_time_alone(rig):
    job = await rig.claimed(timeouts=Timeouts(total=HOUR))
    first = (await rig.get(job.id)).first_due_time
    await rig.say(HandedBack(job.id, job.fence, "w1", delay=HOUR / 2))
    await rig.store.change(job.id, "n", JobChange(labels={"a": "b"}))
    assert (await rig.get(job.id)).first_due_time == first
    assert rig.sql("SELECT expire_time FROM queue") == [(first + HOUR,)]


@pytest.mark.parametrize("then", ["change", "hand back", "move"])
async def test_a_job_that_snoozed_has_started_in_time_whatever_comes_then(rig, then):
    job = await rig.claimed(expire_time=datetime.now(UTC) + HOUR)
    await rig.say(HandedBack(job.id, job.fence, "w1", snoozed=True))
    rig.pass_time(2 * HOUR)
    if then == "change":
        await rig.store.change(job.id, "n", JobChange(labels={"a": "b"}))
    elif then == "move":
        answer = await rig.store.change(job.id, "n", JobChange(move=True))
        assert answer.outcome is ChangeOutcome.CHANGED
    else:
        (again,) = await rig.claim("w2")
        await rig.say(HandedBack(job.id, again.fence, "w2"))
    assert await rig.store.expire_overdue() == []
    assert [claimed.id for claimed in await rig.claim()] == [job.id]
