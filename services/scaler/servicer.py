"""Transport: unpack, call one use case, pack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio
from jobmesh.v1 import pool_pb2
from jobmesh.v1 import scaler_service_pb2 as pb
from jobmesh.v1 import scaler_service_pb2_grpc as rpc

from services.mesh.runtime import DrainSignal
from services.mesh.wire.values import optional_timedelta
from services.scaler import convert
from services.scaler.app.board import Board
from services.scaler.app.pools import Pools
from services.scaler.domain.pool import PoolRecord

Context = grpc.aio.ServicerContext[Any, Any]


class ScalerServicer(rpc.ScalerServiceServicer):
    """The RPCs of the Scaler; every replica answers all of them."""

    def __init__(self, pools: Pools, board: Board, drain: DrainSignal) -> None:
        self._pools, self._board, self._drain = pools, board, drain

    async def CreatePool(
        self, request: pb.CreatePoolRequest, context: Context
    ) -> pb.CreatePoolResponse:
        record = await self._pools.create(convert.spec_from_proto(request.spec))
        return pb.CreatePoolResponse(pool=self._shown(record))

    async def UpdatePool(
        self, request: pb.UpdatePoolRequest, context: Context
    ) -> pb.UpdatePoolResponse:
        change = convert.spec_change(request)
        record = await self._pools.update(request.spec.type, change, request.etag)
        return pb.UpdatePoolResponse(pool=self._shown(record))

    async def DeletePool(
        self, request: pb.DeletePoolRequest, context: Context
    ) -> pb.DeletePoolResponse:
        await self._pools.delete(request.type)
        return pb.DeletePoolResponse()

    async def GetPool(self, request: pb.GetPoolRequest, context: Context) -> pb.GetPoolResponse:
        return pb.GetPoolResponse(pool=self._shown(await self._pools.get(request.type)))

    async def ListPools(
        self, request: pb.ListPoolsRequest, context: Context
    ) -> pb.ListPoolsResponse:
        after = convert.page_start(request.page_token)
        page, more = await self._pools.page(after, convert.page_size(request.page_size))
        return pb.ListPoolsResponse(
            pools=[self._shown(record) for record in page],
            next_page_token=convert.page_token(page[-1].type) if more else "",
        )

    async def WatchPools(
        self, request: pb.WatchPoolsRequest, context: Context
    ) -> AsyncIterator[pb.WatchPoolsResponse]:
        async with aclosing(self._board.watch(frozenset(request.types))) as changes:
            async for type_, record in self._drain.cut(changes):
                gone = pool_pb2.Pool(spec=pool_pb2.PoolSpec(type=type_))
                pool = self._shown(record) if record is not None else gone
                yield pb.WatchPoolsResponse(pool=pool, deleted=record is None)

    async def ExplainDecision(
        self, request: pb.ExplainDecisionRequest, context: Context
    ) -> pb.ExplainDecisionResponse:
        record = await self._pools.get(request.type)
        return convert.trail_to_proto(await self._board.trail(record.type))

    async def SetDesired(
        self, request: pb.SetDesiredRequest, context: Context
    ) -> pb.SetDesiredResponse:
        desired = request.desired if request.HasField("desired") else None
        lasting = optional_timedelta(request, "hold")
        record = await self._pools.set_desired(request.type, desired, lasting)
        return pb.SetDesiredResponse(pool=self._shown(record))

    def _shown(self, record: PoolRecord) -> pool_pb2.Pool:
        return convert.pool_to_proto(record, self._board.status(record.type))
