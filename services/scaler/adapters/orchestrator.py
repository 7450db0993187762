"""Statistics, from the Orchestrator's stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TYPE_CHECKING

from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2_grpc as rpc

from services.mesh.clock import Clock
from services.mesh.rpc import Channel
from services.mesh.wire.values import duration
from services.scaler import convert
from services.scaler.domain.load import LoadReport

if TYPE_CHECKING:
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub


class OrchestratorLoad:
    """The load of the mesh: at once, then at every change and at least every `interval`."""

    def __init__(self, channel: Channel, interval: timedelta, clock: Clock) -> None:
        self._stub: OrchestratorServiceAsyncStub = rpc.OrchestratorServiceStub(channel)
        self._interval, self._clock = interval, clock

    async def follow(self) -> AsyncGenerator[LoadReport, None]:
        call = self._stub.Stats(pb.StatsRequest(interval=duration(self._interval)))
        try:
            async for response in call:
                yield convert.report_from_proto(response, self._clock.now())
        finally:
            call.cancel()
