"""ExplainJob over real shards and etcd."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import pool_pb2, worker_service_pb2

from services.mesh.errors import InvalidField, JobNotFound
from services.mesh.jobs import ids
from services.mesh.testing.waiting import eventually
from tests.integration.enqueue_desk import Desk, desk  # noqa: F401


async def explained(desk: Desk, job_id: str) -> pb.ExplainJobResponse:
    return await desk.stub.ExplainJob(pb.ExplainJobRequest(job_id=job_id))


async def reason(desk: Desk, job_id: str) -> str:
    answer = await explained(desk, job_id)
    assert answer.explanation
    return pb.WaitReason.Name(answer.reason).removeprefix("WAIT_REASON_")


async def test_the_reason_follows_the_job_and_what_is_around_it(desk):
    job = (await desk.enqueue(delay={"seconds": 3600})).job
    answer = await explained(desk, job.id)
    assert answer.reason == pb.WAIT_REASON_NOT_DUE
    assert answer.estimated_start_time == job.due_time
    due = (await desk.enqueue()).job
    assert await reason(desk, due.id) == "NO_WORKER"
    pool = pool_pb2.Pool(desired=2, starting=1, decision={"explanation": "1 job waits"})
    await desk.registry.put(f"{desk.keys.pool_statuses}echo", pool.SerializeToString())
    assert await reason(desk, due.id) == "POOL_SCALING"
    worker = worker_service_pb2.WorkerInfo(
        worker_id="w-1", types=[worker_service_pb2.TypeCapacity(type="echo", capacity=4)]
    )
    await desk.registry.put(desk.keys.worker("w-1"), worker.SerializeToString())
    await desk.registry.put(desk.keys.worker("odd"), b"\xff\xff")
    answer = await explained(desk, due.id)
    assert answer.reason == pb.WAIT_REASON_QUEUED
    assert "1 worker has room for 4" in answer.explanation
    await desk.registry.put(f"{desk.keys.paused}echo", b"until Monday")
    answer = await explained(desk, due.id)
    assert answer.reason == pb.WAIT_REASON_PAUSED
    assert "until Monday" in answer.explanation
    await desk.run(due)
    assert await reason(desk, due.id) == "ENDED"


async def test_the_place_counts_the_due_jobs_of_the_type_on_all_shards(desk):
    for _ in range(3):
        items = [pb.EnqueueItem(job={"type": "echo"})] * 5
        await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=items))
    first = (await desk.enqueue(priority=9)).job
    last = (await desk.enqueue()).job
    assert (await explained(desk, first.id)).position == 0
    answer = await explained(desk, last.id)
    assert (answer.position, answer.position_capped) == (16, False)
    assert not answer.HasField("estimated_start_time")


async def test_a_shard_that_is_away_is_told_as_the_reason(desk, shard_dsns):
    job = (await desk.enqueue()).job
    dsn = shard_dsns[int(job.shard.removeprefix("s"))]
    with psycopg.connect(dsn) as connection:
        connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        answer = await explained(desk, job.id)
    assert answer.reason == pb.WAIT_REASON_SHARD_AWAY
    assert job.shard in answer.explanation


async def test_strange_ids_are_refused_and_unknown_ones_not_found(desk):
    for strange in ("", "x", str(uuid.uuid4())):
        with pytest.raises(InvalidField, match="job_id"):
            await explained(desk, strange)
    job = (await desk.enqueue()).job
    unknown = str(ids.first_id_at(1))
    with pytest.raises(JobNotFound):
        await explained(desk, unknown)
    with pytest.raises(JobNotFound):
        await desk.stub.ExplainJob(pb.ExplainJobRequest(namespace="other", job_id=job.id))
    await eventually(lambda: desk.mesh.bells)
