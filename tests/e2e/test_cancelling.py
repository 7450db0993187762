"""Cancelling: a job that waits, and one that runs."""

from __future__ import annotations

import time

from jobmesh import JobState
from jobmesh.client import AsyncClient

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Gates, WorkerRoom, is_running, types_known


async def test_a_waiting_job_is_cancelled_and_never_runs(client: AsyncClient, gates: Gates) -> None:
    handle = await client.enqueue("gated", gates.input, delay="1s")
    assert await handle.cancel("not needed")
    job = await handle.wait(PATIENCE)
    assert (job.state, job.attempt, job.attempts) == (JobState.CANCELLED, 0, ())
    assert await handle.cancel() is False
    # One that was due at the same time has run: the cancelled one would have too.
    await (await client.enqueue("echo", 1, delay="1s")).wait(PATIENCE)
    assert gates.starts() == []


async def test_a_running_job_is_stopped_and_its_worker_takes_other_work(
    client: AsyncClient, calm_room: WorkerRoom, gates: Gates
) -> None:
    # Alone in serving this type, with room for one.
    worker = await calm_room.ready("--types", "narrow")
    await types_known(client, "narrow")
    handle = await client.enqueue("narrow", {**gates.input, "seconds": 60})
    waiting = await client.enqueue("narrow", {**gates.input, "seconds": 0})
    (start,) = await gates.started(1)
    assert start.worker_pid == worker.pid

    began = time.monotonic()
    assert await handle.cancel("enough")
    job = await handle.wait(PATIENCE)
    assert job.state is JobState.CANCELLED
    assert [one.outcome for one in job.attempts] == ["CANCELLED"]
    after = await waiting.wait(PATIENCE)
    took = time.monotonic() - began
    assert after.state is JobState.SUCCEEDED
    assert after.worker_id == worker.identity()
    print(f"the worker took other work {took:.2f} s after the cancel")
    assert took < 10
    await eventually(lambda: not _runs(start.executor_pid, handle.id, gates), PATIENCE)
    worker.stop()


def _runs(pid: int, job_id: str, gates: Gates) -> bool:
    """Whether that executor still has only the cancelled job: it is gone, or has run another."""
    if not is_running(pid):
        return False
    return not any(s.executor_pid == pid and s.job_id != job_id for s in gates.starts())
