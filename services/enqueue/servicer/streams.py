"""EnqueueStream: an open-ended stream of jobs, acknowledged in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue import convert
from services.enqueue.app.stream import Intake, Parcel
from services.enqueue.servicer.desk import Context, Desk, PutJobsRequest
from services.mesh.errors import InvalidField, MeshError, Overloaded


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
    admitted = await desk.admit_all(namespace, items, first)
    stored: Sequence[convert.Submitted] = ()
    errors = admitted.errors
    try:
        stored = await _put_patiently(desk, admitted.request) if admitted.order else ()
    except MeshError as error:
        errors = dict.fromkeys(range(len(items)), error) | errors
    response = pb.EnqueueStreamResponse(first_item=first)
    convert.fill_results(response.results, len(items), stored, admitted.order, errors)
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
    yield Parcel(first.items, first.ByteSize())
    async for request in rest:
        if request.namespace:
            raise InvalidField("namespace", "only the first message of a stream may name it")
        yield Parcel(request.items, request.ByteSize())
