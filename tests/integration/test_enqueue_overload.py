"""Too much at once: refused at the door, with the time to come back; all else goes on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import psycopg
import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub

from services.enqueue.main import build
from services.mesh.errors import Overloaded, QuotaExceeded
from services.mesh.testing.waiting import eventually
from tests.integration.enqueue_desk import desk, rows  # noqa: F401 - the fixture
from tests.integration.parts import served

ITEM = pb.EnqueueItem(job=job_pb2.JobSpec(type="echo"))


@pytest.fixture(autouse=True)
async def _patience():
    async with asyncio.timeout(60):
        yield


def batch(count: int, namespace: str = "") -> pb.EnqueueBatchRequest:
    return pb.EnqueueBatchRequest(namespace=namespace, items=[ITEM] * count)


@asynccontextmanager
async def told(desk, **settings):
    """Another Enqueue on the same mesh, with other settings."""
    config = replace(desk.config, instance="narrow", **settings)
    async with served("enqueue", config, build) as (process, channel, _):
        yield process, EnqueueServiceStub(channel)


@asynccontextmanager
async def shards_held(dsns: list[str]):
    """Nothing can be stored meanwhile: somebody has locked the tables."""
    async with AsyncExitStack() as held:
        for dsn in dsns:
            connection = await psycopg.AsyncConnection.connect(dsn)
            await held.enter_async_context(connection)
            await connection.execute("LOCK TABLE jobs IN SHARE MODE")
        yield


async def test_what_does_not_fit_is_refused_and_cancels_and_queries_go_on(desk, shard_dsns):
    job = (await desk.enqueue()).job
    async with told(desk, admitted_jobs=1000) as (process, stub):
        async with shards_held(shard_dsns):
            first = asyncio.ensure_future(stub.EnqueueBatch(batch(600)))
            await eventually(lambda: process.metrics.value("jobmesh_admitted_jobs") == 600)
            with pytest.raises(Overloaded) as caught:
                await stub.EnqueueBatch(batch(401))
            assert caught.value.retry_after
            assert (await stub.GetJob(pb.GetJobRequest(job_id=job.id))).job.id == job.id
        await first
        assert process.metrics.value("jobmesh_admitted_jobs") == 0
        assert (await stub.EnqueueBatch(batch(401))).results[0].job_id
        cancel = pb.CancelJobRequest(job_id=job.id)
        assert (await stub.CancelJob(cancel)).cancelled


async def test_a_namespace_over_its_quota_is_refused_with_the_time_to_come_back(desk):
    async with told(desk, quota="0.5:100", quotas={"vip": "0"}) as (_, stub):
        await stub.EnqueueBatch(batch(100, "noisy"))
        with pytest.raises(QuotaExceeded) as caught:
            await stub.EnqueueBatch(batch(100, "noisy"))
        assert 100 < caught.value.retry_after <= 200
        assert caught.value.metadata == {
            "namespace": "noisy",
            "quota": "0.5 jobs/s, 100 at once",
        }
        await stub.EnqueueBatch(batch(100, "quiet"))
        await stub.EnqueueBatch(batch(500, "vip"))
        await stub.EnqueueBatch(batch(500, "vip"))


async def test_a_stream_over_its_quota_is_slowed_and_loses_nothing(desk):
    async with told(desk, quota="500:100") as (process, stub):
        call = stub.EnqueueStream()
        began = process.clock.monotonic()
        for _ in range(6):
            await call.write(pb.EnqueueStreamRequest(items=[ITEM] * 100))
        await call.done_writing()
        ids = [result.job_id async for answer in call for result in answer.results]
    assert len(set(ids)) == 600
    assert all(ids)
    # The first hundred are free, however the others form batches: these wait for a full bucket.
    assert process.clock.monotonic() - began >= 0.2
    assert await rows(desk) == 600
