"""EnqueueStream: an open-ended stream of jobs, acknowledged in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue import convert
from services.enqueue.app.gate import Gate
from services.enqueue.app.stream import Intake, Parcel
from services.enqueue.servicer.chains import is_chained, store_all, store_chained
from services.enqueue.servicer.desk import Context, Desk, PutJobsRequest
from services.mesh.errors import InvalidField, Overloaded

T = TypeVar("T")
Parcels = AsyncGenerator[Parcel[T], None]


class StreamCalls:
    """The RPC that takes jobs without end."""

    _desk: Desk

    async def EnqueueStream(
        self, request_iterator: AsyncIterator[pb.EnqueueStreamRequest], context: Context
    ) -> AsyncIterator[pb.EnqueueStreamResponse]:
        first = await self._desk.drain.first(anext(request_iterator, None))
        if first is None:
            return
        namespace = convert.namespace_of(first.namespace)
        store = partial(store_items, self._desk, namespace)
        intake = Intake(store, self._desk.room, self._desk.drain)
        parcels = paced(self._desk.gate, namespace, _parcels(first, request_iterator))
        async with aclosing(intake.acks(parcels)) as acks:
            async for _, response in acks:
                yield response


async def store_items(
    desk: Desk, namespace: str, first: int, items: list[pb.EnqueueItem]
) -> pb.EnqueueStreamResponse:
    """One result per item. What hits the whole batch is the error of each of its items; but what
    an Orchestrator has no room for, which is certainly not stored, waits until it has.
    """
    store = store_chained if is_chained(items) else store_all
    numbers = range(first, first + len(items))
    settled = await store(desk, partial(_put_patiently, desk), namespace, items, numbers)
    response = pb.EnqueueStreamResponse(first_item=first)
    convert.fill_results(response.results, len(items), *settled)
    return response


async def paced(gate: Gate, namespace: str, parcels: Parcels[T]) -> Parcels[T]:
    """The parcels, each when the quota has room for it. A stream that waits for its quota holds one
    message, and nothing of the room that all share; what is not acknowledged when a drain ends the
    wait was never read, as far as its sender can tell.
    """
    async with aclosing(parcels):
        async for parcel in parcels:
            if parcel.items:
                await gate.paced(namespace, len(parcel.items))
            yield parcel


async def _put_patiently(desk: Desk, jobs: PutJobsRequest) -> Sequence[convert.Submitted]:
    while True:
        try:
            return await desk.put(jobs)
        except Overloaded as error:
            await asyncio.sleep(error.retry_after or 1.0)


async def _parcels(
    first: pb.EnqueueStreamRequest, rest: AsyncIterator[pb.EnqueueStreamRequest]
) -> Parcels[pb.EnqueueItem]:
    yield _parcel(first)
    async for request in rest:
        if request.namespace:
            raise InvalidField("namespace", "only the first message of a stream may name it")
        yield _parcel(request)


def _parcel(request: pb.EnqueueStreamRequest) -> Parcel[pb.EnqueueItem]:
    return Parcel(request.items, request.ByteSize(), alone=is_chained(request.items))
