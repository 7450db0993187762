"""The report stream, through the Orchestrator's stub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from jobmesh.v1 import orchestrator_service_pb2
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub

from services.mesh.clock import Clock
from services.mesh.rpc import Channel
from services.worker.convert import answers_from_proto, reports_to_proto
from services.worker.domain.ending import Answer, Report
from services.worker.ports import Orchestrators, ReportStream


class GrpcReportStream(ReportStream):
    def __init__(self, call: Any, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        #: The server said that it reads columns. Before that, nothing must be put into them.
        self._columns = False

    async def send(self, reports: Sequence[Report]) -> None:
        now = self._clock.monotonic()
        await self._call.write(reports_to_proto(reports, now, columns=self._columns))

    async def answers(self) -> AsyncIterator[Sequence[Answer]]:
        async for response in self._call:
            if response.columns:
                self._columns = True
            if response.verdicts or response.judged:
                yield answers_from_proto(response)
            if response.draining:
                # What it has not answered by now is told to the next one.
                return


class GrpcOrchestrators(Orchestrators):
    """Any replica behind a channel."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._stub = OrchestratorServiceStub(channel)
        self._clock = clock

    @asynccontextmanager
    async def open(self, worker_id: str) -> AsyncIterator[ReportStream]:
        call: Any = self._stub.ReportAttempts()
        try:
            hello = orchestrator_service_pb2.ReportHello(worker_id=worker_id, columns=True)
            await call.write(orchestrator_service_pb2.ReportAttemptsRequest(hello=hello))
            yield GrpcReportStream(call, self._clock)
        finally:
            call.cancel()
