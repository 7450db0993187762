"""A listener of HTTP/2 for raw peers: handlers of all four kinds, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from services.mesh.rpc.http2 import Listener
from services.mesh.rpc.http2.connection import Connection, Serving
from services.mesh.runtime import Tally
from services.mesh.testing.waiting import eventually
from tests.integration.http2_peer import PATIENCE_SECONDS, Peer

Rpc = Callable[[Any, Any], Awaitable[Any]]


class Desk:
    """Handlers of all four kinds, with bytes in and out, and what became of them."""

    def __init__(self) -> None:
        self.begun, self.ended, self.cancelled = Tally(), Tally(), Tally()
        #: At once, at most.
        self.most = 0
        #: What `/t/Hold` and `/t/Deaf` wait for.
        self.release = asyncio.Event()
        self.read: list[bytes] = []
        self._handlers: dict[str, Any] = {}
        self.serve("/t/Echo", echo)
        self.serve("/t/Size", size)
        self.serve("/t/Hold", self._hold)
        self.serve("/t/Repeat", repeat, responses=True)
        self.serve("/t/Join", join, requests=True)
        self.serve("/t/Chat", chat, requests=True, responses=True)
        self.serve("/t/Deaf", self._deaf, requests=True, responses=True)

    @property
    def running(self) -> int:
        return self.begun.count - self.ended.count

    def find(self, path: str) -> Any:
        return self._handlers.get(path)

    def serve(
        self, path: str, behaviour: Rpc, *, requests: bool = False, responses: bool = False
    ) -> None:
        makers: dict[tuple[bool, bool], Any] = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        maker = makers[requests, responses]
        self._handlers[path] = maker(self._counted(behaviour), bytes, bytes)

    def _counted(self, behaviour: Rpc) -> Rpc:
        async def handle(request: Any, context: Any) -> Any:
            self.begun.add()
            self.most = max(self.most, self.running)
            try:
                return await behaviour(request, context)
            except asyncio.CancelledError:
                self.cancelled.add()
                raise
            finally:
                self.ended.add()

        return handle

    async def _hold(self, request: bytes, context: Any) -> bytes:
        await self.release.wait()
        return request

    async def _deaf(self, requests: Any, context: Any) -> None:
        """Reads nothing until it is released, then everything."""
        await self.release.wait()
        async for request in requests:
            self.read.append(request)
            await context.write(b"%d" % len(request))


def starved(connection: Connection) -> dict[int, Any]:
    """Streams that have something to send and no room, by number."""
    found: dict[int, Any] = connection.sender._starved
    return found


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def size(request: bytes, context: Any) -> bytes:
    """So many bytes."""
    return bytes(int(request))


async def repeat(request: bytes, context: Any) -> None:
    """`count size`: so many responses of such a size."""
    count, each = map(int, request.split())
    for _ in range(count):
        await context.write(bytes(each))


async def join(requests: Any, context: Any) -> bytes:
    return b"+".join([request async for request in requests])


async def chat(requests: Any, context: Any) -> None:
    async for request in requests:
        await context.write(request)


class Served:
    """A listener, its handlers, and what it holds for its peers."""

    def __init__(self, listener: Listener, desk: Desk, stack: AsyncExitStack) -> None:
        self.listener, self.desk, self._stack = listener, desk, stack
        self.port = 0

    async def peer(self, **settings: int) -> Peer:
        """A peer that has greeted."""
        made = await Peer.greeted(self.port, **settings)
        self._stack.push_async_callback(made.close)
        return made

    async def stranger(self) -> Peer:
        """A peer that has said nothing yet."""
        made = await Peer.connect(self.port)
        self._stack.push_async_callback(made.close)
        return made

    @property
    def serving(self) -> Serving:
        return self.listener._serving

    @property
    def connection(self) -> Connection:
        """The only one."""
        (only,) = self.serving.connections
        return only

    async def left_alone(self) -> None:
        """Nobody is connected, and nothing is left of those who were."""
        await eventually(lambda: not self.serving.connections, PATIENCE_SECONDS)
        await self.at_rest()

    async def at_rest(self, *connections: Connection) -> None:
        """No handler runs, and none of these connections holds anything."""
        await eventually(
            lambda: not self.desk.running and not self.serving.deadlines._calls, PATIENCE_SECONDS
        )
        await eventually(lambda: not any(each.streams for each in connections), PATIENCE_SECONDS)
        for connection in connections:
            assert not starved(connection)
            assert connection.held == 0


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Served]:
    """A listener with a desk behind it; what else it is given are its own options."""
    desk = Desk()
    sizes = {"largest_message": 4 * 2**20, "largest_sent": 32 * 2**20}
    async with AsyncExitStack() as stack:
        listener = Listener(desk.find, **{**sizes, **options})
        made = Served(listener, desk, stack)
        made.port = await listener.start("127.0.0.1:0")
        stack.push_async_callback(listener.stop, None)
        stack.callback(desk.release.set)  # some wait for it whatever becomes of their calls
        yield made
