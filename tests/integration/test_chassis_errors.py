"""What a caller sees when a handler raises, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import enqueue_service_pb2_grpc as pb_grpc

from services.mesh.errors import (
    Code,
    DeadlineExceeded,
    DependencyUnavailable,
    ForbiddenTransition,
    InternalError,
    InvalidField,
    JobNotFound,
    MeshError,
    NotImplementedYet,
    Overloaded,
    QuotaExceeded,
    RemoteError,
    Resource,
)
from services.mesh.rpc import from_status, open_channel, to_status
from services.mesh.rpc.items import from_item_error, to_item_error
from services.mesh.testing.waiting import eventually
from tests.integration.chassis_mesh import JOB_ID, get_job, mesh


async def raised_by(call: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value


async def test_error_arrives_as_the_class_that_was_raised() -> None:
    async def get(request: Any, context: Any) -> Any:
        raise QuotaExceeded("team-a", "1000 jobs", retry_after=2.5)

    async with mesh() as m:
        m.sample.on_get = get
        error = await raised_by(m.stub.GetJob(get_job()))
    assert isinstance(error, QuotaExceeded)
    assert error.metadata == {"namespace": "team-a", "quota": "1000 jobs"}
    assert error.retry_after == 2.5
    assert error.resource == Resource("namespace", "team-a")


async def test_foreign_client_finds_the_standard_details() -> None:
    async def get(request: Any, context: Any) -> Any:
        raise ForbiddenTransition(JOB_ID, "SUCCEEDED", "cancel")

    async with mesh() as m:
        m.sample.on_get = get
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pb_grpc.EnqueueServiceStub(m.bare).GetJob(get_job())
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    status = rpc_status.from_call(cast(grpc.Call, caught.value))
    assert status is not None
    kinds = [detail.TypeName().removeprefix("google.rpc.") for detail in status.details]
    assert kinds == ["ErrorInfo", "PreconditionFailure", "ResourceInfo"]
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("jobmesh", "FORBIDDEN_TRANSITION")


async def test_defect_shows_only_a_correlation_id_that_the_log_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def get(request: Any, context: Any) -> Any:
        raise RuntimeError("password=hunter2")

    async with mesh() as m:
        m.sample.on_get = get
        error = await raised_by(m.stub.GetJob(get_job()))
    assert isinstance(error, InternalError)
    assert "hunter2" not in error.message
    (told,) = [r for r in caplog.records if getattr(r, "action", "") == "rpc_defect"]
    assert getattr(told, "correlation_id", "") == error.metadata["correlation_id"]
    assert told.exc_info is not None


async def test_broken_rules_are_named_field_by_field() -> None:
    async with mesh() as m:
        request = pb.EnqueueRequest(namespace="Not Good")
        request.job.type = "render"
        request.job.labels["bad key"] = "x"
        error = await raised_by(m.stub.Enqueue(request))
    assert isinstance(error, InvalidField)
    fields = {(violation.field, violation.rule) for violation in error.violations}
    assert ("namespace", "string.pattern") in fields
    assert ('job.labels["bad key"]', "string.pattern") in fields


async def test_method_that_is_not_filled_says_so() -> None:
    async with mesh() as m:
        unary = await raised_by(m.stub.ExplainJob(pb.ExplainJobRequest(job_id=JOB_ID)))
        stream = m.stub.DownloadOutput(pb.DownloadOutputRequest(job_id=JOB_ID))
        streaming = await raised_by(anext(aiter(stream)))
    for error, feature in ((unary, "ExplainJob"), (streaming, "DownloadOutput")):
        assert isinstance(error, NotImplementedYet)
        assert error.metadata == {"feature": feature}


async def test_bytes_that_are_no_message_are_an_invalid_argument() -> None:
    async with mesh() as m:
        call: Any = m.bare.unary_unary("/jobmesh.v1.EnqueueService/GetJob")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_call_beyond_the_limit_is_refused_while_health_still_answers() -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    async def get(request: Any, context: Any) -> Any:
        inside.set()
        await leave.wait()
        return pb.GetJobResponse()

    async with mesh(max_concurrent_rpcs=1) as m:
        m.sample.on_get = get
        first = asyncio.ensure_future(m.stub.GetJob(get_job()))
        await inside.wait()
        assert isinstance(await raised_by(m.stub.GetJob(get_job())), Overloaded)
        check: Any = m.bare.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        leave.set()
        await first
        await m.stub.GetJob(get_job())


async def test_timeout_inside_a_handler_is_deadline_exceeded() -> None:
    async def get(request: Any, context: Any) -> Any:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    async with mesh() as m:
        m.sample.on_get = get
        assert isinstance(await raised_by(m.stub.GetJob(get_job())), DeadlineExceeded)


async def test_deadline_of_the_caller_cancels_the_handler() -> None:
    cancelled = asyncio.Event()

    async def get(request: Any, context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with mesh() as m:
        m.sample.on_get = get
        error = await raised_by(m.stub.GetJob(get_job(), timeout=0.05))
        await asyncio.wait_for(cancelled.wait(), 5)
    assert isinstance(error, DeadlineExceeded)


async def test_work_cancelled_under_a_handler_is_answered() -> None:
    async def get(request: Any, context: Any) -> Any:
        batch = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(batch.cancel)
        return await batch

    async with mesh() as m:
        m.sample.on_get = get
        channel = pb_grpc.EnqueueServiceStub(m.bare)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(channel.GetJob(get_job()), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_peer_that_is_away_is_a_dependency_that_is_away() -> None:
    async with mesh() as m:
        address = m.server.address
    channel = open_channel(address, peer="orchestrator")
    try:
        stub = pb_grpc.EnqueueServiceStub(channel)
        error = await raised_by(stub.GetJob(get_job()))
    finally:
        await channel.close()
    assert isinstance(error, DependencyUnavailable)
    assert error.metadata == {"dependency": "orchestrator"}


async def test_error_of_a_peer_passes_through_a_service_unchanged() -> None:
    async def missing(request: Any, context: Any) -> Any:
        raise JobNotFound(JOB_ID)

    async with mesh() as back, mesh() as front:
        back.sample.on_get = missing

        async def forward(request: Any, context: Any) -> Any:
            return await back.stub.GetJob(request)

        front.sample.on_get = forward
        error = await raised_by(front.stub.GetJob(get_job()))
    assert isinstance(error, JobNotFound)
    assert error.metadata == {"job_id": JOB_ID}


async def test_message_beyond_the_limit_is_refused() -> None:
    async with mesh() as m:
        request = pb.EnqueueRequest()
        request.job.input.data = bytes(5 * 1024 * 1024)
        error = await raised_by(m.stub.Enqueue(request))
    assert error.code is Code.RESOURCE_EXHAUSTED


async def test_failures_of_ours_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    async def get(request: Any, context: Any) -> Any:
        raise DependencyUnavailable("nats") if request.namespace else JobNotFound(JOB_ID)

    async with mesh() as m:
        m.sample.on_get = get
        with caplog.at_level(logging.INFO, "services.mesh.rpc"):
            await raised_by(m.stub.GetJob(get_job()))
            await raised_by(m.stub.GetJob(get_job(namespace="")))
    told = [r for r in caplog.records if getattr(r, "action", "") == "rpc"]
    codes = {getattr(record, "code", "") for record in told}
    assert codes == {"UNAVAILABLE"}


async def test_duration_is_counted_by_method_and_code() -> None:
    async def get(request: Any, context: Any) -> Any:
        if request.namespace:
            raise JobNotFound(JOB_ID)
        return pb.GetJobResponse()

    async with mesh() as m:
        m.sample.on_get = get
        await raised_by(m.stub.GetJob(get_job()))
        await m.stub.GetJob(get_job(namespace=""))
        metrics = m.process.metrics
    method = "jobmesh.v1.EnqueueService/GetJob"
    name = "jobmesh_rpc_server_duration_seconds_count"
    for code in ("NOT_FOUND", "OK"):
        assert metrics.value(name, {"method": method, "code": code}) == 1
    assert metrics.value("jobmesh_rpc_server_in_flight", {"method": method}) == 0


async def test_connections_are_counted_and_those_that_break_the_rules() -> None:
    async with mesh() as m:
        await m.stub.GetJob(get_job())
        host, _, port = m.server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"grpcurl" in await reader.read()
        writer.close()
        metrics = m.process.metrics
        await eventually(lambda: metrics.value("jobmesh_rpc_server_connections") == 1, 5)
        assert metrics.value("jobmesh_rpc_server_broken_connections") == 1


async def test_cancelled_stream_closes_its_generator_at_once() -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            opened.set()
            yield pb.WatchJobsResponse()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with mesh() as m:
        m.sample.on_watch = watch
        call = m.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[JOB_ID]))
        await call.read()
        call.cancel()
        await asyncio.wait_for(closed.wait(), 5)


def test_status_without_our_details_becomes_a_remote_error() -> None:
    error = from_status(status_pb2.Status(code=7, message="go away"))
    assert type(error) is RemoteError
    assert error.code is Code.PERMISSION_DENIED


def test_status_keeps_everything_an_error_says() -> None:
    original = InvalidField("job.type", "must be set", "required")
    error = from_status(to_status(original))
    assert isinstance(error, InvalidField)
    assert error.violations == original.violations


def test_item_error_keeps_reason_metadata_and_violations() -> None:
    original = InvalidField("items[3].job.type", "must be set")
    restored = from_item_error(to_item_error(original))
    assert isinstance(restored, InvalidField)
    assert restored.violations == original.violations
    missing = from_item_error(to_item_error(JobNotFound("j")))
    assert (missing.code, missing.metadata) == (Code.NOT_FOUND, {"job_id": "j"})
