"""Single calls that come beside each other: stored together, each answered for itself."""

from __future__ import annotations

import asyncio

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from services.mesh.errors import IdempotencyConflict, InvalidField, MeshError
from tests.integration.enqueue_desk import SCHEDULED, Desk, desk, rows  # noqa: F401


async def answered(desk: Desk, request: pb.EnqueueRequest) -> pb.EnqueueResponse | MeshError:
    try:
        return await desk.stub.Enqueue(request)
    except MeshError as error:
        return error


def call(data: bytes, key: str = "", **spec: object) -> pb.EnqueueRequest:
    given = {"type": "echo", "input": payload_pb2.Payload(data=data), **spec}
    return pb.EnqueueRequest(job=job_pb2.JobSpec(**given), idempotency_key=key)  # type: ignore[arg-type]


async def test_calls_of_all_sorts_beside_each_other_are_each_answered_for_itself(desk):
    await desk.enqueue(b"first", key="taken")
    requests = [call(b"%d" % n) for n in range(100)]
    requests[3] = call(b"labelled", labels={"a": "b"})
    requests[20] = call(b"keyed", key="k")
    requests[40] = call(b"other", key="taken")
    requests[60] = call(b"low", priority=7_000)
    requests[80] = call(b"l" * 40_000)
    answers = await asyncio.gather(*(answered(desk, request) for request in requests))
    for at, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        if at == 40:
            assert isinstance(answer, IdempotencyConflict)
        elif at == 60:
            assert isinstance(answer, InvalidField)
        else:
            assert isinstance(answer, pb.EnqueueResponse), answer
            job = await desk.get(answer.job.id)
            assert job.spec.labels == request.job.labels
            if at != 80:
                assert job.spec.input.data == request.job.input.data
            said = answer.job
            assert (said.state, said.version, said.shard) == (SCHEDULED, 1, job.shard)
            assert (said.create_time, said.due_time) == (job.create_time, job.due_time)
    assert await rows(desk) == 99
