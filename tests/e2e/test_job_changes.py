"""What users do to jobs that exist, in the whole mesh: count, retry, update, explain, expire."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobmesh import JobState
from jobmesh.client import AsyncClient
from jobmesh.client.caller import Caller
from jobmesh.client.operators import pause_type, resume_type
from jobmesh.v1 import enqueue_service_pb2 as pb
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Gates, aside

COMMAND = str(Path(sys.executable).with_name("jobmesh"))
LABEL = {"suite": "changes"}


async def test_a_cancelled_job_is_retried_as_a_new_one_and_runs(client: AsyncClient) -> None:
    first = await client.enqueue("echo", "again", delay="1h", labels={**LABEL, "n": "retry"})
    assert await first.cancel()
    second = await client.retry(first.id)
    assert await second.result(PATIENCE) == "again"
    job = await second.get(full=True)
    assert job.message.origin_job_id == first.id  # type: ignore[attr-defined]
    assert (await first.get()).state is JobState.CANCELLED
    counts = await client.count(labels={"n": "retry"})
    assert counts == {JobState.CANCELLED: 1, JobState.SUCCEEDED: 1}


async def test_jobs_are_cancelled_and_retried_by_label(client: AsyncClient) -> None:
    chosen = {"labels": {"n": "bulk"}}
    for number in range(6):
        await client.enqueue("echo", number, delay="1h", labels={**LABEL, "n": "bulk"})
    assert await client.cancel_many(dry_run=True, **chosen) == 6  # type: ignore[arg-type]
    assert await client.cancel_many(reason="a test", **chosen) == 6  # type: ignore[arg-type]
    assert await client.retry_many(**chosen) == 6  # type: ignore[arg-type]
    assert await client.retry_many(**chosen) == 0  # type: ignore[arg-type]

    async def all_ran() -> bool:
        counts = await client.count(labels={"n": "bulk"})
        return counts == {JobState.CANCELLED: 6, JobState.SUCCEEDED: 6}

    await eventually(all_ran, PATIENCE)


async def test_a_job_moved_to_now_runs_at_once(client: AsyncClient) -> None:
    handle = await client.enqueue("echo", "moved", delay="1h")
    assert (await client.explain(handle.id)).reason == "NOT_DUE"
    began = time.monotonic()
    job = await client.update(handle.id, now=True, priority=9, labels=LABEL, version=1)
    assert (job.priority, dict(job.labels)) == (9, LABEL)
    assert job.version >= 2  # the row as it is now: a quick worker may have it already
    assert await handle.result(PATIENCE) == "moved"
    print(f"ran {time.monotonic() - began:.3f} s after it was moved")
    assert (await client.explain(handle.id)).reason == "ENDED"


async def test_a_paused_type_says_so_and_goes_on_when_resumed(
    client: AsyncClient, mesh: RunningMesh
) -> None:
    scheduler = mesh.targets("scheduler")[0]
    await pause_type(Caller(scheduler), "wordcount", "spelling")
    try:
        handle = await client.enqueue("wordcount", "a b c")

        async def paused() -> bool:
            found = await client.explain(handle.id)
            return found.reason == "PAUSED" and "spelling" in found.text

        await eventually(paused, PATIENCE)
        late = await _expiring(client, "wordcount")
        job = await late.wait(PATIENCE)
        assert (job.state, job.attempt, job.attempts) == (JobState.EXPIRED, 0, ())
        again = await client.retry(late.id)
    finally:
        await resume_type(Caller(scheduler), "wordcount")
    assert (await handle.wait(PATIENCE)).state is JobState.SUCCEEDED
    assert (await again.wait(PATIENCE)).state is not JobState.EXPIRED


async def _expiring(client: AsyncClient, type_: str):
    soon = datetime.now(UTC) + timedelta(seconds=1.5)
    return await client.enqueue(type_, "late", expire=soon)


async def test_a_job_that_is_not_started_in_time_expires(
    client: AsyncClient, mesh: RunningMesh
) -> None:
    scheduler = mesh.targets("scheduler")[0]
    await pause_type(Caller(scheduler), "nap")
    try:
        answer = await client.stub.Enqueue(
            pb.EnqueueRequest(job={"type": "nap", "timeouts": {"start": {"seconds": 1}}})
        )
        job = await client.job(answer.job.id).wait(PATIENCE)
    finally:
        await resume_type(Caller(scheduler), "nap")
    assert (job.state, job.attempt) == (JobState.EXPIRED, 0)
    assert job.end_time is not None
    assert job.due_time is not None
    waited = (job.end_time - job.due_time).total_seconds()
    print(f"expired {waited - 1:.2f} s after its time")
    assert 1 <= waited < 10


async def test_a_started_job_does_not_expire(client: AsyncClient, gates: Gates) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    handle = await client.enqueue("gated", gates.input, expire=soon)
    await gates.started(1)
    found = await client.explain(handle.id)
    assert found.reason == "RUNNING"
    await (await client.enqueue("echo", 1, delay="4s")).wait(PATIENCE)
    gates.open()
    assert (await handle.wait(PATIENCE)).state is JobState.SUCCEEDED


async def test_the_command_line_does_the_same(client: AsyncClient, mesh: RunningMesh) -> None:
    def run(*words: str, code: int = 0) -> str:
        env = {n: v for n, v in os.environ.items() if not n.startswith("JOBMESH_")}
        env |= {"JOBMESH_HOME": str(mesh.home)}
        command = [COMMAND, *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    label = ("--label", "n=cli")
    handle = await client.enqueue("echo", 1, delay="1h", labels={"n": "cli"})
    assert "NOT_DUE: it is due in" in await aside(run, "explain", handle.id)
    assert "version 2" in await aside(run, "update", handle.id, "--at", "in 2h", "-p", "3")
    assert "1 job would be cancelled" in await aside(run, "cancel", *label, "--dry-run")
    assert "1 job cancelled" in await aside(run, "cancel", *label)
    assert "ENDED" in await aside(run, "explain", handle.id)
    new = (await aside(run, "retry", handle.id)).strip()
    assert (await client.job(new).wait(PATIENCE)).state is JobState.SUCCEEDED
    assert "SUCCEEDED" in await aside(run, "count", *label)
    assert "give an ID" in await aside(lambda: run("cancel", code=2))
    assert "it is SUCCEEDED" in await aside(lambda: run("retry", new, code=1))
    assert "paused" in await aside(run, "type", "pause", "flaky", "--note", "a test")
    assert "resumed" in await aside(run, "type", "resume", "flaky")
