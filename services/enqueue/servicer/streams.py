"""EnqueueStream: an open-ended stream of jobs, acknowledged in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue import convert
from services.enqueue.app.stream import Intake, Parcel
from services.enqueue.servicer.chains import is_chained, store_all, store_chained
from services.enqueue.servicer.desk import Context, Desk, PutJobsRequest
from services.mesh.errors import InvalidField, Overloaded


class StreamCalls:
    """The RPC that takes jobs without end."""

    _desk: Desk

    async def EnqueueStream(
        self, request_iterator: AsyncIterator[pb.EnqueueStreamRequest], context: Context
    ) -> AsyncIterator[pb.EnqueueStreamResponse]:
        first = await self._desk.drain.first(anext(request_iterator, None))
        if first is None:
            return
        store = partial(store_items, self._desk, convert.namespace_of(first.namespace))
        intake = Intake(store, self._desk.room, self._desk.drain)
        async with aclosing(intake.acks(_parcels(first, request_iterator))) as acks:
            async for _, response in acks:
                yield response


async def store_items(
    desk: Desk, namespace: str, first: int, items: list[pb.EnqueueItem]
) -> pb.EnqueueStreamResponse:
    """One result per item. What hits the whole batch is the error of each of its items; but what
    an Orchestrator has no room for, which is certainly not stored, waits until it has.
    """
    await desk.gate.paced(namespace, len(items))
    store = store_chained if is_chained(items) else store_all
    numbers = range(first, first + len(items))
    settled = await store(desk, partial(_put_patiently, desk), namespace, items, numbers)
    response = pb.EnqueueStreamResponse(first_item=first)
    convert.fill_results(response.results, len(items), *settled)
    return response


async def _put_patiently(desk: Desk, jobs: PutJobsRequest) -> Sequence[convert.Submitted]:
    while True:
        try:
            return await desk.put(jobs)
        except Overloaded as error:
            await asyncio.sleep(error.retry_after or 1.0)


async def _parcels(
    first: pb.EnqueueStreamRequest, rest: AsyncIterator[pb.EnqueueStreamRequest]
) -> AsyncIterator[Parcel[pb.EnqueueItem]]:
    yield _parcel(first)
    async for request in rest:
        if request.namespace:
            raise InvalidField("namespace", "only the first message of a stream may name it")
        yield _parcel(request)


def _parcel(request: pb.EnqueueStreamRequest) -> Parcel[pb.EnqueueItem]:
    return Parcel(request.items, request.ByteSize(), alone=is_chained(request.items))
