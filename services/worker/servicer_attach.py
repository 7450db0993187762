"""Attach: a conversation with an executor in any language. Transport only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from jobmesh.v1 import worker_service_pb2 as pb

from services.mesh.errors import InvalidField
from services.worker.app.attached import AttachDesk, check_types
from services.worker.app.conversation import AttachedExecutor
from services.worker.convert_attach import message_to_proto, take_word


class AttachCalls:
    """The RPC by which executors join a worker."""

    _desk: AttachDesk

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AttachRequest], context: Any
    ) -> AsyncIterator[pb.AttachResponse]:
        first = await anext(request_iterator, None)
        if first is None:
            return
        if not first.HasField("hello"):
            raise InvalidField("hello", "must be the first message")
        check_types(first.hello.types)
        end = self._desk.enter(first.hello.name, first.hello.types)
        reading = asyncio.create_task(_listen(request_iterator, end), name="attached-executor")
        reading.add_done_callback(lambda _: end.hang_up())
        try:
            async with aclosing(end.messages()) as messages:
                async for message in messages:
                    yield message_to_proto(message)
            if reading.done():
                reading.result()  # what it said wrongly is its answer
        finally:
            self._desk.leave(end)
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading


async def _listen(requests: AsyncIterator[pb.AttachRequest], end: AttachedExecutor) -> None:
    async for request in requests:
        take_word(end, request)
