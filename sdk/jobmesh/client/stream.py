"""Batches of jobs over one EnqueueStream, answered in order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from jobmesh.client.session import Session
from jobmesh.client.status import UNREACHABLE
from jobmesh.errors import CallError, call_error
from jobmesh.v1.enqueue_service_pb2 import (
    EnqueueItem,
    EnqueueResult,
    EnqueueStreamRequest,
    EnqueueStreamResponse,
)

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[EnqueueStreamRequest, EnqueueStreamResponse]

#: How long the end of a stream may take; everything was acknowledged before.
POLITE_SECONDS = 1.0
#: What gRPC says instead of the status when the server ended a stream during a write.
WRITE_FAILED = "Internal error from Core"


@dataclass(slots=True)
class _Waiting:
    """A batch whose results are not all here yet."""

    count: int
    answer: asyncio.Future[list[EnqueueResult]]
    results: list[EnqueueResult] = field(default_factory=list)


class JobStream:
    """Sends batches over one stream for as long as it lasts, and over a new one after that.

    Until the first batch is acknowledged it is not certain that the server has streams at all: the
    second one waits for that, and after a failure no other stream is tried (UNIMPLEMENTED).
    """

    def __init__(self, session: Session, namespace: str) -> None:
        self._session, self._namespace = session, namespace
        self._call: Call | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._writing = asyncio.Lock()
        self._proven = False
        self._refused = False

    async def send(self, items: list[EnqueueItem]) -> list[EnqueueResult]:
        """One result per item. A stream that breaks is the error of every batch under way."""
        limit = self._session.caller.timeout
        waiting = _Waiting(len(items), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(limit):
                await self._write(waiting, items)
                return await waiting.answer
        except TimeoutError:
            waiting.answer.cancel()
            text = f"no answer from {self._session.caller.address} within {limit:g} s"
            error = call_error("DEADLINE_EXCEEDED", text)
            self._break(error)
            raise error from None
        finally:
            waiting.answer.cancel()

    async def close(self) -> None:
        """Say that there is nothing more; what was not answered will not be."""
        call, reader = self._call, self._reader
        if call is not None and reader is not None and not self._waiting:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(POLITE_SECONDS):
                    await call.done_writing()
                    await asyncio.wait({reader})
        self._break(call_error("CANCELLED", "the stream was closed"))

    async def _write(self, waiting: _Waiting, items: list[EnqueueItem]) -> None:
        async with self._writing:  # the results come in the order of the writes
            if self._refused:
                raise call_error("UNIMPLEMENTED", "the server takes no streams of jobs")
            call, first = self._opened()
            self._waiting.append(waiting)
            request = EnqueueStreamRequest(namespace=self._namespace if first else "", items=items)
            # If it has ended: the reader knows why, and tells all who wait.
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(request)
            if not self._proven:
                await asyncio.wait({waiting.answer})

    def _opened(self) -> tuple[Call, bool]:
        if self._call is not None:
            return self._call, False
        self._call = call = self._session.stub.EnqueueStream()
        self._reader = asyncio.create_task(self._read(call), name="enqueue-stream-acks")
        return call, True

    async def _read(self, call: Call) -> None:
        try:
            while isinstance(response := await call.read(), EnqueueStreamResponse):
                self._answered(response)
        except grpc.aio.AioRpcError as failure:
            error = self._explain(failure)
        else:
            # A polite end: what was not acknowledged was not read.
            error = call_error("UNAVAILABLE", "the server is going away", reason="DRAINING")
        if self._call is call:
            self._break(error)

    def _explain(self, failure: grpc.aio.AioRpcError) -> CallError:
        if failure.details() == WRITE_FAILED:
            text = f"lost the stream to {self._session.caller.address}"
            return call_error("UNAVAILABLE", text, reason=UNREACHABLE)
        return self._session.caller.explain(failure, self._session.caller.timeout)

    def _answered(self, response: EnqueueStreamResponse) -> None:
        self._proven = True
        for result in response.results:
            oldest = self._waiting[0]
            oldest.results.append(result)
            if len(oldest.results) == oldest.count:
                self._waiting.popleft()
                if not oldest.answer.done():
                    oldest.answer.set_result(oldest.results)

    def _break(self, error: CallError) -> None:
        call, reader = self._call, self._reader
        self._call = self._reader = None
        self._refused = not self._proven
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(error)
        if call is not None:
            call.cancel()
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
