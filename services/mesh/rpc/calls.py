"""Calls on their way out: deadline, trace context, and errors as MeshError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

import grpc

from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.rpc.errors import from_rpc_error
from services.mesh.runtime import deadline
from services.mesh.telemetry.tracing import NO_SPAN, Span, Tracing

#: Of the caller's time, what we keep to answer in after the peer did not.
_MARGIN = 0.05


class Outgoing:
    """What all calls of a channel have in common."""

    __slots__ = ("peer", "timeout", "tracing")

    def __init__(self, peer: str, timeout: float, tracing: Tracing) -> None:
        self.peer, self.timeout, self.tracing = peer, timeout, tracing

    def bounded(self, timeout: float | None) -> float | None:
        """The timeout, cut to what the call being served has left."""
        left = deadline.remaining()
        if left is None:
            return timeout
        left = max(0.0, left - min(_MARGIN, left / 10))
        return left if timeout is None else min(timeout, left)

    def metadata(self, given: Any, traceparent: str) -> Any:
        if not traceparent:
            return given
        return (*(given or ()), ("traceparent", traceparent))


class UnaryCallable:
    """`await stub.Method(request, timeout=…)`."""

    __slots__ = ("_inner", "_method", "_outgoing")

    def __init__(self, inner: Any, method: str, outgoing: Outgoing) -> None:
        self._inner, self._outgoing = inner, outgoing
        self._method = method.lstrip("/")

    def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Any = None, **kwargs: Any
    ) -> UnaryCall:
        outgoing = self._outgoing
        limit = outgoing.bounded(outgoing.timeout if timeout is None else timeout)
        span = NO_SPAN
        if outgoing.tracing.enabled:
            attributes = {"rpc.system.name": "grpc", "rpc.method": self._method}
            span = outgoing.tracing.open_span(self._method, "client", attributes=attributes)
            metadata = outgoing.metadata(metadata, span.traceparent)
        call = self._inner(request, timeout=limit, metadata=metadata, **kwargs)
        return UnaryCall(call, outgoing.peer, span)


class _Call:
    """A call under way; whatever else grpc.aio's call can do is passed on."""

    __slots__ = ("_call", "_peer")

    def __init__(self, call: Any, peer: str) -> None:
        self._call, self._peer = call, peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class UnaryCall(_Call):
    """Awaited for its response."""

    __slots__ = ("_span",)

    def __init__(self, call: Any, peer: str, span: Span) -> None:
        super().__init__(call, peer)
        self._span = span

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            response = yield from self._call.__await__()
        except BaseException as error:
            self._span.fail(error)
            self._span.end()
            if isinstance(error, grpc.aio.AioRpcError):
                raise from_rpc_error(error, self._peer) from error
            raise
        self._span.end()
        return response


class StreamCallable:
    """A call with a stream on either side; long-lived unless given a timeout."""

    __slots__ = ("_inner", "_outgoing")

    def __init__(self, inner: Any, outgoing: Outgoing) -> None:
        self._inner, self._outgoing = inner, outgoing

    def __call__(
        self,
        *requests: Any,
        timeout: float | None = None,
        metadata: Any = None,
        **kwargs: Any,
    ) -> StreamCall:
        outgoing = self._outgoing
        if outgoing.tracing.enabled:
            metadata = outgoing.metadata(metadata, outgoing.tracing.current_traceparent())
        limit = outgoing.bounded(timeout)
        call = self._inner(*requests, timeout=limit, metadata=metadata, **kwargs)
        return StreamCall(call, outgoing.peer)


class StreamCall(_Call):
    """Iterated for its responses, written to, or awaited for its one response."""

    __slots__ = ("_responses",)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._call.__await__())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._peer) from error

    def __aiter__(self) -> AsyncIterator[Any]:
        self._responses = aiter(self._call)
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._responses)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._peer) from error

    async def read(self) -> Any:
        """The next response, or `grpc.aio.EOF`."""
        try:
            return await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._peer) from error

    async def write(self, request: Any) -> None:
        """Send one more request; a call that has ended raises the error it ended with."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._peer) from error
        except asyncio.InvalidStateError as error:  # it had ended before: gRPC does not say how
            raise await self._ending() from error

    async def done_writing(self) -> None:
        try:
            await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._peer) from error

    async def _ending(self) -> MeshError:
        """The error that the call ended with; one, too, if it ended well before we had."""
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return DependencyUnavailable(self._peer, f"{self._peer} ended the stream")
        ending = grpc.aio.AioRpcError(
            code,
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
        )
        return from_rpc_error(ending, self._peer)
