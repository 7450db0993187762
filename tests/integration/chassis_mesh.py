"""A small service on the chassis, over real gRPC, for the chassis' own tests.

It speaks EnqueueService, which has all four kinds of calls, and does whatever the test puts into
its hands: `on_get`, `on_watch`, `on_upload`, `on_stream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import enqueue_service_pb2_grpc as pb_grpc

from services.mesh.rpc import Channel, Server, open_channel
from services.mesh.runtime import Process
from services.mesh.telemetry.tracing import Tracing

SERVICE = pb.DESCRIPTOR.services_by_name["EnqueueService"]
JOB_ID = "018f0e2e-7e0a-7aaa-8000-000000000000"


async def _empty_stream(request: Any, context: Any) -> AsyncIterator[Any]:
    return
    yield


class Sample(pb_grpc.EnqueueServiceServicer):
    """Each method calls what the test gave it."""

    def __init__(self) -> None:
        self.on_get: Callable[[Any, Any], Awaitable[Any]] | None = None
        self.on_upload: Callable[[Any, Any], Awaitable[Any]] | None = None
        self.on_watch: Callable[[Any, Any], AsyncIterator[Any]] = _empty_stream
        self.on_stream: Callable[[Any, Any], AsyncIterator[Any]] = _empty_stream

    async def GetJob(self, request: Any, context: Any) -> Any:
        if self.on_get is None:
            return pb.GetJobResponse()
        return await self.on_get(request, context)

    async def UploadInput(self, request_iterator: Any, context: Any) -> Any:
        assert self.on_upload is not None
        return await self.on_upload(request_iterator, context)

    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for response in self.on_watch(request, context):
            yield response

    async def EnqueueStream(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for response in self.on_stream(request_iterator, context):
            yield response


class Mesh:
    """The service, the process around it, a channel and a stub to call it with."""

    def __init__(self, process: Process, sample: Sample, server: Server) -> None:
        self.process, self.sample, self.server = process, sample, server
        self.channel: Channel
        self.stub: pb_grpc.EnqueueServiceAsyncStub
        self.bare: grpc.aio.Channel


def get_job(namespace: str = "default") -> pb.GetJobRequest:
    return pb.GetJobRequest(namespace=namespace, job_id=JOB_ID)


@asynccontextmanager
async def mesh(
    *, tracing: Tracing | None = None, waits: Any = None, **options: Any
) -> AsyncIterator[Mesh]:
    """Serve a Sample and open a channel of ours and a bare one to it."""
    process = Process("sample", tracing=tracing)
    # Most methods are left to the chassis, which is the point.
    sample = Sample()  # type: ignore[abstract]
    server = Server(process, **options)
    server.add(
        pb_grpc.add_EnqueueServiceServicer_to_server,
        sample,
        unchecked=("ListTypes",),
        waits=waits,
    )
    made = Mesh(process, sample, server)
    await server.start()
    made.channel = open_channel(
        server.address, peer="enqueue", services=[SERVICE], tracing=process.tracing
    )
    made.stub = pb_grpc.EnqueueServiceStub(made.channel)
    made.bare = grpc.aio.insecure_channel(server.address)
    try:
        yield made
    finally:
        process.drain.set()
        await made.channel.close()
        await made.bare.close()
        await server.stop()
        await process.tasks.stop()
