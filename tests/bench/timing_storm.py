"""Schedulers die, again and again; nothing may be lost or doubled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from jobmesh import Job, JobState
from jobmesh.client import AsyncClient
from jobmesh.v1 import job_pb2
from localmesh.harness import RunningMesh

from tests.bench.timing_place import Place, lateness

PER_SECOND = 100
SCHEDULES = 50
SECOND = timedelta(seconds=1)


async def storm(place: Place) -> dict[str, Any]:
    """A scheduler is killed every ten seconds and comes back three later, for two minutes."""
    seconds = place.scaled(120)
    async with AsyncClient(place.mesh.enqueue_target) as client:
        names = [f"storm-{n}" for n in range(SCHEDULES)]
        for name in names:
            await client.schedules.create(name, "stamp", b"", cron="* * * * * *", catch_up="all")
        kills = asyncio.create_task(_kill(place.mesh, seconds), name="kills")
        starts = await _run_at(place, seconds)
        killed = await kills
        for name in names:
            await client.schedules.pause(name)
        runs = {name: await _ended(client, name) for name in names}
    return {
        "kills": killed,
        "run_at": {"jobs": len(starts), "lost": 0} | lateness(starts),
        "schedules": {"schedules": SCHEDULES} | _judged(runs),
    }


async def _kill(mesh: RunningMesh, seconds: float) -> int:
    schedulers = [unit.name for unit in mesh.plan.services if unit.role == "scheduler"]
    end, killed = time.monotonic() + seconds, 0
    while time.monotonic() + 10 <= end:
        await asyncio.sleep(7)
        victim = schedulers[killed % len(schedulers)]
        await asyncio.to_thread(mesh.kill, victim)
        await asyncio.sleep(3)
        await asyncio.to_thread(mesh.start, victim)
        killed += 1
    return killed


async def _run_at(place: Place, seconds: int) -> list[tuple[datetime, datetime]]:
    """A hundred jobs a second, stored four seconds ahead; all must have succeeded."""
    first = datetime.now(UTC) + 4 * SECOND

    async def one(second: int) -> list[tuple[datetime, datetime]]:
        await asyncio.sleep(second)
        due = [first + (second + n / PER_SECOND) * SECOND for n in range(PER_SECOND)]
        return await place.load.started_at(due)

    parts = await asyncio.gather(*(one(second) for second in range(seconds)))
    return [start for part in parts for start in part]


async def _ended(client: AsyncClient, name: str) -> list[Job]:
    """All its jobs, once none of them is under way."""
    async with asyncio.timeout(60):
        while True:
            jobs = [job async for job in client.list(schedule=name)]
            if all(job.state.terminal for job in jobs):
                return jobs
            await asyncio.sleep(0.5)


def _judged(runs: dict[str, list[Job]]) -> dict[str, Any]:
    lost = doubled = 0
    starts: list[tuple[datetime, datetime]] = []
    for jobs in runs.values():
        times = Counter(_nominal(job) for job in jobs)
        expected = round((max(times) - min(times)) / SECOND) + 1
        lost += expected - len(times) + sum(job.state is not JobState.SUCCEEDED for job in jobs)
        doubled += sum(count - 1 for count in times.values())
        starts += [(_nominal(job), job.start_time) for job in jobs if job.start_time]
    return {"runs": len(starts), "lost": lost, "doubled": doubled} | lateness(starts)


def _nominal(job: Job) -> datetime:
    assert isinstance(job.message, job_pb2.Job)
    return job.message.nominal_time.ToDatetime(tzinfo=UTC)
