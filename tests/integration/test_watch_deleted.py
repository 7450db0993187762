"""Watches of jobs that retention deleted before their end could be told."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from grpc.aio import EOF
from jobmesh.v1 import enqueue_service_pb2 as pb

from services.mesh.errors import JobNotFound
from tests.integration.enqueue_desk import desk, read  # noqa: F401


async def heard_out(call) -> None:
    async with asyncio.timeout(20):
        while await call.read() is not EOF:
            pass


@pytest.mark.parametrize("ends_only", [False, True])
async def test_a_job_that_is_deleted_ends_its_watch(desk, shard_dsns, ends_only):
    job = (await desk.enqueue()).job
    call = desk.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[job.id], ends_only=ends_only))
    await read(call, 1)
    for dsn in shard_dsns:
        with psycopg.connect(dsn) as connection:
            for table, key in [("job_events", "job_id"), ("queue", "job_id"), ("jobs", "id")]:
                connection.execute(f"DELETE FROM {table} WHERE {key} = %s".encode(), [job.id])
    with pytest.raises(JobNotFound):
        await heard_out(call)
