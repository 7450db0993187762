"""The order of the policies around a handler, for the four kinds of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.mesh.errors import Code, InvalidField
from services.mesh.rpc.interceptors.admission import Admission
from services.mesh.rpc.interceptors.deadline import Deadlines
from services.mesh.rpc.interceptors.errors import abort, explained
from services.mesh.rpc.interceptors.logging import logged
from services.mesh.rpc.interceptors.method import Call, Method
from services.mesh.rpc.interceptors.metrics import CallMetrics
from services.mesh.rpc.interceptors.tracing import ServerSpans
from services.mesh.rpc.interceptors.writing import WRITE_SECONDS, Handler, writes
from services.mesh.rpc.validation import Rules


class Malformed:
    """Stands for a request whose bytes are no message, until it can be refused properly."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Chain:
    """Wraps handlers. One per server; every method shares its policies."""

    def __init__(
        self,
        admission: Admission,
        deadlines: Deadlines,
        spans: ServerSpans,
        rules: Rules,
        metrics: CallMetrics,
        write_limit: float = WRITE_SECONDS,
    ) -> None:
        self._admission, self._deadlines, self._spans = admission, deadlines, spans
        self._rules, self._metrics = rules, metrics
        self._write_limit = write_limit

    def wrap(self, method: Method, handler: Any) -> Any:
        """The same handler with everything around it."""
        self._metrics.register(method)
        decode = _tolerant(handler.request_deserializer, method)
        encode = handler.response_serializer
        if not handler.request_streaming and not handler.response_streaming:
            inner = self._unary(method, handler.unary_unary)
            return grpc.unary_unary_rpc_method_handler(inner, decode, encode)
        if not handler.response_streaming:
            inner = self._streaming(method, handler.stream_unary, requests=True)
            return grpc.stream_unary_rpc_method_handler(inner, decode, encode)
        if not handler.request_streaming:
            inner = self._streaming(
                method, writes(handler.unary_stream, self._write_limit), requests=False
            )
            return grpc.unary_stream_rpc_method_handler(inner, decode, encode)
        inner = self._streaming(
            method, writes(handler.stream_stream, self._write_limit), requests=True
        )
        return grpc.stream_stream_rpc_method_handler(inner, decode, encode)

    def _unary(self, method: Method, behaviour: Handler) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            call = Call(method, context)
            try:
                self._begin(call, streaming=False, wait=_asked_wait(method, request))
                self._check(method, request)
                response = await behaviour(request, context)
            except BaseException as error:
                await self._failed(call, error)
                raise
            self._end(call, Code.OK, None)
            return response

        return handle

    def _streaming(self, method: Method, behaviour: Handler, *, requests: bool) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            call = Call(method, context)
            try:
                self._begin(call, streaming=True)
                if requests:
                    request = CheckedRequests(context, self._check, method)
                else:
                    self._check(method, request)
                response = await behaviour(request, context)
            except BaseException as error:
                await self._failed(call, error)
                raise
            self._end(call, Code.OK, None)
            return response

        return handle

    def _check(self, method: Method, request: Any) -> None:
        if type(request) is Malformed:
            raise InvalidField("", f"the request is not a valid {request.kind} message")
        if method.checked:
            self._rules.check(request)

    def _begin(self, call: Call, *, streaming: bool, wait: float = 0.0) -> None:
        self._metrics.begin(call)
        if self._spans.enabled:
            self._spans.begin(call)
        self._deadlines.begin(call, streaming=streaming, wait=wait)
        self._admission.enter(call.method.share)

    def _end(self, call: Call, code: Code, error: BaseException | None) -> None:
        self._deadlines.end(call)
        self._admission.leave()
        self._metrics.end(call, code)
        if self._spans.enabled:
            self._spans.end(call, code, error)
        logged(call, code, error)

    async def _failed(self, call: Call, error: BaseException) -> None:
        """End the call: aborts it with a status, or returns to let the error pass as it is."""
        if isinstance(error, asyncio.CancelledError) and self._deadlines.expired(call):
            error = TimeoutError()
        if _passes(error):
            self._end(call, Code.CANCELLED, None)
            return
        known = explained(call, error)
        self._end(call, known.code, known)
        await abort(call.context, known)


def _asked_wait(method: Method, request: Any) -> float:
    if method.waits is None or type(request) is Malformed:
        return 0.0
    return method.waits(request)


def _passes(error: BaseException) -> bool:
    """Whether this is gRPC's own business: the caller has gone, or the handler aborted.

    A cancellation is that only if it was meant for the handler's task. One that came out of
    something the handler awaited, which then ended, would leave the caller without an answer.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, grpc.aio.BaseError) or not isinstance(error, Exception)


class CheckedRequests:
    """A request stream whose messages are checked as they are read."""

    __slots__ = ("_check", "_ended", "_method", "_read")

    def __init__(self, context: Any, check: Callable[[Method, Any], None], method: Method) -> None:
        self._read, self._check, self._method = context.read, check, method
        self._ended = False

    def __aiter__(self) -> CheckedRequests:
        return self

    async def __anext__(self) -> Any:
        request = grpc.aio.EOF if self._ended else await self._read()
        if request is grpc.aio.EOF:
            self._ended = True
            raise StopAsyncIteration
        self._check(self._method, request)
        return request


def _tolerant(decode: Callable[[bytes], Any] | None, method: Method) -> Callable[[bytes], Any]:
    """Decoding that hands on what it cannot read: gRPC would answer UNKNOWN with our internals."""
    assert decode is not None, method.full_name

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return Malformed(method.name)

    return read
