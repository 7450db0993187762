"""Reports: committed once under their fence, recognised when repeated, refused when superseded."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from itertools import count

import psycopg
import pytest

from services.mesh.jobs.attempts import Outcome, attempts_from_events
from services.mesh.jobs.model import ObjectRef, Payload, Timeouts
from services.mesh.jobs.reports import Failed, HandedBack, ReportOutcome, Started, Succeeded
from services.mesh.jobs.retry import LOSS_BUDGET, Backoff, Failure, FailureKind, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.settings import StoreSettings, connection_options
from tests.integration.store_rig import new_job, rig_of_test, transaction, until  # noqa: F401

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
COMMITTED, STALE = ReportOutcome.COMMITTED, ReportOutcome.STALE
BOOM = Failure("ValueError", "boom", "at line 1", exit_code=3)
OUTPUT = Payload.inline(b"out", "application/json")
TWICE = RetryPolicy(Backoff.FIXED, 2, initial_delay=5 * SECOND)


def of_each_kind(job_id, fence, worker):
    return [
        Started(job_id, fence, worker),
        Succeeded(job_id, fence, worker, OUTPUT),
        Failed(job_id, fence, worker, BOOM),
        HandedBack(job_id, fence, worker),
    ]


KINDS = pytest.mark.parametrize("kind", range(4), ids=["start", "success", "failure", "hand back"])


# --- what a report does


async def test_a_success_without_a_start_records_both(rig):
    job = await rig.claimed()
    report = Succeeded(job.id, job.fence, "w1", OUTPUT, elapsed=timedelta(milliseconds=1))
    answer = await rig.store.report([report])
    assert answer.results[0].state is JobState.SUCCEEDED
    assert [(e.version, e.state, e.cause) for e in answer.events] == [
        (3, JobState.RUNNING, Cause.STARTED),
        (4, JobState.SUCCEEDED, Cause.SUCCEEDED),
    ]
    assert answer.events == (await rig.events(job.id))[2:]
    record = await rig.get(job.id)
    assert (record.output, record.failure, record.attempt) == (OUTPUT, None, 1)
    assert job.dispatch_time <= record.start_time <= record.end_time
    assert record.start_time == answer.events[0].time
    assert record.end_time == answer.events[1].time


async def test_a_long_job_reports_its_start_first(rig):
    job = await rig.claimed()
    answer = await rig.store.report([Started(job.id, job.fence, "w1")])
    assert answer.events == (await rig.events(job.id))[2:]
    started = (await rig.get(job.id)).start_time
    assert await rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT, HOUR)) == [COMMITTED]
    assert (await rig.get(job.id)).start_time == started
    assert await rig.causes(job.id) == [
        Cause.CREATED,
        Cause.CLAIMED,
        Cause.STARTED,
        Cause.SUCCEEDED,
    ]


async def test_a_start_is_dated_when_the_handler_began_and_never_before_its_dispatch(rig):
    early, late = await rig.claimed(), await rig.claimed()
    ((before,),) = rig.sql("SELECT clock_timestamp()")
    step = timedelta(milliseconds=1)
    await rig.say(
        Started(early.id, early.fence, "w1", HOUR), Started(late.id, late.fence, "w1", step)
    )
    assert (await rig.get(early.id)).start_time == early.dispatch_time
    assert (await rig.get(late.id)).start_time >= before - step
    assert (await rig.events(early.id))[-1].time == early.dispatch_time


async def test_an_output_in_the_object_store_is_linked(rig):
    job = await rig.claimed()
    output = Payload.stored(ObjectRef("n/out/1", 9, b"\2" * 32))
    await rig.say(Succeeded(job.id, job.fence, "w1", output))
    assert (await rig.get(job.id)).output == output


async def test_an_exit_code_that_is_not_retryable_ends_the_job_and_says_so(rig):
    policy = RetryPolicy(Backoff.FIXED, 5, retryable_exits=frozenset({75}))
    job = await rig.claimed(retry=policy)
    answer = await rig.store.report([Failed(job.id, job.fence, "w1", BOOM)])
    assert answer.events[-1].cause is Cause.FAILED
    assert answer.events[-1].note == "exit code 3 is not among the retryable ones"
    record = await rig.get(job.id)
    assert (record.state, record.attempt) == (JobState.FAILED, 1)


async def test_a_failure_is_retried_as_the_policy_says(rig):
    job = await rig.claimed(retry=TWICE)
    answer = await rig.store.report([Failed(job.id, job.fence, "w1", BOOM)])
    assert [e.cause for e in answer.events] == [Cause.STARTED, Cause.RETRY]
    assert answer.events == (await rig.events(job.id))[2:]
    record = await rig.get(job.id)
    assert (record.state, record.attempt, record.worker_id) == (JobState.SCHEDULED, 1, None)
    assert record.failure == BOOM
    assert record.due_time - answer.events[-1].time == 5 * SECOND
    assert answer.events[-1].due_time == record.due_time
    rig.pass_time(6 * SECOND)
    (again,) = await rig.claim("w2")
    assert (again.fence, again.attempt) == (2, 2)
    await rig.say(Failed(again.id, again.fence, "w2", BOOM))
    record = await rig.get(job.id)
    assert (record.state, record.attempt) == (JobState.FAILED, 2)
    assert (await rig.causes(job.id))[-1] is Cause.FAILED


async def test_a_failure_without_a_policy_is_final_and_says_why(rig):
    job = await rig.claimed()
    answer = await rig.store.report([Failed(job.id, job.fence, "w1", BOOM)])
    last = answer.events[-1]
    assert (last.state, last.failure, last.note) == (
        JobState.FAILED,
        BOOM,
        "attempts spent: 1 of 1",
    )
    assert (await rig.get(job.id)).end_time == last.time


async def test_a_handler_may_ask_for_a_later_retry_but_not_for_a_sooner_one(rig):
    for asked, waited in ((60, 60), (1, 5)):
        job = await rig.claimed(retry=TWICE)
        report = Failed(job.id, job.fence, "w1", BOOM, retry_after=asked * SECOND)
        answer = await rig.store.report([report])
        assert answer.events[-1].due_time - answer.events[-1].time == waited * SECOND


async def test_no_retry_begins_past_the_total_timeout(rig):
    job = await rig.claimed(retry=TWICE, timeouts=Timeouts(total=4 * SECOND))
    await rig.say(Failed(job.id, job.fence, "w1", BOOM))
    assert (await rig.get(job.id)).state is JobState.FAILED


async def test_infrastructure_failures_cost_nothing_up_to_the_budget(rig):
    (job_id,) = await rig.put()
    away = Failure("S3", "away", kind=FailureKind.INFRASTRUCTURE)
    for loss in range(1, LOSS_BUDGET + 1):
        (job,) = await rig.claim()
        assert job.attempt == 1
        await rig.say(Failed(job.id, job.fence, "w1", away))
        record = await rig.get(job_id)
        assert (record.state, record.attempt, record.losses) == (JobState.SCHEDULED, 0, loss)
        rig.pass_time(HOUR)
    (job,) = await rig.claim()
    await rig.say(Failed(job.id, job.fence, "w1", away))
    assert (await rig.get(job_id)).state is JobState.FAILED


async def test_a_hand_back_costs_nothing_and_keeps_the_place_in_the_line(rig):
    job = await rig.claimed()
    due = (await rig.get(job.id)).due_time
    answer = await rig.store.report([HandedBack(job.id, job.fence, "w1", "drain")])
    record = await rig.get(job.id)
    assert (record.state, record.attempt, record.losses) == (JobState.SCHEDULED, 0, 0)
    assert (record.due_time, record.worker_id) == (due, None)
    assert answer.events == (await rig.events(job.id))[2:]
    assert (answer.events[0].cause, answer.events[0].note) == (Cause.HANDED_BACK, "drain")
    (again,) = await rig.claim("w2")
    assert (again.fence, again.attempt) == (2, 1)


async def test_a_snooze_runs_the_job_later_at_no_cost(rig):
    job = await rig.claimed()
    await rig.say(
        Started(job.id, job.fence, "w1"),
        HandedBack(job.id, job.fence, "w1", delay=60 * SECOND, snoozed=True),
    )
    assert await rig.claim() == []
    assert (await rig.causes(job.id))[-1] is Cause.SNOOZED
    rig.pass_time(61 * SECOND)
    assert [j.attempt for j in await rig.claim()] == [1]


# --- the fence


@KINDS
async def test_a_report_with_a_superseded_fence_is_refused(rig, kind):
    job = await rig.claimed()
    await rig.say(HandedBack(job.id, job.fence, "w1"))
    (again,) = await rig.claim("w2")
    before = await rig.get(job.id)
    report = of_each_kind(job.id, job.fence, "w1")[kind]
    if kind not in (0, 3):  # its own hand back, and with it the start, were committed
        assert await rig.say(report) == [STALE]
    assert await rig.say(of_each_kind(job.id, again.fence, "w1")[kind]) == [STALE]
    assert await rig.get(job.id) == before


@KINDS
async def test_a_report_with_a_fence_that_was_never_minted_is_refused(rig, kind):
    job = await rig.claimed()
    assert await rig.say(of_each_kind(job.id, job.fence + 1, "w1")[kind]) == [STALE]
    assert await rig.say(of_each_kind(job.id, 0, "w1")[kind]) == [STALE]
    assert (await rig.get(job.id)).version == 2


@KINDS
async def test_a_report_by_another_worker_is_refused(rig, kind):
    job = await rig.claimed()
    assert await rig.say(of_each_kind(job.id, job.fence, "w2")[kind]) == [STALE]
    assert (await rig.get(job.id)).state is JobState.DISPATCHED


@KINDS
@pytest.mark.parametrize("end", ["cancel", "success", "failure"])
async def test_nothing_is_reported_to_a_job_that_has_ended(rig, kind, end):
    job = await rig.claimed()
    if end == "cancel":
        await rig.store.cancel([job.id])
    else:
        await rig.say(of_each_kind(job.id, job.fence, "w1")[1 if end == "success" else 2])
    before = await rig.get(job.id)
    own = {"success": (0, 1), "failure": (0, 2), "cancel": ()}[end]
    expected = COMMITTED if kind in own else STALE
    assert await rig.say(of_each_kind(job.id, job.fence, "w1")[kind]) == [expected]
    assert await rig.get(job.id) == before


@KINDS
async def test_a_repeated_report_is_committed_and_changes_nothing(rig, kind):
    job = await rig.claimed(retry=TWICE)
    report = of_each_kind(job.id, job.fence, "w1")[kind]
    assert await rig.say(report) == [COMMITTED]
    before = await rig.events(job.id)
    assert await rig.say(report, report) == [COMMITTED] * 2
    assert await rig.events(job.id) == before


@KINDS
async def test_a_repeated_report_is_recognised_after_the_job_went_on_elsewhere(rig, kind):
    job = await rig.claimed(retry=TWICE)
    report = of_each_kind(job.id, job.fence, "w1")[kind]
    await rig.say(report)
    rig.pass_time(HOUR)
    await rig.claim("w2")
    assert await rig.say(report) == [COMMITTED]


async def test_a_report_about_an_unknown_job_says_so(rig):
    reports = of_each_kind(new_job().id, 1, "w1")
    assert set(await rig.say(*reports)) == {ReportOutcome.NOT_FOUND}


async def test_of_many_copies_of_a_success_one_is_written(rig):
    job = await rig.claimed()
    report = Succeeded(job.id, job.fence, "w1", OUTPUT)
    answers = await asyncio.gather(*(rig.store.report([report]) for _ in range(8)))
    assert {answer.results[0].outcome for answer in answers} == {COMMITTED}
    assert sum(len(answer.events) for answer in answers) == 2


async def test_of_a_success_and_a_failure_at_once_one_is_written(rig):
    for _ in range(10):
        job = await rig.claimed()
        outcomes = await asyncio.gather(
            rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT)),
            rig.say(Failed(job.id, job.fence, "w1", BOOM)),
        )
        assert sorted(o[0].value for o in outcomes) == ["committed", "stale"]


# --- late commits


async def test_after_a_sweep_the_worker_may_still_commit(rig):
    job = await rig.claimed()
    await rig.store.sweep([(job.id, job.fence)])
    assert (await rig.get(job.id)).attempt == 0
    answer = await rig.store.report([Succeeded(job.id, job.fence, "w1", OUTPUT)])
    assert [event.cause for event in answer.events] == [Cause.LATE_COMMIT]
    assert answer.events == (await rig.events(job.id))[3:]
    record = await rig.get(job.id)
    assert (record.state, record.attempt, record.output) == (JobState.SUCCEEDED, 1, OUTPUT)
    assert await rig.claim() == []
    attempts = attempts_from_events(await rig.events(job.id))
    assert [attempt.outcome for attempt in attempts] == [Outcome.SUCCEEDED]


async def test_after_a_rescue_the_worker_may_still_commit(rig):
    job = await rig.claimed()
    await rig.say(Started(job.id, job.fence, "w1"))
    await rig.store.rescue(["w1"])
    assert await rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT)) == [COMMITTED]


async def test_a_late_commit_is_refused_once_the_job_was_claimed_again(rig):
    job = await rig.claimed()
    await rig.store.sweep([(job.id, job.fence)])
    (again,) = await rig.claim("w2")
    assert await rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT)) == [STALE]
    assert await rig.say(Succeeded(job.id, again.fence, "w2", OUTPUT)) == [COMMITTED]


@pytest.mark.parametrize("kind", [0, 2, 3])
async def test_only_a_success_may_come_late(rig, kind):
    job = await rig.claimed()
    await rig.store.sweep([(job.id, job.fence)])
    assert await rig.say(of_each_kind(job.id, job.fence, "w1")[kind]) == [STALE]


async def test_after_its_own_hand_back_a_worker_commits_nothing(rig):
    job = await rig.claimed()
    await rig.say(HandedBack(job.id, job.fence, "w1"))
    assert await rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT)) == [STALE]


async def test_a_late_commit_and_a_new_claim_never_both_win(rig):
    for _ in range(20):
        job = await rig.claimed()
        await rig.store.sweep([(job.id, job.fence)])
        outcome, claimed = await asyncio.gather(
            rig.say(Succeeded(job.id, job.fence, "w1", OUTPUT)), rig.claim("w2")
        )
        assert (outcome == [COMMITTED]) == (claimed == [])
        if claimed:
            await rig.say(Succeeded(job.id, claimed[0].fence, "w2"))


# --- batches


async def test_a_batch_of_everything_is_answered_in_order(rig):
    await rig.put(6, retry=TWICE)
    a, b, c, d, e, _ = jobs = await rig.claim(limit=6)
    await rig.store.cancel([e.id])
    reports = [
        Succeeded(e.id, e.fence, "w1"),
        HandedBack(d.id, d.fence, "w1"),
        Failed(c.id, c.fence, "w1", BOOM),
        Started(a.id, a.fence, "w1"),
        Succeeded(b.id, b.fence, "w1"),
        Started(new_job().id, 1, "w1"),
        Succeeded(a.id, a.fence, "w1"),
    ]
    answer = await rig.store.report(reports)
    assert [result.job_id for result in answer.results] == [report.job_id for report in reports]
    outcomes = [result.outcome for result in answer.results]
    assert outcomes == [
        STALE,
        COMMITTED,
        COMMITTED,
        COMMITTED,
        COMMITTED,
        ReportOutcome.NOT_FOUND,
        COMMITTED,
    ]
    assert answer.results[0].state is JobState.CANCELLED
    states = {record.id: record.state for record in await rig.store.get_jobs([j.id for j in jobs])}
    assert [int(states[job.id]) for job in jobs] == [4, 4, 1, 1, 6, 2]


async def test_a_start_and_its_end_in_one_batch_are_one_write(rig):
    job = await rig.claimed()
    outcomes = await rig.say(
        Started(job.id, job.fence, "w1"), Succeeded(job.id, job.fence, "w1", OUTPUT)
    )
    assert outcomes == [COMMITTED, COMMITTED]
    assert rig.sql("SELECT count(*) FROM commits") == [(3,)]  # put, claim, report


async def test_reports_in_crossing_orders_do_not_deadlock(rig):
    await rig.put(200)
    jobs = await rig.claim(limit=200)
    reports = [Succeeded(job.id, job.fence, "w1") for job in jobs]
    ids = [job.id for job in jobs]
    async with asyncio.timeout(10):
        answers = await asyncio.gather(
            rig.store.report(reports),
            rig.store.report(list(reversed(reports))),
            rig.store.cancel(list(reversed(ids))),
            rig.store.report([Started(job.id, job.fence, "w1") for job in reversed(jobs)]),
        )
    assert sum(len(answer.events) for answer in answers) >= 200


@pytest.mark.parametrize("report", [Succeeded, Failed, HandedBack])
async def test_a_report_that_waited_for_the_row_is_dated_after_what_it_waited_for(rig, report):
    job = await rig.claimed()
    extra = {Succeeded: (Payload.inline(b"y"),), Failed: (Failure("E", ""),)}.get(report, ())
    with transaction(rig.dsn) as other:
        other.execute("UPDATE jobs SET losses = losses WHERE id = %s", [job.id])
        said = asyncio.create_task(rig.say(report(job.id, job.fence, "w1", *extra)))
        await until(
            lambda: rig.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        )
        ((then,),) = rig.sql("SELECT clock_timestamp()")
        other.commit()
    assert await said == [ReportOutcome.COMMITTED]
    assert (await rig.events(job.id))[-1].time > then


# --- what a report costs


TYPES = {
    "ids": "uuid[]",
    "fences": "integer[]",
    "elapsed": "bigint[]",
    "outputs": "bytea[]",
    "namespace": "text",
    "note": "text",
}


PROBED = ("in_flight_pkey", "queue_claim", "unique_keys_pkey")


@pytest.mark.parametrize("name", ["succeed", "cancel"])
async def test_what_is_in_flight_is_probed_even_where_statistics_say_that_nothing_is(rig, name):
    await rig.put(300)
    jobs = await rig.claim(limit=300)
    await rig.say(*(Succeeded(job.id, job.fence, "w1") for job in jobs))
    rig.sql("INSERT INTO unique_keys SELECT uuidv7(), 'n', k FROM generate_series(1, 300) AS k")
    rig.sql("DELETE FROM unique_keys")
    rig.sql("ANALYZE in_flight, queue, unique_keys")
    numbers = count(1)

    def parameter(found: re.Match[str]) -> str:
        return f"${next(numbers)}::{TYPES.get(found[1], 'text[]')}"

    statement = re.sub(r"%\((\w+)\)[bst]", parameter, rig.store._queries[name].sql)
    with psycopg.connect(rig.dsn, **connection_options(StoreSettings())) as connection:
        rows = connection.execute(b"EXPLAIN (GENERIC_PLAN) " + statement.encode()).fetchall()
    plan = [row[0].strip() for row in rows]
    probes = [at for at, line in enumerate(plan) if any(f"using {i}" in line for i in PROBED)]
    for at in probes:
        assert plan[at + 1].startswith("Index Cond"), "\n".join(plan)
    assert any("using unique_keys_pkey" in plan[at] for at in probes), "\n".join(plan)
    assert not any("Seq Scan on unique_keys" in line for line in plan), "\n".join(plan)
