"""Calls to single workers, at the address they registered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1 import worker_service_pb2_grpc as rpc

from services.mesh.errors import MeshError
from services.mesh.rpc import TlsFiles, open_channel
from services.mesh.wire.values import duration
from services.scaler.domain.fleet import Worker

if TYPE_CHECKING:
    from jobmesh.v1.worker_service_pb2_grpc import WorkerServiceAsyncStub

#: A worker that takes longer than this to say what it does is taken as busy.
ANSWER_SECONDS = 2.0


class GrpcWorkerCalls:
    """A channel per call: a worker is called a few times in its life."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self._tls = tls

    async def running(self, worker: Worker) -> int | None:
        answer = await self._described(worker)
        return None if answer is None else answer.running

    async def finished(self, worker: Worker) -> int | None:
        answer = await self._described(worker)
        return None if answer is None else sum(answer.finished.values())

    async def drain(self, worker: Worker, timeout: timedelta | None) -> None:
        request = pb.WorkerServiceDrainRequest(timeout=duration(timeout))
        async with self._stub(worker) as stub:
            await stub.Drain(request, timeout=ANSWER_SECONDS)

    async def _described(self, worker: Worker) -> pb.WorkerServiceDescribeResponse | None:
        try:
            async with self._stub(worker) as stub:
                return await stub.Describe(
                    pb.WorkerServiceDescribeRequest(), timeout=ANSWER_SECONDS
                )
        except MeshError:
            return None

    @asynccontextmanager
    async def _stub(self, worker: Worker) -> AsyncIterator[WorkerServiceAsyncStub]:
        async with open_channel(worker.address, peer=worker.worker_id, tls=self._tls) as channel:
            yield rpc.WorkerServiceStub(channel)
