"""What running handlers say, on a whole mesh: progress, checkpoints, logs, snooze, timeouts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import pytest
from jobmesh import JobState
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh

from services.mesh.blob import output_key
from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.errors import NotFound
from services.mesh.jobs.logs import LOG_SO_FAR_NAME, log_from_bytes
from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Worker, WorkerRoom, aside, types_known

TYPES = ("grumbles", "mute", "orphan", "sleepy", "steps")


@pytest.fixture
async def worker(storm_client: AsyncClient, room: WorkerRoom) -> Worker:
    made = await room.ready(app="saying_app")
    await types_known(storm_client, *TYPES)
    return made


def let_go(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"go-{step}").touch()


async def test_a_watcher_sees_how_far_a_handler_is(
    storm_client: AsyncClient, worker: Worker, tmp_path: Path
) -> None:
    handle = await storm_client.enqueue("steps", {"folder": str(tmp_path)})
    async with asyncio.timeout(PATIENCE), aclosing(handle.events(progress=True)) as events:
        await anext(events)  # the watch is open; what was said before it may have passed it by
        while (stored := (await handle.get()).progress) is None:
            pass  # each turn asks the mesh
        assert (stored.done, stored.total, stored.percent) == (0, 3, 0)
        let_go(tmp_path, 0, 1, 2)
        said = [
            (event.progress.done, event.progress.message, event.attempt)
            async for event in events
            if event.progress is not None
        ]
    assert said[-1] == (3, "done", 1)
    job = await handle.get()
    assert job.state is JobState.SUCCEEDED
    assert job.progress is not None
    assert job.progress.percent == 100
    assert job.version == 4  # progress is no transition


async def test_checkpoint_and_log_survive_the_death_of_their_worker(
    storm: RunningMesh,
    storm_client: AsyncClient,
    room: WorkerRoom,
    worker: Worker,
    tmp_path: Path,
) -> None:
    handle = await storm_client.enqueue("steps", {"folder": str(tmp_path)})
    let_go(tmp_path, 0, 1)

    async def at_the_third_step() -> bool:
        progress = (await handle.get()).progress
        return progress is not None and progress.message == "step 2"

    await eventually(at_the_third_step, PATIENCE)
    job_id = UUID(handle.id)

    async def its_line_is_kept() -> bool:
        return "step 2 of dispatch 1" in await so_far(storm, job_id)

    await eventually(its_line_is_kept, PATIENCE)
    worker.kill()
    await room.ready(app="saying_app")
    let_go(tmp_path, 2)
    assert await handle.result(PATIENCE) == [2, 3]
    job = await handle.get(full=True)
    assert [one.outcome for one in job.attempts] == ["LOST", "SUCCEEDED"]
    lines = [line.text async for line in handle.logs()]
    steps = [(0, 1), (1, 1), (2, 1), (2, 2)]
    assert lines == [f"step {step} of dispatch {dispatch}" for step, dispatch in steps]


async def so_far(mesh: RunningMesh, job_id: UUID) -> list[str]:
    """What is kept of the log of the first dispatch while it runs."""
    told = mesh.environment()
    connection = S3Connection(
        S3Settings(
            told["JOBMESH_S3_ENDPOINT"],
            told["JOBMESH_S3_REGION"],
            told["JOBMESH_S3_ACCESS_KEY"],
            told["JOBMESH_S3_SECRET_KEY"],
        )
    )
    try:
        store = S3BlobStore(connection, told["JOBMESH_S3_OUTPUT_BUCKET"])
        data = await store.get_bytes(output_key("default", job_id, 1, LOG_SO_FAR_NAME))
        return [line.text for line in log_from_bytes(data)]
    except NotFound:
        return []
    finally:
        await connection.close()


async def test_lines_are_read_live_and_kept(
    storm: RunningMesh, storm_client: AsyncClient, worker: Worker, tmp_path: Path
) -> None:
    handle = await storm_client.enqueue("steps", {"folder": str(tmp_path), "count": 2})
    live = []
    async with asyncio.timeout(PATIENCE), aclosing(handle.logs(follow=True)) as lines:
        async for line in lines:
            live.append(line.text)
            # The handler runs until it is let go: these lines come from its worker.
            let_go(tmp_path, len(live) - 1)
    assert live == ["step 0 of dispatch 1", "step 1 of dispatch 1"]
    kept = [(line.attempt, line.number, line.text) async for line in handle.logs()]
    assert kept == [(1, 1, "step 0 of dispatch 1"), (1, 2, "step 1 of dispatch 1")]
    shown = await aside(lambda: jobmesh(storm, "logs", handle.id))
    assert "step 1 of dispatch 1" in shown


def jobmesh(mesh: RunningMesh, *arguments: str) -> str:
    command = [sys.executable, "-m", "jobmesh.cli", *arguments, "--address", mesh.enqueue_target]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def test_the_log_of_each_attempt_is_kept_and_followed_over_retries(
    storm_client: AsyncClient, worker: Worker
) -> None:
    handle = await storm_client.enqueue("grumbles", retries=1)
    async with asyncio.timeout(PATIENCE):
        followed = [(one.attempt, one.text) async for one in handle.logs(follow=True)]
    said = [
        (n, text) for n in (1, 2) for text in (f"WARNING attempt {n} grumbles", "INFO and goes on")
    ]
    assert followed == said
    second = [(one.attempt, one.text) async for one in handle.logs(attempt=2)]
    assert second == said[2:]


async def test_a_snooze_costs_no_attempt(storm_client: AsyncClient, worker: Worker) -> None:
    handle = await storm_client.enqueue("sleepy", 0.2)
    assert await handle.result(PATIENCE) == 3
    job = await handle.get(full=True)
    assert (job.attempt, job.failure) == (1, None)
    # A dispatch to the worker that was killed before may have been lost on the way.
    outcomes = [one.outcome for one in job.attempts if one.outcome != "LOST"]
    assert outcomes == ["HANDED_BACK", "HANDED_BACK", "SUCCEEDED"]


async def test_a_silent_handler_is_stopped(storm_client: AsyncClient, worker: Worker) -> None:
    handle = await storm_client.enqueue("mute", progress_timeout="300ms")
    job = await handle.wait(PATIENCE)
    assert (job.state, job.failure and job.failure.type) == (JobState.FAILED, "ProgressTimeout")
    assert [one.outcome for one in job.attempts] == ["TIMED_OUT"]


async def test_a_running_job_ends_with_its_total_time_and_is_not_retried(
    storm_client: AsyncClient, worker: Worker
) -> None:
    handle = await storm_client.enqueue("mute", total_timeout="700ms", retries=5)
    job = await handle.wait(PATIENCE)
    assert (job.state, job.failure and job.failure.type) == (JobState.FAILED, "TotalTimeout")
    assert len(job.attempts) == 1


async def test_a_waiting_job_ends_with_its_total_time(
    storm_client: AsyncClient, worker: Worker
) -> None:
    snoozing = await storm_client.enqueue("sleepy", 3600, total_timeout="5s")

    async def snoozes() -> bool:
        job = await snoozing.get(full=True)
        return [one.outcome for one in job.attempts] == ["HANDED_BACK"]

    await eventually(snoozes, PATIENCE)
    worker.stop()
    unheard = await storm_client.enqueue("orphan", total_timeout="200ms")
    job = await snoozing.wait(PATIENCE)
    assert (job.state, job.failure and job.failure.type) == (JobState.FAILED, "TotalTimeout")
    job = await unheard.wait(PATIENCE)
    assert (job.state, job.failure) == (JobState.EXPIRED, None)
