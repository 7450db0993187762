"""What operators ask, of the mesh in memory: pools, shards and schedulers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_status import rpc_status
from jobmesh.v1 import (
    orchestrator_service_pb2,
    pool_pb2,
    scaler_service_pb2,
    scheduler_service_pb2,
    topology_pb2,
)
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceServicer
from jobmesh.v1.scaler_service_pb2_grpc import ScalerServiceServicer
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceServicer

from services.mesh.errors import PoolNotFound
from services.mesh.rpc.errors import to_status
from services.mesh.wire.masks import merge


class MemoryScaler(ScalerServiceServicer):
    """Pools in memory: nothing is scaled."""

    def __init__(self) -> None:
        self.pools: dict[str, pool_pb2.Pool] = {}
        #: How the streams of WatchPools end, the first ones; those after them are not served.
        self.ends: list[grpc.StatusCode] = []
        self.watches = 0

    async def CreatePool(
        self, request: scaler_service_pb2.CreatePoolRequest, context: Any
    ) -> scaler_service_pb2.CreatePoolResponse:
        pool = self.pools.setdefault(request.spec.type, pool_pb2.Pool(spec=request.spec))
        return scaler_service_pb2.CreatePoolResponse(pool=pool)

    async def GetPool(
        self, request: scaler_service_pb2.GetPoolRequest, context: Any
    ) -> scaler_service_pb2.GetPoolResponse:
        if request.type not in self.pools:
            status = to_status(PoolNotFound(request.type))
            await context.abort_with_status(rpc_status.to_status(status))
        return scaler_service_pb2.GetPoolResponse(pool=self.pools[request.type])

    async def UpdatePool(
        self, request: scaler_service_pb2.UpdatePoolRequest, context: Any
    ) -> scaler_service_pb2.UpdatePoolResponse:
        pool = self.pools[request.spec.type]
        merge(request.spec, pool.spec, request.update_mask)
        return scaler_service_pb2.UpdatePoolResponse(pool=pool)

    async def ListPools(
        self, request: scaler_service_pb2.ListPoolsRequest, context: Any
    ) -> scaler_service_pb2.ListPoolsResponse:
        return scaler_service_pb2.ListPoolsResponse(pools=self.pools.values())

    async def WatchPools(
        self, request: scaler_service_pb2.WatchPoolsRequest, context: Any
    ) -> AsyncIterator[scaler_service_pb2.WatchPoolsResponse]:
        self.watches += 1
        for pool in self.pools.values():
            yield scaler_service_pb2.WatchPoolsResponse(pool=pool)
        end = self.ends.pop(0) if self.ends else grpc.StatusCode.UNIMPLEMENTED
        if end is not grpc.StatusCode.OK:
            await context.abort(end)


class MemoryOrchestrator(OrchestratorServiceServicer):
    async def ListShards(
        self, request: orchestrator_service_pb2.ListShardsRequest, context: Any
    ) -> orchestrator_service_pb2.ListShardsResponse:
        shards = [
            topology_pb2.Shard(
                name="s0",
                state=topology_pb2.SHARD_STATE_ACTIVE,
                health=topology_pb2.SHARD_HEALTH_HEALTHY,
                bucket_count=4096,
            )
        ]
        return orchestrator_service_pb2.ListShardsResponse(
            topology=topology_pb2.Topology(epoch=3, shards=shards)
        )


class MemoryScheduler(SchedulerServiceServicer):
    """Types that are paused, and nothing else."""

    def __init__(self) -> None:
        self.paused: list[str] = []

    async def Describe(
        self, request: scheduler_service_pb2.SchedulerServiceDescribeRequest, context: Any
    ) -> scheduler_service_pb2.SchedulerServiceDescribeResponse:
        duty = scheduler_service_pb2.ShardDuty(shard="s0")
        return scheduler_service_pb2.SchedulerServiceDescribeResponse(
            scheduler_id="scheduler", shards=[duty], paused_types=self.paused
        )

    async def PauseType(
        self, request: scheduler_service_pb2.PauseTypeRequest, context: Any
    ) -> scheduler_service_pb2.PauseTypeResponse:
        self.paused.append(request.type)
        return scheduler_service_pb2.PauseTypeResponse()
