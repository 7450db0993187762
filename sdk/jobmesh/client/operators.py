"""Pools and shards: what operators ask the Scaler and the Orchestrator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from jobmesh.client.caller import Caller, pauses
from jobmesh.client.status import is_transient
from jobmesh.client.watch import PATIENCE_SECONDS
from jobmesh.errors import CallError, Unavailable
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb
from jobmesh.v1 import scaler_service_pb2 as scaler_pb
from jobmesh.v1 import scheduler_service_pb2 as scheduler_pb
from jobmesh.v1 import worker_service_pb2 as worker_pb
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from jobmesh.v1.pool_pb2 import Pool, PoolSpec
from jobmesh.v1.scaler_service_pb2_grpc import ScalerServiceStub
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from jobmesh.v1.topology_pb2 import Topology
from jobmesh.v1.worker_service_pb2_grpc import WorkerServiceStub

STREAM_SECONDS = 1800.0


class Pools:
    """A client of ScalerService."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._stub = ScalerServiceStub(caller.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._caller.close()

    async def list(self) -> AsyncIterator[Pool]:
        """All pools, by type."""
        request = scaler_pb.ListPoolsRequest()
        while True:
            page = await self._caller.call(self._stub.ListPools, request, repeat=True)
            for pool in page.pools:
                yield pool
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def create(self, spec: PoolSpec) -> Pool:
        """Makes a pool; the same one again is no error, so the call may be repeated."""
        request = scaler_pb.CreatePoolRequest(spec=spec)
        return (await self._caller.call(self._stub.CreatePool, request, repeat=True)).pool

    async def get(self, type: str) -> Pool:
        """One pool as it is."""
        request = scaler_pb.GetPoolRequest(type=type)
        return (await self._caller.call(self._stub.GetPool, request, repeat=True)).pool

    async def update(self, spec: PoolSpec, paths: Sequence[str], etag: str = "") -> Pool:
        """Changes the fields that the paths name; with an etag, only if nobody did meanwhile."""
        mask = FieldMask(paths=paths)
        request = scaler_pb.UpdatePoolRequest(spec=spec, update_mask=mask, etag=etag)
        # Sent again after it was carried out, its own change would count as somebody else's.
        call = self._caller.call(self._stub.UpdatePool, request, repeat=not etag)
        return (await call).pool

    async def delete(self, type: str) -> None:
        """Removes a pool and drains the workers it started; the type stays known."""
        request = scaler_pb.DeletePoolRequest(type=type)
        await self._caller.call(self._stub.DeletePool, request, repeat=True)

    async def watch(self, types: Sequence[str] = ()) -> AsyncIterator[scaler_pb.WatchPoolsResponse]:
        """All pools as they are, then each at every change, over lost connections: for up to a
        minute without an answer, once there was one.
        """
        request = scaler_pb.WatchPoolsRequest(types=types)
        shown: dict[str, scaler_pb.WatchPoolsResponse] = {}
        patience = _Patience()
        while True:
            stream = self._stub.WatchPools(request, timeout=STREAM_SECONDS)
            error: CallError = Unavailable("the Scaler is going away", reason="DRAINING")
            try:
                async for response in stream:
                    patience.renew()
                    if shown.get(response.pool.spec.type) != response:  # else it is told again
                        shown[response.pool.spec.type] = response
                        yield response
            except grpc.aio.AioRpcError as failure:
                error = self._caller.explain(failure, STREAM_SECONDS)
            finally:
                stream.cancel()
            await patience.bear(error)


class _Patience:
    """Whether a stream that ended is asked for again: once something was heard, for a minute."""

    def __init__(self) -> None:
        self._pauses = pauses()
        self._heard = False
        self._failing_since: float | None = None

    def renew(self) -> None:
        self._pauses, self._heard, self._failing_since = pauses(), True, None

    async def bear(self, error: CallError) -> None:
        """Wait a moment, or raise the error."""
        now = asyncio.get_running_loop().time()
        if error.status == "DEADLINE_EXCEEDED":  # the stream's own: it was open all the time
            self.renew()
        elif not is_transient(error) or not self._heard:
            raise error
        self._failing_since = self._failing_since or now
        if now - self._failing_since > PATIENCE_SECONDS:
            raise error
        await asyncio.sleep(next(self._pauses))


async def describe_scheduler(
    caller: Caller,
) -> scheduler_pb.SchedulerServiceDescribeResponse:
    """What one scheduler does: its shards, and which types are paused."""
    stub = SchedulerServiceStub(caller.channel)
    request = scheduler_pb.SchedulerServiceDescribeRequest()
    try:
        return await caller.call(stub.Describe, request, repeat=True)
    finally:
        await caller.close()


async def pause_type(caller: Caller, type: str, note: str = "") -> None:
    """No job of the type is started from now on, in the whole mesh; those that run go on."""
    stub = SchedulerServiceStub(caller.channel)
    request = scheduler_pb.PauseTypeRequest(type=type, note=note)
    try:
        await caller.call(stub.PauseType, request, repeat=True)
    finally:
        await caller.close()


async def resume_type(caller: Caller, type: str) -> None:
    """Jobs of the type are started again."""
    stub = SchedulerServiceStub(caller.channel)
    request = scheduler_pb.ResumeTypeRequest(type=type)
    try:
        await caller.call(stub.ResumeType, request, repeat=True)
    finally:
        await caller.close()


async def drain_worker(caller: Caller, grace: float | None = None) -> int:
    """Has a worker take no more work and end: what runs may finish for `grace` seconds (or for as
    long as the worker is set to), then it is handed back, at no cost. How many attempts it has.
    """
    stub = WorkerServiceStub(caller.channel)
    request = worker_pb.WorkerServiceDrainRequest()
    if grace is not None:
        request.timeout.FromTimedelta(timedelta(seconds=grace))
    try:
        return int((await caller.call(stub.Drain, request, repeat=True)).running)
    finally:
        await caller.close()


async def topology(caller: Caller) -> Topology:
    """Every shard with its health and buckets, as one Orchestrator sees them."""
    stub = OrchestratorServiceStub(caller.channel)
    request = orchestrator_pb.ListShardsRequest()
    try:
        return (await caller.call(stub.ListShards, request, repeat=True)).topology
    finally:
        await caller.close()
