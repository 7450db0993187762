"""Jobs that are handed to a worker as they are stored: when they are, and who still gets a turn."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest
from jobmesh import JobState, NewJob
from jobmesh.client import AsyncClient, AsyncJobHandle
from jobmesh.client.caller import Caller
from jobmesh.client.operators import pause_type, resume_type
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from services.scheduler.domain.lending import LoanRules
from tests.e2e.hands import PATIENCE, WorkerRoom, aside, metric, types_known

LOAN_SECONDS = LoanRules().lasts


@pytest.fixture
async def client(storm_client: AsyncClient, room: WorkerRoom) -> AsyncClient:
    await room.ready("--types", "echo")
    await types_known(storm_client, "echo")
    return storm_client


def handed(mesh: RunningMesh) -> float:
    port = mesh.plan.settings.port("orchestrator.metrics")
    return metric(f"http://127.0.0.1:{port}/metrics", "jobmesh_handed_total", type="echo")


async def flow(mesh: RunningMesh, client: AsyncClient) -> None:
    """Run jobs one after the other until some were handed out as they were stored."""
    before = await aside(handed, mesh)

    async def some() -> bool:
        assert await (await client.enqueue("echo", "flow")).result(PATIENCE) == "flow"
        return await aside(handed, mesh) >= before + 3

    await eventually(some, PATIENCE)


async def test_jobs_that_nothing_waits_before_pass_the_schedulers_by(
    storm: RunningMesh, client: AsyncClient
) -> None:
    await flow(storm, client)
    before = await aside(handed, storm)
    handles = []
    for n in range(20):
        handles.append(await client.enqueue("echo", n))
        assert await handles[-1].result(PATIENCE) == n
    passed = await aside(handed, storm) - before
    print(f"{passed:g} of 20 were handed out as they were stored")
    assert passed >= 10
    job = await handles[-1].get()
    assert (job.state, job.version, job.attempt) == (JobState.SUCCEEDED, 4, 1)


async def test_a_stream_of_batches_is_handed_out_for_longer_than_a_loan_lasts(
    storm: RunningMesh, client: AsyncClient
) -> None:
    """The backlog that would grow at its end would never get shorter: both sides are busy."""
    await flow(storm, client)
    before, stored = await aside(handed, storm), 0

    async def submit() -> None:
        nonlocal stored
        while asyncio.get_running_loop().time() < until:
            acks = await client.enqueue_many(NewJob("echo", n) for n in range(60))
            stored += len(acks)
            await client.job(acks[-1].id).wait(PATIENCE)

    until = asyncio.get_running_loop().time() + LOAN_SECONDS + 2
    await asyncio.gather(submit(), submit())
    share = (await aside(handed, storm) - before) / stored
    print(f"{share:.0%} of {stored} jobs were handed out as they were stored")
    assert share >= 0.8


async def test_a_job_for_later_finds_the_room_that_was_lent(
    storm: RunningMesh, client: AsyncClient
) -> None:
    handle = await client.enqueue("echo", "later", delay="1500ms")
    await flow(storm, client)
    job = await handle.wait(PATIENCE)
    (attempt,) = (await handle.get(full=True)).attempts
    late = _seconds(job.due_time, attempt.start_time)
    print(f"started {late * 1000:.1f} ms after its time")
    assert 0 <= late < 0.5


async def test_a_batch_without_room_takes_its_turn_at_the_schedulers(
    storm: RunningMesh, client: AsyncClient
) -> None:
    await flow(storm, client)
    acks = await client.enqueue_many(NewJob("echo", n) for n in range(700))
    jobs = [await client.job(ack.id).wait(PATIENCE) for ack in acks]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    await flow(storm, client)


async def test_a_pause_holds_for_room_that_was_lent(
    storm: RunningMesh, client: AsyncClient
) -> None:
    await flow(storm, client)
    scheduler = Caller(storm.targets("scheduler")[0])
    await pause_type(scheduler, "echo")
    try:

        async def one_is_held() -> bool:
            """Who has the room hears of it within milliseconds, not before the call returns."""
            return await is_held(client, await client.enqueue("echo", "maybe"))

        await eventually(one_is_held, PATIENCE)
        handles = [await client.enqueue("echo", "held") for _ in range(10)]
        for handle in handles:
            assert await is_held(client, handle)
            assert (await handle.get()).state is JobState.SCHEDULED
    finally:
        await resume_type(scheduler, "echo")
    for handle in handles:
        assert await handle.result(PATIENCE) == "held"


async def is_held(client: AsyncClient, handle: AsyncJobHandle) -> bool:
    """Whether a job does not start since its type is paused, once that is known."""
    said: list[str] = []

    async def is_told() -> bool:
        said.append((await client.explain(handle.id)).reason)
        return said[-1] in ("PAUSED", "RUNNING", "ENDED")

    await eventually(is_told, PATIENCE)
    return said[-1] == "PAUSED"


async def test_an_orchestrator_that_is_killed_with_grabs_on_loan_costs_no_job(
    storm: RunningMesh, client: AsyncClient
) -> None:
    await flow(storm, client)
    storm.kill("orchestrator")
    restarting = asyncio.create_task(aside(storm.start, "orchestrator"))
    handles = [await client.enqueue("echo", n) for n in range(10)]
    jobs = [await handle.wait(PATIENCE) for handle in handles]
    await restarting
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    worst = max(_seconds(job.create_time, job.end_time) for job in jobs)
    print(f"the slowest took {worst:.2f} s")
    assert worst < 8


def _seconds(begin: datetime | None, end: datetime | None) -> float:
    assert begin is not None
    assert end is not None
    return (end - begin).total_seconds()
