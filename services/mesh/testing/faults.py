"""A TCP proxy that misbehaves on command: for faults of one link only.

Faults are layers: several may lie on a link at once, and each is taken away alone. Then what any of
them holds is held, what any of them cuts is cut; delays add up, and the narrowest throttle counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

_CHUNK = 65536
_SLICES_PER_SECOND = 20


class Link(Enum):
    """What the proxy does with the bytes of its connections."""

    PASS = "pass"
    """Hands them on."""
    DROP_REPLIES = "drop replies"
    """Hands on what the client sends, and swallows what the server answers, for good."""
    HANG = "hang"
    """Swallows both; connections stay open."""
    HOLD = "hold"
    """A black hole: nothing passes either way. What was sent arrives when the link is well again,
    as by TCP's own repetition."""
    HOLD_REQUESTS = "hold requests"
    """A black hole on the way to the server only."""
    HOLD_REPLIES = "hold replies"
    """A black hole on the way back only."""
    DELAY = "delay"
    """Hands them on after `seconds`, each way."""
    THROTTLE = "throttle"
    """Hands on no more than `bytes_` in a second, each way."""
    CUT_AFTER = "cut after"
    """Resets each connection that has answered `bytes_` from now on: with 0, what was asked is
    done, and nobody hears of it."""
    CUT = "cut"
    """Resets every connection, present and new."""


_SWALLOWS = {True: (Link.HANG,), False: (Link.HANG, Link.DROP_REPLIES)}
_HOLDS = {True: (Link.HOLD, Link.HOLD_REQUESTS), False: (Link.HOLD, Link.HOLD_REPLIES)}


class Tap(Protocol):
    """Reads along with what servers answer, and may change it."""

    def opened(self, send: Callable[[bytes], None]) -> Callable[[bytes], bytes]:
        """A new connection. The answer is asked for every chunk what to hand on instead of it;
        `send` sends bytes to the client at any other time."""
        ...


@dataclass(slots=True, eq=False)
class Layer:
    """One fault on a link."""

    link: Link
    seconds: float = 0.0
    bytes_: int = 0
    met: int = 0
    """What it has met so far: pieces that were sent, connections that were cut."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One client and its connection to the server."""

    to_client: asyncio.StreamWriter
    to_server: asyncio.StreamWriter
    edit: Callable[[bytes], bytes] | None = None
    answered: dict[Layer, int] = field(default_factory=dict)
    """Bytes since a layer that counts them is there."""

    def abort(self) -> None:
        self.to_client.transport.abort()
        self.to_server.transport.abort()


class FaultProxy:
    """Stands between clients and a server on the loopback: `async with FaultProxy(port) as p`."""

    def __init__(self, upstream_port: int, tap: Tap | None = None) -> None:
        self._upstream_port = upstream_port
        self._tap = tap
        self._layers: list[Layer] = []
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        self.passed = 0
        """Bytes handed on so far, both ways."""
        self.last_met = 0.0
        """When something was sent last, by the loop's clock."""

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def become(self, link: Link, *, seconds: float = 0.0, bytes_: int = 0) -> Layer:
        """Behave like this and in no other way from now on, to old connections and new ones."""
        for layer in tuple(self._layers):
            self.lift(layer)
        return self.lay(link, seconds=seconds, bytes_=bytes_)

    def lay(self, link: Link, *, seconds: float = 0.0, bytes_: int = 0) -> Layer:
        """Behave like this, too, until that layer is lifted."""
        layer = Layer(link, seconds, bytes_)
        self._layers.append(layer)
        self._tell_those_who_wait()
        if link is Link.CUT:
            layer.met = len(self._connections)
            for connection in tuple(self._connections):
                connection.abort()
        return layer

    def lift(self, layer: Layer) -> None:
        """Take one layer away; the others stay."""
        self._layers.remove(layer)
        for connection in self._connections:
            connection.answered.pop(layer, None)
        self._tell_those_who_wait()

    def _tell_those_who_wait(self) -> None:
        # Whoever waits looks again; those who come later wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    def _of(self, *links: Link) -> list[Layer]:
        return [layer for layer in self._layers if layer.link in links]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.become(Link.CUT)
        for pipe in tuple(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close in the loop's next turn

    async def _accept(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        if cuts := self._of(Link.CUT):
            for layer in cuts:
                layer.met += 1
            answer.transport.abort()
            return
        # Until both sides are there it is ended like a pipe: its client may be gone already.
        if accepting := asyncio.current_task():
            self._keep(accepting)
        try:
            server, ask = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except (OSError, asyncio.CancelledError):
            answer.transport.abort()
            return
        connection = _Connection(answer, ask)
        if self._tap is not None:
            connection.edit = self._tap.opened(answer.write)
        self._connections.add(connection)
        self._pipe(client, connection, asking=True)
        self._pipe(server, connection, asking=False)

    def _pipe(self, source: asyncio.StreamReader, connection: _Connection, *, asking: bool) -> None:
        self._keep(asyncio.create_task(self._copy(source, connection, asking), name="fault-proxy"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def _copy(
        self, source: asyncio.StreamReader, connection: _Connection, asking: bool
    ) -> None:
        try:
            with suppress(OSError):
                while chunk := await source.read(_CHUNK):
                    await self._hand_on(chunk, connection, asking)
                await self._held(asking)  # the end of a stream is held up like all else
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _hand_on(self, chunk: bytes, connection: _Connection, asking: bool) -> None:
        for layer in self._layers:
            layer.met += 1
        self.last_met = asyncio.get_running_loop().time()
        await self._held(asking)
        if self._of(*_SWALLOWS[asking]):
            return
        if not asking:
            self._count(connection, len(chunk))
            chunk = connection.edit(chunk) if connection.edit else chunk
        sink = connection.to_server if asking else connection.to_client
        if delays := self._of(Link.DELAY):
            await asyncio.sleep(sum(layer.seconds for layer in delays))
        while chunk and (throttles := self._of(Link.THROTTLE)):
            size = max(1, min(layer.bytes_ for layer in throttles) // _SLICES_PER_SECOND)
            sink.write(chunk[:size])
            self.passed += len(chunk[:size])
            chunk = chunk[size:]
            await asyncio.sleep(1 / _SLICES_PER_SECOND)
        sink.write(chunk)
        self.passed += len(chunk)
        await sink.drain()

    def _count(self, connection: _Connection, size: int) -> None:
        """Answers on their way to the client; ConnectionResetError if they are too many."""
        for layer in self._of(Link.CUT_AFTER):
            connection.answered[layer] = connection.answered.get(layer, 0) + size
            if connection.answered[layer] > layer.bytes_:
                raise ConnectionResetError

    async def _held(self, asking: bool) -> None:
        while self._of(*_HOLDS[asking]):
            await self._changed.wait()
