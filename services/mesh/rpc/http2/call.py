"""One call as a handler sees it: its task, its reads and writes, and its one ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from services.mesh.rpc.http2.frames import CANCEL
from services.mesh.rpc.http2.headers import Asked, Metadata, ending
from services.mesh.rpc.http2.messages import BadMessage, opened

if TYPE_CHECKING:
    from services.mesh.rpc.http2.connection import Connection
    from services.mesh.rpc.http2.stream import Stream

log = logging.getLogger("services.mesh.rpc")

#: Read and written without a pause, by one call: others have their turn then.
_TURN_BYTES: Final = 64 * 1024
#: What a message costs besides its bytes, in such.
_MESSAGE_BYTES: Final = 256


class Call:
    """The context that handlers are given; as much of grpc.aio's as they use.

    A call ends once: by its answer, by `abort`, by its deadline, by its peer. What comes after that
    goes nowhere.
    """

    __slots__ = (
        "_asked",
        "_connection",
        "_handler",
        "_has_begun",
        "_has_ended",
        "_is_stopped",
        "_reader",
        "_stream",
        "_task",
        "_turn",
        "_writer",
        "deadline",
    )

    def __init__(self, connection: Connection, stream: Stream, asked: Asked, handler: Any) -> None:
        self._connection, self._stream = connection, stream
        self._asked, self._handler = asked, handler
        self._has_begun = self._has_ended = self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        #: Of a read and of a write that have to wait; they may be of different tasks.
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._turn = 0
        #: By the loop's clock.
        self.deadline: float | None = None
        if asked.timeout is not None:
            self.deadline = connection.loop.time() + asked.timeout

    # --- what handlers use

    def invocation_metadata(self) -> Metadata:
        return self._asked.metadata

    def time_remaining(self) -> float | None:
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self._connection.loop.time())

    async def read(self) -> Any:
        """The next request, or `grpc.aio.EOF`."""
        stream = self._stream
        if self._turn > _TURN_BYTES:
            await self._rest()
        while not stream.messages:
            if self._has_ended:
                await self._refuse()
            if stream.peer_has_ended:
                return grpc.aio.EOF
            self._reader = self._connection.loop.create_future()
            await self._reader
            self._turn = 0
        try:
            return self._decoded(self._connection.read(stream))
        except BadMessage as error:
            self._give_up(error)

    async def write(self, response: Any) -> None:
        """Send a response; returns when the peer and the network have room for it."""
        if self._has_ended:
            await self._refuse()
        try:
            message = self._encoded(response)
        except BadMessage as error:
            self._give_up(error)
        self._connection.send(self._stream, message, has_begun=self._has_begun)
        self._has_begun = True
        self._turn += _MESSAGE_BYTES + len(message)
        while self._stream.waiting_bytes:
            self._turn = 0
            self._writer = self._connection.loop.create_future()
            await self._writer
        if self._turn > _TURN_BYTES:
            await self._rest()

    async def _rest(self) -> None:
        self._turn = 0
        await asyncio.sleep(0)

    def _give_up(self, error: BadMessage) -> NoReturn:
        self.end(error.code, error.text)
        raise grpc.aio.AbortError(error.text) from error

    async def _refuse(self) -> NoReturn:
        """A call that has ended takes nothing. Its own task hears first that it is cancelled."""
        await asyncio.sleep(0)
        raise grpc.aio.UsageError("the call has ended")

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    # --- what the connection does with it

    def start(self) -> None:
        """Run the handler. Of one request, it has come; of many, they will."""
        self._task = self._connection.run(self._run())
        self._task.add_done_callback(self._left)

    @property
    def is_new(self) -> bool:
        """Neither begun nor ended."""
        return self._task is None and not self._has_ended

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def wake_reader(self) -> None:
        """A request came, or none will."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def wake_writer(self) -> None:
        """All that waited has gone."""
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def lose(self) -> None:
        """The peer wants no answer, or is gone."""
        self._has_ended = True
        self._stop()

    def _stop(self) -> None:
        # Once: what a handler does when it is cancelled shall not be broken into. Whether the task
        # is being cancelled already says nothing: a timeout within takes its own back.
        if self._task is not None and not self._is_stopped:
            self._is_stopped = True
            self._task.cancel()
        self.wake_reader()
        self.wake_writer()

    def fail(self, code: grpc.StatusCode, text: str) -> None:
        """End it from outside of its handler."""
        self.end(code, text)
        self._stop()

    def expire(self) -> None:
        self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of the call is over")
        if self._stream.waiting_bytes:
            self._connection.refuse(self._stream.id, CANCEL)  # its answer was not read in time

    def end(
        self, code: grpc.StatusCode, text: str = "", metadata: Sequence[tuple[str, Any]] = ()
    ) -> None:
        if self._has_ended:
            return
        block = ending(code.value[0], text, metadata)  # first: what cannot be said ends nothing
        self._has_ended = True
        self._connection.end(self._stream, block, has_begun=self._has_begun)

    # --- the task

    async def _run(self) -> None:
        try:
            await self._serve()
        except grpc.aio.AbortError:
            pass
        except BadMessage as error:
            self.end(error.code, error.text)
        except asyncio.CancelledError:
            self.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except Exception:
            log.exception("a call failed", extra={"action": "rpc_defect", "path": self._asked.path})
            self.end(grpc.StatusCode.UNKNOWN, "the handler failed")

    async def _serve(self) -> None:
        handler = self._handler
        if handler.request_streaming:
            request: Any = Requests(self)
            behaviour = handler.stream_stream or handler.stream_unary
        else:
            request = self._decoded(self._connection.read(self._stream))
            behaviour = handler.unary_unary or handler.unary_stream
        response = await behaviour(request, self)
        if handler.response_streaming:
            self.end(grpc.StatusCode.OK)
        elif not self._has_ended:
            encoded = self._encoded(response)
            self._has_ended = True
            self._connection.answer(self._stream, encoded)

    def _left(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a call was left with %r", error, extra={"action": "rpc_defect"})
        self._connection.leave(self._stream)

    def _decoded(self, message: bytes) -> Any:
        plain = opened(message, self._asked.encoding, self._connection.largest_message)
        self._turn += _MESSAGE_BYTES + len(plain)
        try:
            return self._handler.request_deserializer(plain)
        except Exception as error:
            text = "the request is not the message that belongs here"
            raise BadMessage(grpc.StatusCode.INTERNAL, text) from error

    def _encoded(self, response: Any) -> bytes:
        message: bytes = self._handler.response_serializer(response)
        most = self._connection.largest_sent
        if len(message) > most:
            text = f"sent message larger than max ({len(message)} vs. {most})"
            raise BadMessage(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        return message


class Requests:
    """The requests of a call, as an iterator."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request
