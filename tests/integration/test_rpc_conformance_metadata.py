"""What both servers promise of metadata, in both directions."""

from __future__ import annotations

from typing import Any, cast

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status
from jobmesh.v1 import enqueue_service_pb2_grpc as pb_grpc

from services.mesh.errors import JobNotFound
from tests.integration.chassis_mesh import JOB_ID, get_job, mesh
from tests.integration.http2_conformance_rig import (
    PATHS,
    PATIENCE,
    TRAILERS,
    UNARY,
    code_of,
    everything,
    failure,
    for_both,
    noise,
    server_kind,
    serving,
)


@for_both
async def test_trailing_metadata_of_a_refusal_arrives_in_each_kind_of_call(kind: str) -> None:
    async def refuse(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.ABORTED, "refused", TRAILERS)

    async with serving(kind) as s:
        s.on_all(refuse)
        for path, call in s.calls.each().items():
            got = (await failure(call)).trailing_metadata()
            assert sorted(map(repr, map(tuple, got))) == sorted(map(repr, TRAILERS)), path


@for_both
async def test_trailing_metadata_may_be_as_large_as_peers_take(kind: str) -> None:
    large = (("large-bin", noise(5_000)),)

    async def refuse(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.ABORTED, "refused", large)

    async with serving(kind) as s:
        s.on(UNARY, refuse)
        error = await failure(s.calls.unary(b"x"))
        assert tuple(map(tuple, error.trailing_metadata())) == large


@for_both
async def test_handlers_see_what_the_caller_added_and_nothing_of_the_transport(kind: str) -> None:
    seen: list[list[Any]] = []

    async def look(request: Any, context: Any) -> bytes | None:
        seen.append([tuple(pair) for pair in context.invocation_metadata()])
        return b""

    added = (*TRAILERS, ("with-space", "a b, c"), ("longer-bin", noise(3000)))
    async with serving(kind) as s:
        s.on_all(look)
        calls = s.open(compression=grpc.Compression.Gzip)
        for call in calls.each(metadata=added, timeout=PATIENCE).values():
            await everything(call)
    assert len(seen) == len(PATHS)
    for metadata in seen:
        # Who calls is told by both: it helps whoever reads logs.
        rest = [pair for pair in metadata if pair[0] != "user-agent"]
        assert sorted(map(repr, rest)) == sorted(map(repr, added))
        assert [value for name, value in rest if name == "many"] == ["first", "second"]


@for_both
async def test_a_call_with_too_much_metadata_is_refused_alone(kind: str) -> None:
    async with serving(kind) as s:
        under_way = s.calls.talk()
        await under_way.write(b"before")
        assert await under_way.read() == b"before"
        # Servers say what they take, which clients need not heed: an application put too much in.
        code = await code_of(s.calls.unary(b"x", metadata=(("large", "v" * 20_000),)))
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN)
        await under_way.write(b"after")
        assert await under_way.read() == b"after"


@for_both
async def test_metadata_of_8_kib_is_taken(kind: str) -> None:
    async def measure(request: bytes, context: Any) -> bytes:
        return b"%d" % len(dict(context.invocation_metadata())["large"])

    async with serving(kind) as s:
        s.on(UNARY, measure)
        for size in (100, 7_500):
            for _ in range(3):
                metadata = (("large", "v" * size),)
                assert await s.calls.unary(b"x", metadata=metadata) == b"%d" % size


@for_both
async def test_rich_details_arrive_where_the_standard_says(kind: str) -> None:
    async def get(request: Any, context: Any) -> Any:
        raise JobNotFound(JOB_ID)

    async with mesh(kind=server_kind(kind)) as m:
        m.sample.on_get = get
        error = await failure(pb_grpc.EnqueueServiceStub(m.bare).GetJob(get_job()))
    status = rpc_status.from_call(cast(grpc.Call, error))
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "JOB_NOT_FOUND"
