"""Statistics of the load come when it changes."""

from __future__ import annotations

import asyncio

from jobmesh.v1 import bus_pb2, job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Parent
from tests.integration.orchestrator_rig import (
    claim,
    new_job,
    report,
    reported,
)


async def test_statistics_come_at_once_and_at_every_change(stand):
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        assert list((await call.read()).types) == []
        await stand.put(*(new_job("render") for _ in range(5)))
        load = await call.read()
    assert [(t.type, t.backlog, t.in_flight) for t in load.types] == [("render", 5, 0)]
    call.cancel()


async def test_statistics_come_when_a_job_becomes_due(stand):
    await stand.put(new_job("later", delay={"nanos": 700_000_000}))
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        first = await call.read()
        assert [(t.type, t.backlog) for t in first.types] == [("later", 0)]
        load = await call.read()
    assert [(t.type, t.backlog) for t in load.types] == [("later", 1)]
    call.cancel()


async def test_statistics_come_when_a_scheduler_has_released_a_job(stand):
    (parent,) = await stand.put(new_job())
    dependency = job_pb2.Dependency(job_id=parent.job.id)
    await stand.put(new_job("child", dependencies=[dependency]))
    claimed = await claim(stand, parent.job)
    await reported(stand, report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded()))
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        assert list((await call.read()).types) == []
        # As a scheduler does it: the Orchestrator has no part in it.
        for store in stand.stores.values():
            await store.release([Parent(claimed.id, JobState.SUCCEEDED)], 10)
        nudge = bus_pb2.Nudge(shard="s0").SerializeToString()
        await stand.bus.publish(stand.subjects.due("child"), nudge)
        while not (load := await call.read()).types:
            pass
    assert [(t.type, t.backlog) for t in load.types] == [("child", 1)]
    call.cancel()
