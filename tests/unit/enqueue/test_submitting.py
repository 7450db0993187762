"""Which errors of a put say for certain that nothing was stored."""

from __future__ import annotations

import grpc
import pytest
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.packing import packed
from services.enqueue.adapters.submitting import Submitter
from services.enqueue.app.turnstile import Turnstile
from services.enqueue.convert import Single
from services.mesh.errors import (
    Code,
    DeadlineExceeded,
    DependencyUnavailable,
    Draining,
    InternalError,
    InvalidField,
    MeshError,
    NotImplementedYet,
    OutcomeUnknown,
    Overloaded,
    ShardUnavailable,
)
from services.mesh.rpc.errors import from_rpc_error

STATUS = grpc.StatusCode


def from_grpc(code: grpc.StatusCode, details: str) -> MeshError:
    """An error that no Orchestrator made."""
    empty = grpc.aio.Metadata()
    return from_rpc_error(grpc.aio.AioRpcError(code, empty, empty, details), "orchestrator")


def names(error: MeshError) -> str:
    return f"{error.code.name} {error.message}"[:60]


class Broken:
    """An Orchestrator whose puts fail."""

    def __init__(self, error: MeshError) -> None:
        self._error = error

    async def PutJobs(self, request: pb.PutJobsRequest) -> pb.PutJobsResponse:
        raise self._error


async def failures(error: MeshError) -> list[MeshError]:
    """What callers are told, by both ways."""
    submitter = Submitter(Broken(error), Turnstile())  # type: ignore[arg-type]
    told: list[MeshError] = []
    for put in (submitter.put("", [Single(pb.NewJob())]), submitter.put_brief(_request())):
        with pytest.raises(MeshError) as caught:
            await put
        told.append(caught.value)
    return told


def _request() -> pb.PutJobsRequest:
    return pb.PutJobsRequest(jobs=[pb.NewJob(namespace="n")])


@pytest.mark.parametrize(
    "error",
    [
        Overloaded(),
        InvalidField("jobs", "no"),
        NotImplementedYet("PutJobs"),
        from_grpc(STATUS.UNIMPLEMENTED, "Method not found!"),
        from_grpc(STATUS.UNAUTHENTICATED, "who are you"),
        from_grpc(STATUS.PERMISSION_DENIED, "not you"),
        from_grpc(STATUS.UNAVAILABLE, "failed to connect to all addresses; last error: …"),
        from_grpc(STATUS.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 4)"),
    ],
    ids=names,
)
async def test_what_was_refused_is_passed_on(error: MeshError) -> None:
    assert await failures(error) == [error, error]


@pytest.mark.parametrize(
    "error",
    [
        InternalError("x"),
        Draining(),
        DeadlineExceeded(),
        DependencyUnavailable("etcd"),
        ShardUnavailable("s0"),
        MeshError.restore("FROM_A_NEWER_VERSION", Code.FAILED_PRECONDITION, "no"),
        from_grpc(STATUS.INTERNAL, "Received RST_STREAM with error code 2"),
        from_grpc(STATUS.UNKNOWN, "Stream removed"),
        from_grpc(STATUS.CANCELLED, "Received RST_STREAM with error code 8"),
        from_grpc(STATUS.UNAVAILABLE, "Socket closed"),
        from_grpc(STATUS.RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11"),
        from_grpc(STATUS.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 4)"),
        from_grpc(STATUS.INTERNAL, "failed to connect to all addresses"),
    ],
    ids=names,
)
async def test_whatever_else_goes_wrong_may_have_been_stored(error: MeshError) -> None:
    assert [type(told) for told in await failures(error)] == [OutcomeUnknown] * 2


async def test_the_shard_that_did_not_say_is_still_named() -> None:
    error = OutcomeUnknown("s3")
    assert await failures(error) == [error, error]


class Older:
    """An Orchestrator that knows no jobs with keys in columns."""

    def __init__(self) -> None:
        self.puts: list[pb.PutJobsRequest] = []

    async def PutJobs(self, request: pb.PutJobsRequest) -> pb.PutJobsResponse:
        put = pb.PutJobsRequest()
        put.CopyFrom(request)
        self.puts.append(put)
        return pb.PutJobsResponse(results=[stored(job) for job in request.jobs])


def stored(job: pb.NewJob) -> pb.PutJobResult:
    return pb.PutJobResult(job={"id": f"id of {job.idempotency_key}"})


def keyed(count: int) -> list[Single]:
    spec = job_pb2.JobSpec(type="t", input={"data": b"x"})
    return [
        Single(
            pb.NewJob(namespace="n", spec=spec, idempotency_key=f"{n}", request_hash=b"%032d" % n),
            b"s",
        )
        for n in range(count)
    ]


async def test_an_older_orchestrator_gets_jobs_with_keys_as_messages() -> None:
    older = Older()
    singles = keyed(10)
    results = await Submitter(older, Turnstile()).put("n", singles)  # type: ignore[arg-type]
    assert list(results) == [stored(one.job) for one in singles]
    columns, messages = older.puts
    assert columns.keyed
    assert not columns.jobs
    assert list(messages.jobs) == [one.job for one in singles]
    assert not messages.keyed


async def test_the_same_of_batches() -> None:
    older = Older()
    request, _ = packed(keyed(10))
    told = await Submitter(older, Turnstile()).put_brief(request)  # type: ignore[arg-type]
    assert told == [stored(one.job) for one in keyed(10)]
