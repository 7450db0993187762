"""EnqueueStream over a real mesh of services: acknowledged in order, item by item."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from grpc.aio import EOF
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

from services.mesh.errors import InvalidField
from tests.integration.enqueue_desk import desk, rows  # noqa: F401 - the fixture

GOOD = pb.EnqueueItem(job=job_pb2.JobSpec(type="echo"))


@pytest.fixture(autouse=True)
async def _patience():
    async with asyncio.timeout(30):
        yield


async def read(call, count: int) -> list[pb.EnqueueResult]:
    """The next results, which are numbered without a gap."""
    results: list[pb.EnqueueResult] = []
    first = None
    while len(results) < count:
        response = await call.read()
        assert response is not EOF
        first = response.first_item if first is None else first
        assert response.first_item == first + len(results)
        results += response.results
    return results


async def test_a_stream_is_acknowledged_in_order_and_one_bad_item_hinders_nobody(desk):
    call = desk.stub.EnqueueStream()
    await call.write(pb.EnqueueStreamRequest(namespace="n1"))
    items = [
        GOOD,
        pb.EnqueueItem(job=job_pb2.JobSpec(type="Not A Type")),
        pb.EnqueueItem(job=job_pb2.JobSpec(type="nobody")),
    ]
    await call.write(pb.EnqueueStreamRequest(items=items))
    await call.write(pb.EnqueueStreamRequest(items=items))
    await call.done_writing()
    results = await read(call, 6)
    reasons = [result.error.reason for result in results]
    assert reasons == ["", "INVALID_FIELD", "UNKNOWN_TYPE"] * 2
    assert results[4].error.field_violations[0].field == "items[4].job.type"
    assert await call.read() is EOF
    page = await desk.stub.ListJobs(pb.ListJobsRequest(namespace="n1"))
    assert {job.id for job in page.jobs} == {results[0].job_id, results[3].job_id}


async def test_a_known_key_gives_the_same_job_again(desk):
    item = pb.EnqueueItem(job=job_pb2.JobSpec(type="echo"), idempotency_key=str(uuid.uuid4()))
    call = desk.stub.EnqueueStream()
    await call.write(pb.EnqueueStreamRequest(items=[item]))
    (first,) = await read(call, 1)
    await call.write(pb.EnqueueStreamRequest(items=[item]))
    (again,) = await read(call, 1)
    await call.done_writing()
    assert (again.job_id, first.existing, again.existing) == (first.job_id, False, True)


async def test_a_namespace_in_a_later_message_is_refused_after_the_acknowledgements(desk):
    call = desk.stub.EnqueueStream()
    await call.write(pb.EnqueueStreamRequest(items=[GOOD]))
    await call.write(pb.EnqueueStreamRequest(namespace="other", items=[GOOD]))
    assert (await read(call, 1))[0].job_id
    with pytest.raises(InvalidField, match="namespace"):
        await call.read()
    assert await rows(desk) == 1


async def test_a_stream_that_says_nothing_ends_well(desk):
    call = desk.stub.EnqueueStream()
    await call.done_writing()
    assert await call.read() is EOF


async def test_ten_thousand_jobs_are_stored_once_each(desk):
    call = desk.stub.EnqueueStream()

    async def send() -> None:
        for _ in range(40):
            await call.write(pb.EnqueueStreamRequest(items=[GOOD] * 250))
        await call.done_writing()

    sending = asyncio.create_task(send(), name="send")
    results = await read(call, 10_000)
    await sending
    assert len({result.job_id for result in results}) == 10_000
    assert await call.read() is EOF


async def test_a_drain_acknowledges_what_was_read_and_ends_with_ok(desk):
    call = desk.stub.EnqueueStream()
    await call.write(pb.EnqueueStreamRequest(items=[GOOD] * 10))
    await read(call, 10)
    desk.process.drain.set()
    assert await call.read() is EOF
    assert await rows(desk) == 10
