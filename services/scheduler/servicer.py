"""SchedulerService over gRPC."""

from __future__ import annotations

from typing import Any

from jobmesh.v1 import scheduler_service_pb2 as pb
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceServicer

from services.scheduler.app.console import Console
from services.scheduler.convert import tick_to_proto, view_to_proto


class SchedulerServicer(SchedulerServiceServicer):
    """Unpacks, calls one use case, packs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def Describe(
        self, request: pb.SchedulerServiceDescribeRequest, context: Any
    ) -> pb.SchedulerServiceDescribeResponse:
        return view_to_proto(self._console.describe())

    async def Tick(self, request: pb.TickRequest, context: Any) -> pb.TickResponse:
        return tick_to_proto(await self._console.tick(request.shards))

    async def PauseType(self, request: pb.PauseTypeRequest, context: Any) -> pb.PauseTypeResponse:
        await self._console.pause(request.type, request.note)
        return pb.PauseTypeResponse()

    async def ResumeType(
        self, request: pb.ResumeTypeRequest, context: Any
    ) -> pb.ResumeTypeResponse:
        await self._console.resume(request.type)
        return pb.ResumeTypeResponse()
