"""WorkerService: what this node runs, and how to stop it. Transport only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1.worker_service_pb2_grpc import WorkerServiceServicer

from services.mesh.wire.values import timedelta_of
from services.worker.app.attached import AttachDesk
from services.worker.app.node import Node
from services.worker.convert import description_to_proto, news_to_proto, running_to_proto
from services.worker.servicer_attach import AttachCalls


class WorkerServicer(AttachCalls, WorkerServiceServicer):
    """One worker node."""

    def __init__(self, node: Node, desk: AttachDesk) -> None:
        self._node = node
        self._desk = desk

    async def Describe(
        self, request: pb.WorkerServiceDescribeRequest, context: Any
    ) -> pb.WorkerServiceDescribeResponse:
        return description_to_proto(self._node.describe())

    async def ListRunning(
        self, request: pb.ListRunningRequest, context: Any
    ) -> pb.ListRunningResponse:
        return pb.ListRunningResponse(attempts=running_to_proto(self._node.running()))

    async def CancelAttempt(
        self, request: pb.CancelAttemptRequest, context: Any
    ) -> pb.CancelAttemptResponse:
        self._node.cancel(UUID(request.job_id), request.dispatch_no)
        return pb.CancelAttemptResponse()

    async def Drain(
        self, request: pb.WorkerServiceDrainRequest, context: Any
    ) -> pb.WorkerServiceDrainResponse:
        given = request.HasField("timeout")
        timeout = timedelta_of(request.timeout).total_seconds() if given else None
        return pb.WorkerServiceDrainResponse(running=self._node.drain(timeout))

    async def WatchAttempt(
        self, request: pb.WatchAttemptRequest, context: Any
    ) -> AsyncIterator[pb.WatchAttemptResponse]:
        attempt, voice = self._node.listen(UUID(request.job_id), request.dispatch_no)
        async with aclosing(voice.listen(request.after_number, once=request.once)) as said:
            async for news in said:
                yield news_to_proto(attempt, news)
