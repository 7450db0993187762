"""Both servers of gRPC behind one door, with handlers that a test puts in and real clients of them.

The handlers are below every policy of the chassis: what is held to its promises here is the
transport alone. Messages are bare bytes.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest
import uvloop

from services.mesh.rpc.grpcio import GrpcioListener
from services.mesh.rpc.http2 import Listener
from services.mesh.rpc.server import Kind
from services.mesh.rpc.tls import TlsFiles

#: Services run on uvloop where it is installed, whose transports are not asyncio's.
KINDS = ("own", "own-uvloop", "grpcio")
SERVICE = "/conformance.Calls/"
UNARY, WATCH, UPLOAD, TALK = (SERVICE + name for name in ("Unary", "Watch", "Upload", "Talk"))
PATHS = (UNARY, WATCH, UPLOAD, TALK)
TRAILERS = (
    ("plain", "value"),
    ("many", "first"),
    ("many", "second"),
    ("empty", ""),
    ("raw-bin", bytes(range(256))),
    ("raw-bin", b""),
    ("short-bin", b"\xff"),
)
MIB = 1024 * 1024
PIECE = b"p" * 64 * 1024
#: Far more than windows and buffers of both sides and of the kernel take together.
MOST_PIECES = 1000
#: Nothing here takes as long; what does, hangs.
PATIENCE = 20.0
#: A write that has not returned after this waits for its peer.
_BLOCKED_SECONDS = 0.3

_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_MAKE = {
    UNARY: grpc.unary_unary_rpc_method_handler,
    WATCH: grpc.unary_stream_rpc_method_handler,
    UPLOAD: grpc.stream_unary_rpc_method_handler,
    TALK: grpc.stream_stream_rpc_method_handler,
}
T = TypeVar("T")
Behaviour = Callable[[Any, Any], Awaitable[Any]]


def holds_for(*kinds: str) -> Callable[[Callable[..., Any]], Any]:
    """A test as one test for each of the servers, on the loop that it belongs to."""

    def decorate(test: Callable[..., Any]) -> Any:
        @functools.wraps(test)
        def run(*, kind: str, **given: Any) -> None:
            start = uvloop.run if kind.endswith("uvloop") else asyncio.run
            start(asyncio.wait_for(test(kind=kind, **given), PATIENCE))

        return pytest.mark.parametrize("kind", kinds)(run)

    return decorate


for_both = holds_for(*KINDS)


def server_kind(kind: str) -> Kind:
    return "grpcio" if kind == "grpcio" else "own"


class Calls:
    """The four kinds of calls of a channel, of grpc.aio or of grpc."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.unary, self.watch = channel.unary_unary(UNARY), channel.unary_stream(WATCH)
        self.upload, self.talk = channel.stream_unary(UPLOAD), channel.stream_stream(TALK)

    def each(self, request: bytes = b"x", **options: Any) -> dict[str, Any]:
        """One call of each kind, begun."""
        return {
            UNARY: self.unary(request, **options),
            WATCH: self.watch(request, **options),
            UPLOAD: self.upload(iter([request]), **options),
            TALK: self.talk(iter([request]), **options),
        }


class Served:
    """A server, its handlers, and calls to it by grpc.aio."""

    def __init__(self, kind: str, tls: TlsFiles | None, sizes: dict[str, int]) -> None:
        self._kind, self._tls, self._sizes = kind, tls, sizes
        self.handlers: dict[str, Any] = {}
        self.port = 0
        self.calls: Calls
        self._channels: list[Any] = []
        self._listener: Listener | GrpcioListener | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(self, path: str, behaviour: Behaviour) -> None:
        self.handlers[path] = _MAKE[path](behaviour, bytes, bytes)

    def on_all(self, behaviour: Behaviour) -> None:
        """One behaviour for each kind of call, once its requests were read: grpc.aio takes it for
        an error of its own when a call ends while it sends.
        """

        async def after_reading(requests: Any, context: Any) -> Any:
            _ = [request async for request in requests]
            return await behaviour(b"", context)

        for path in PATHS:
            self.on(path, after_reading if path in (UPLOAD, TALK) else behaviour)

    def open(self, address: str = "", **options: Any) -> Calls:
        """A channel of its own: gRPC would give those of one target one connection."""
        alone = ("grpc.use_local_subchannel_pool", 1)
        # Nobody waits for a second here to try again.
        quick = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))
        channel = grpc.aio.insecure_channel(
            address or self.address, options=(alone, *quick, *_LIMITS), **options
        )
        self._channels.append(channel)
        return Calls(channel)

    async def start(self) -> None:
        make = GrpcioListener if server_kind(self._kind) == "grpcio" else Listener
        self._listener = make(self.handlers.get, tls=self._tls, **self._sizes)  # type: ignore[arg-type]
        self.port = await self._listener.start(f"127.0.0.1:{self.port}")

    async def stop(self, grace: float | None = None) -> None:
        if self._listener is not None:
            await self._listener.stop(grace)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await self.stop()


@asynccontextmanager
async def serving(
    kind: str,
    *,
    tls: TlsFiles | None = None,
    largest_message: int = 8 * MIB,
    largest_sent: int = 8 * MIB,
) -> AsyncIterator[Served]:
    """One server with echoing handlers; a test puts others in their place."""
    sizes = {"largest_message": largest_message, "largest_sent": largest_sent}
    served = Served(kind, tls, sizes)
    for path, behaviour in ECHOES.items():
        served.on(path, behaviour)
    await served.start()
    served.calls = served.open()
    try:
        yield served
    finally:
        await served.close()


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _repeat(request: bytes, context: Any) -> None:
    for _ in range(3):
        await context.write(request)


async def _join(requests: Any, context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def _answer_each(requests: Any, context: Any) -> None:
    async for request in requests:
        await context.write(request)


ECHOES: dict[str, Behaviour] = {
    UNARY: _echo,
    WATCH: _repeat,
    UPLOAD: _join,
    TALK: _answer_each,
}


async def by_blocking_client(served: Served, use: Callable[[Calls], T]) -> T:
    """What a thread with gRPC's other client makes of the server."""

    def run() -> T:
        with grpc.insecure_channel(served.address, options=_LIMITS) as channel:
            return use(Calls(channel))

    return await asyncio.to_thread(run)


def noise(size: int) -> bytes:
    """Bytes of which none can stand for another."""
    return random.Random(size).randbytes(size)


async def everything(call: Any) -> list[bytes]:
    """All responses of a call of any kind."""
    if hasattr(call, "__aiter__"):
        return [response async for response in call]
    return [await call]


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """How a call of any kind ended that did not end well."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await everything(call)
    return caught.value


async def code_of(call: Any) -> grpc.StatusCode:
    return (await failure(call)).code()


async def until_blocked(write: Callable[[], Awaitable[Any]], most: int) -> Any:
    """Write until one has to wait; that one. Fails if none of so many has to."""
    for _ in range(most):
        writing = asyncio.ensure_future(write())
        done, _ = await asyncio.wait({writing}, timeout=_BLOCKED_SECONDS)
        if not done:
            return writing
        writing.result()
    raise AssertionError(f"{most} writes were taken, and nobody read")


class Flood:
    """A handler that writes until it has to wait for its reader; then that one more."""

    def __init__(self) -> None:
        self.blocked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()
        self.sent = 0

    async def behave(self, request: Any, context: Any) -> None:
        def write() -> Awaitable[Any]:
            self.sent += 1
            return context.write(PIECE)

        try:
            waiting = await until_blocked(write, MOST_PIECES)
        except BaseException as error:
            self.blocked.set_exception(error)
            raise
        self.blocked.set_result(None)
        try:
            await waiting
        finally:
            self.left.set()


class Inside:
    """Handlers that stay until the test lets them go, and how they were left."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.cancelled: list[str] = []
        self.let_go = asyncio.Event()
        self._changed = asyncio.Condition()

    async def stay(self, path: str) -> None:
        await self._add(self.entered, path)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            await self._add(self.cancelled, path)
            raise

    def behaviours(self) -> dict[str, Behaviour]:
        """An echo of each kind that stays after what it read and before what it answers."""

        def staying(path: str) -> Behaviour:
            async def behave(request: Any, context: Any) -> Any:
                if path in (UPLOAD, TALK):
                    request = await context.read()
                if path in (WATCH, TALK):
                    await context.write(request)
                await self.stay(path)
                return request

            return behave

        return {path: staying(path) for path in PATHS}

    async def until_entered(self, paths: Iterable[str]) -> None:
        await self._until(self.entered, paths)

    async def until_cancelled(self, paths: Iterable[str]) -> None:
        await self._until(self.cancelled, paths)

    async def _add(self, names: list[str], path: str) -> None:
        names.append(path)
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, names: list[str], paths: Iterable[str]) -> None:
        wanted = sorted(paths)
        async with self._changed:
            await self._changed.wait_for(lambda: sorted(names) == wanted)
