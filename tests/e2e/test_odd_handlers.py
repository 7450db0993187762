"""Handlers that raise or return odd things end their own job, and harm nobody else."""

from __future__ import annotations

import pytest
from jobmesh import JobState, Retry
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh

from tests.e2e.apps.odd_app import RAISED, RETURNED
from tests.e2e.hands import PATIENCE, Worker, WorkerRoom, types_known

TYPES = ("odd-async", "odd-plain")
#: What has a place in JSON after all.
FINE = ("none", "nul-text", "set")


@pytest.fixture(scope="module")
def odd_worker(calm_room: WorkerRoom) -> Worker:
    return calm_room.start(app="odd_app")


@pytest.mark.parametrize("what", [*RAISED, *RETURNED])
@pytest.mark.parametrize("type_", TYPES)
async def test_an_odd_handler_ends_its_job_and_nothing_else(
    mesh: RunningMesh, client: AsyncClient, odd_worker: Worker, type_: str, what: str
) -> None:
    await types_known(client, *TYPES)
    processes = {unit.name: mesh.process(unit.name) for unit in mesh.plan.services}
    job = await (await client.enqueue(type_, what)).wait(PATIENCE)
    assert job.state is (JobState.SUCCEEDED if what in FINE else JobState.FAILED)
    if what in RAISED:
        assert job.failure is not None
        assert job.failure.type
        assert len(job.failure.message) <= 8192
    assert odd_worker.child.poll() is None
    assert all(process.alive() for process in processes.values())


@pytest.mark.parametrize("what", ["retry-far", "retry-nan", "retry-past"])
async def test_an_absurd_wish_for_a_retry_does_not_harm(
    client: AsyncClient, odd_worker: Worker, what: str
) -> None:
    await types_known(client, *TYPES)
    retry = Retry.fixed("50ms", attempts=2)
    handle = await client.enqueue("odd-async", what, retry=retry)
    async for event in handle.events():
        # The watch may open when the first attempt is over already: then its snapshot says so.
        if event.state.terminal or (event.attempt and event.state is JobState.SCHEDULED):
            break
    await handle.cancel()
    assert (await handle.wait(PATIENCE)).state in (JobState.FAILED, JobState.CANCELLED)
