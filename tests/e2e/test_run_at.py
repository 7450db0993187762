"""Jobs for later, and jobs again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobmesh import Job, JobState
from jobmesh.client import AsyncClient
from jobmesh.v1 import job_pb2

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE

SECOND = timedelta(seconds=1)


async def test_a_job_for_later_starts_not_early_and_soon_after(client: AsyncClient) -> None:
    due = datetime.now(UTC) + 1.5 * SECOND
    job = await (await client.enqueue("echo", 1, at=due)).wait(PATIENCE)
    assert job.state is JobState.SUCCEEDED
    assert job.due_time == due
    # All by the clock of the shard that holds the job.
    assert job.create_time is not None
    assert job.start_time is not None
    assert job.create_time < due <= job.start_time
    late = job.start_time - due
    print(f"started {late / SECOND * 1000:.1f} ms after its time")
    assert late < 2 * SECOND


async def test_a_schedule_makes_one_job_for_each_nominal_time(client: AsyncClient) -> None:
    await client.schedules.create("every-second", "echo", {"tick": 1}, every="1s")
    try:
        await eventually(lambda: _made(client, at_least=5), PATIENCE)
        await client.schedules.pause("every-second")
        jobs = [job async for job in client.list(schedule="every-second")]
    finally:
        await client.schedules.delete("every-second")
    nominal = sorted(_nominal_time(job) for job in jobs)
    assert len(nominal) >= 5
    assert nominal == [nominal[0] + n * SECOND for n in range(len(nominal))]
    assert all(time.microsecond == 0 for time in nominal)
    for job in jobs:
        done = await client.job(job.id).wait(PATIENCE)
        assert done.state is JobState.SUCCEEDED
        assert done.start_time is not None
        assert done.start_time >= _nominal_time(job)


async def _made(client: AsyncClient, at_least: int) -> bool:
    return len([job async for job in client.list(schedule="every-second")]) >= at_least


def _nominal_time(job: Job) -> datetime:
    assert isinstance(job.message, job_pb2.Job)
    return job.message.nominal_time.ToDatetime(tzinfo=UTC)
