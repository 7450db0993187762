"""Workers that die or freeze with jobs in hand: every job runs again elsewhere, none ends twice."""

from __future__ import annotations

import time
from collections import Counter

from jobmesh import Job, JobState, NewJob
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import (
    PATIENCE,
    Gates,
    WorkerRoom,
    aside,
    is_running,
    metric,
    types_known,
)

#: From the death of a worker until its jobs run elsewhere.
RESCUE_SECONDS = 15.0


async def test_jobs_of_a_killed_worker_run_again_elsewhere_and_end_once(
    storm_client: AsyncClient, room: WorkerRoom, gates: Gates
) -> None:
    client = storm_client
    doomed = await room.ready("--types", "gated")
    await types_known(client, "gated")
    acks = await client.enqueue_many(NewJob("gated", gates.input) for _ in range(10))
    starts = await gates.started(10)
    assert {start.worker_pid for start in starts} == {doomed.pid}
    heir = await room.ready("--types", "gated")

    doomed.kill()
    began = time.monotonic()
    again = await gates.started(10, fence=2, seconds=RESCUE_SECONDS)
    print(f"ten jobs of a killed worker ran again after {time.monotonic() - began:.2f} s")
    assert {start.worker_pid for start in again} == {heir.pid}
    assert {start.job_id for start in again} == {ack.id for ack in acks}
    # Its executors went with it: no handler runs on behind the mesh's back.
    await eventually(lambda: not any(is_running(s.executor_pid) for s in starts), PATIENCE)

    gates.open()
    for ack in acks:
        job = await client.job(ack.id).wait(PATIENCE)
        assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
        assert [one.outcome for one in job.attempts] == ["LOST", "SUCCEEDED"]
        assert await client.job(ack.id).result() == "dispatch 2"
    assert Counter(start.fence for start in gates.starts()) == {1: 10, 2: 10}


async def test_a_frozen_worker_that_wakes_cannot_commit_what_was_rescued(
    storm: RunningMesh, storm_client: AsyncClient, room: WorkerRoom, gates: Gates
) -> None:
    client = storm_client
    zombie = await room.ready("--types", "gated")
    await types_known(client, "gated")
    handle = await client.enqueue("gated", gates.input)
    await gates.started(1)
    heir = await room.ready("--types", "gated")

    zombie.freeze()
    gates.open(fence=1)  # its handler is done: it wakes up with a result in hand
    (again,) = await gates.started(1, fence=2, seconds=RESCUE_SECONDS)
    assert again.worker_pid == heir.pid
    assert (await handle.get()).state in (JobState.DISPATCHED, JobState.RUNNING)

    refused = await aside(_refused, storm)
    zombie.thaw()
    await eventually(lambda: aside(_is_fenced, storm, zombie.metrics_url, refused), PATIENCE)
    job = await handle.get()
    assert job.state in (JobState.DISPATCHED, JobState.RUNNING)
    gates.open(fence=2)
    assert await handle.result(PATIENCE) == "dispatch 2"
    job = await handle.get(full=True)
    assert [one.outcome for one in job.attempts] == ["LOST", "SUCCEEDED"]
    assert job.worker_id == heir.identity()

    # The zombie has a new identity and takes work again.
    await aside(heir.stop)
    await client.enqueue("gated", {**gates.input, "seconds": 0})
    await eventually(lambda: gates.starts()[-1].worker_pid == zombie.pid, PATIENCE)


async def test_a_worker_told_to_end_hands_its_jobs_back_at_no_cost(
    storm_client: AsyncClient, room: WorkerRoom, gates: Gates
) -> None:
    client = storm_client
    leaving = await room.ready("--types", "gated", "--drain-seconds", "0.5")
    await types_known(client, "gated")
    handle = await client.enqueue("gated", gates.input)
    await gates.started(1)
    heir = await room.ready("--types", "gated")
    assert await aside(leaving.stop) == 0
    await eventually(lambda: gates.starts()[-1].worker_pid == heir.pid, PATIENCE)
    gates.open()
    job: Job = await handle.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    # More than once, if a grab of the leaving worker was still parked with a scheduler.
    assert {one.outcome for one in job.attempts[:-1]} == {"HANDED_BACK"}
    assert job.attempts[-1].worker_id == heir.identity()


def _refused(mesh: RunningMesh) -> float:
    """How many reports the Orchestrator has refused as stale."""
    port = mesh.plan.settings.port("orchestrator.metrics")
    return metric(f"http://127.0.0.1:{port}/metrics", "jobmesh_reports_total", verdict="stale")


def _is_fenced(mesh: RunningMesh, worker_metrics: str, before: float) -> bool:
    """The zombie heard of its lost lease, and what it reported was refused, or it did not dare."""
    lost = metric(worker_metrics, "jobmesh_leases_lost_total")
    return lost > 0 and _refused(mesh) > before
