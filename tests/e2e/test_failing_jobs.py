"""Jobs that fail: retries with backoff, the end of attempts, crashes and timeouts of executors."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

from jobmesh import Job, JobState, Retry
from jobmesh.client import AsyncClient

from tests.e2e.hands import PATIENCE, Gates, is_running


async def test_a_flaky_job_is_retried_with_growing_waits_until_it_succeeds(
    client: AsyncClient,
) -> None:
    retry = Retry.exponential("200ms", factor=3, attempts=4, jitter=0)
    handle = await client.enqueue("flaky", {"failures": 2}, retry=retry)
    assert await handle.result(PATIENCE) == "succeeded in attempt 3"
    job = await handle.get(full=True)
    assert [one.outcome for one in job.attempts] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert [one.attempt for one in job.attempts] == [1, 2, 3]
    first, second = _waits(job)
    assert first >= timedelta(milliseconds=200)
    assert second >= timedelta(milliseconds=600)
    print(f"waits between attempts: {first.total_seconds():.3f} s, {second.total_seconds():.3f} s")
    assert second < timedelta(seconds=3)


async def test_a_job_without_attempts_left_is_failed_and_says_why(client: AsyncClient) -> None:
    handle = await client.enqueue("flaky", {"failures": 9}, retry=Retry.fixed("50ms", attempts=3))
    job = await handle.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.FAILED, 3)
    assert [one.outcome for one in job.attempts] == ["FAILED"] * 3
    assert job.failure is not None
    assert job.failure.type == "RuntimeError"
    assert job.failure.message == "attempt 3 fails on purpose"
    assert "in flaky" in job.failure.traceback
    assert "raise RuntimeError" in job.failure.traceback


async def test_a_job_by_the_name_of_its_type_is_retried_as_its_handler_asks(
    client: AsyncClient,
) -> None:
    settings = await client.type_settings("flaky")
    assert settings.handler_retry == "exponential from 1.0 s, 4 attempts"
    handle = await client.enqueue("flaky", {"failures": 1})
    assert await handle.result(PATIENCE) == "succeeded in attempt 2"
    # The job's own word goes before it, and so does the operator's.
    outright = await client.enqueue("flaky", {"failures": 1}, retries=0)
    assert (await outright.wait(PATIENCE)).attempt == 1
    await client.set_type_settings("flaky", retry=Retry.none())
    try:
        handle = await client.enqueue("flaky", {"failures": 1})
        job = await handle.wait(PATIENCE)
        assert (job.state, job.attempt) == (JobState.FAILED, 1)
    finally:
        await client.set_type_settings("flaky", retry=None)


async def test_a_schedule_retries_as_the_handler_asks(client: AsyncClient) -> None:
    await client.schedules.create("stubborn", "flaky", {"failures": 1}, every="1d")
    try:
        made = await client.schedules.trigger("stubborn")
        assert await client.job(made.id).result(PATIENCE) == "succeeded in attempt 2"
    finally:
        await client.schedules.delete("stubborn")


async def test_an_executor_that_dies_fails_the_attempt_and_nothing_else(
    client: AsyncClient,
) -> None:
    crashing = await client.enqueue("crash", 7, retry=Retry.fixed("50ms", attempts=2))
    job = await crashing.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.FAILED, 2)
    assert job.failure is not None
    assert job.failure.type == "ExecutorCrashed"
    message = job.message
    assert message.failure.exit_code == 7  # type: ignore[attr-defined]
    # The worker itself is unharmed.
    assert (await (await client.enqueue("nap", {"seconds": 0})).wait(PATIENCE)).attempt == 1


async def test_an_attempt_that_runs_too_long_is_killed(client: AsyncClient, gates: Gates) -> None:
    handle = await client.enqueue("gated", gates.input, timeout="700ms")
    job = await handle.wait(PATIENCE)
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.type == "RunTimeout"
    (attempt,) = job.attempts
    assert attempt.outcome == "TIMED_OUT"
    # The start is recorded a moment after it happened; the dispatch before it.
    assert _span(attempt.dispatch_time, attempt.end_time) >= timedelta(milliseconds=700)
    (start,) = gates.starts()
    assert not is_running(start.executor_pid)


def _waits(job: Job) -> list[timedelta]:
    """From the end of each attempt to the start of the next."""
    return [
        _span(before.end_time, after.start_time)
        for before, after in itertools.pairwise(job.attempts)
    ]


def _span(start: datetime | None, end: datetime | None) -> timedelta:
    assert start is not None
    assert end is not None
    return end - start
