"""The path of a job: submitted by a client, run by a worker, watched to its end."""

from __future__ import annotations

import asyncio
import time

from jobmesh import CallError, JobState, NewJob
from jobmesh.client import AsyncClient

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Worker

PATH = [
    (1, JobState.SCHEDULED),
    (2, JobState.DISPATCHED),
    (3, JobState.RUNNING),
    (4, JobState.SUCCEEDED),
]


async def test_a_watch_sees_every_transition_of_a_job_in_order(client: AsyncClient) -> None:
    # Due a moment later, so that the watch is there before anything happens.
    handle = await client.enqueue("echo", {"hello": "mesh"}, delay="500ms")
    events = [event async for event in handle.events()]
    assert [(event.version, event.state) for event in events] == PATH
    assert [event.reason for event in events[1:]] == ["CLAIMED", "STARTED", "SUCCEEDED"]
    times = [event.time for event in events if event.time is not None]
    assert len(times) == len(PATH)
    assert times == sorted(times)


async def test_a_job_shows_its_attempt_and_returns_its_output(
    client: AsyncClient, calm_worker: Worker
) -> None:
    handle = await client.enqueue("echo", {"n": [1, 2.5, "drei", None]}, labels={"a": "b"})
    assert await handle.result(PATIENCE) == {"n": [1, 2.5, "drei", None]}
    job = await handle.get(full=True)
    assert (job.state, job.attempt, dict(job.labels)) == (JobState.SUCCEEDED, 1, {"a": "b"})
    (attempt,) = job.attempts
    assert (attempt.attempt, attempt.dispatch_no, attempt.outcome) == (1, 1, "SUCCEEDED")
    assert attempt.worker_id == job.worker_id == calm_worker.identity()
    times = [attempt.dispatch_time, attempt.start_time, attempt.end_time]
    known = [time for time in times if time is not None]
    assert len(known) == 3
    assert known == sorted(known)


async def test_a_batch_of_a_thousand_jobs_succeeds(client: AsyncClient) -> None:
    labels = {"batch": "thousand"}
    began = time.monotonic()
    acks = await client.enqueue_many(NewJob("echo", {"n": n}, labels=labels) for n in range(1000))
    stored = time.monotonic()
    assert len({ack.id for ack in acks}) == 1000

    async def all_succeeded() -> bool:
        done = [j async for j in client.list(states=["SUCCEEDED"], labels=labels, limit=1001)]
        return len(done) == 1000

    await eventually(all_succeeded, PATIENCE)
    print(f"1,000 jobs stored in {stored - began:.2f} s, done {time.monotonic() - began:.2f} s")
    sample = [await client.job(ack.id).result(PATIENCE) for ack in acks[::250]]
    assert sample == [{"n": 0}, {"n": 250}, {"n": 500}, {"n": 750}]


async def test_a_short_run_is_dated_by_its_handler_not_by_its_dispatch(client: AsyncClient) -> None:
    # Too short to be announced: its start is known only from how long the worker says it ran.
    handle = await client.enqueue("pause", {"seconds": 0.06})
    await handle.result(PATIENCE)
    (attempt,) = (await handle.get(full=True)).attempts
    assert attempt.dispatch_time is not None
    assert attempt.start_time is not None
    assert attempt.end_time is not None
    assert attempt.start_time > attempt.dispatch_time
    assert (attempt.end_time - attempt.start_time).total_seconds() >= 0.055


async def test_a_bad_job_among_calls_that_share_a_message_is_told_as_if_it_were_alone(
    client: AsyncClient,
) -> None:
    priorities = [0] * 20 + [99] + [0] * 20
    labels = {"batch": "shared"}
    calls = (client.enqueue("echo", n, priority=p, labels=labels) for n, p in enumerate(priorities))
    results = await asyncio.gather(*calls, return_exceptions=True)
    wrong = [result for result in results if isinstance(result, CallError)]
    assert [[v.field for v in error.violations] for error in wrong] == [["job.priority"]]
    assert "items[" not in str(wrong[0])
    assert sum((await client.count(labels=labels)).values()) == 40
