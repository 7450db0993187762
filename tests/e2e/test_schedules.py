"""Schedules on the whole mesh: each nominal time once, through the death of schedulers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jobmesh import Job, JobState
from jobmesh.client import AsyncClient
from jobmesh.v1 import job_pb2
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, WorkerRoom, aside, types_known

SECOND = timedelta(seconds=1)


def nominal(job: Job) -> datetime:
    assert isinstance(job.message, job_pb2.Job)
    return job.message.nominal_time.ToDatetime(tzinfo=UTC)


async def made(client: AsyncClient, name: str) -> list[Job]:
    return sorted([job async for job in client.list(schedule=name)], key=nominal)


async def test_a_run_is_due_at_its_nominal_time_and_names_its_schedule(client: AsyncClient) -> None:
    await client.schedules.create("cron", "echo", 1, cron="* * * * * *", time_zone="Asia/Kolkata")
    try:

        async def enough() -> bool:
            return len(await made(client, "cron")) >= 3

        await eventually(enough, PATIENCE)
        jobs = await made(client, "cron")
    finally:
        await client.schedules.delete("cron")
    assert {job.due_time for job in jobs} == {nominal(job) for job in jobs}
    assert {(await client.get(job.id)).schedule for job in jobs} == {"cron"}
    late = [((await client.job(job.id).wait(PATIENCE)).start_time, nominal(job)) for job in jobs]
    assert all(start is not None and start >= time for start, time in late)


async def test_schedulers_that_die_lose_no_nominal_time_and_double_none(
    storm: RunningMesh, room: WorkerRoom
) -> None:
    await room.ready("--types", "echo")
    async with AsyncClient(storm.enqueue_target) as client:
        await types_known(client, "echo")
        names = [f"storm-{n}" for n in range(6)]
        for name in names:
            await client.schedules.create(name, "echo", 1, cron="* * * * * *", catch_up="all")
        first, second = [u.name for u in storm.plan.services if u.role == "scheduler"][:2]
        for scheduler in (first, second, first):
            before = len(await made(client, names[0]))
            await aside(storm.kill, scheduler)

            async def goes_on(seen: int = before) -> bool:
                return len(await made(client, names[0])) >= seen + 3

            await eventually(goes_on, PATIENCE)
            await aside(storm.start, scheduler)
        for name in names:
            await client.schedules.pause(name)
        for name in names:
            times = [nominal(job) for job in await made(client, name)]
            assert times == [times[0] + n * SECOND for n in range(len(times))], name
            await client.schedules.delete(name)


async def test_a_run_that_overlaps_waits_for_its_turn(client: AsyncClient) -> None:
    await client.schedules.create("line", "nap", {"seconds": 2.5}, every="1s", overlap="buffer_one")
    try:

        async def second_has_ended() -> bool:
            ended = [job for job in await made(client, "line") if job.state is JobState.SUCCEEDED]
            return len(ended) >= 2

        await eventually(second_has_ended, PATIENCE)
    finally:
        await client.schedules.delete("line")
    first, second = (await made_before_delete(client))[:2]
    assert first.end_time is not None
    assert second.start_time is not None
    assert second.start_time >= first.end_time


async def made_before_delete(client: AsyncClient) -> list[Job]:
    """The schedule is gone; its jobs still name it."""
    jobs = [job async for job in client.list(types=["nap"]) if job.schedule == "line"]
    return sorted(jobs, key=nominal)
