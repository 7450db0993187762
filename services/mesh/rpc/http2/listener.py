"""The port: takes connections, and stops without breaking what is under way."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from services.mesh.rpc.http2.connection import Connection
from services.mesh.rpc.http2.serving import Find, Serving
from services.mesh.rpc.http2.upkeep import Patience, Upkeep
from services.mesh.rpc.tls import TlsFiles
from services.mesh.runtime import StartupError
from services.mesh.telemetry.metrics import Metrics

log = logging.getLogger("services.mesh.rpc")

_BACKLOG: Final = 1024
_HANDSHAKE_SECONDS: Final = 10.0
#: When no more connections can be had (too many files are open), one more is tried after this.
_PAUSE_SECONDS: Final = 0.1
#: Per connection. Bounds what one peer can open and reset in a burst; leaves room for a client with
#: hundreds of watches on one channel.
MOST_STREAMS: Final = 1000


class Listener:
    """Serves gRPC on one address.

    `find` finds by its path what serves a call: gRPC's RpcMethodHandler, with coroutines of request
    and context. The files of `tls` are read for each connection anew.
    """

    def __init__(
        self,
        find: Find,
        *,
        largest_message: int,
        largest_sent: int,
        tls: TlsFiles | None = None,
        most_streams: int = MOST_STREAMS,
        patience: Patience | None = None,
    ) -> None:
        self._tls = tls
        self._serving = Serving(
            asyncio.get_running_loop(), find, most_streams, largest_message, largest_sent
        )
        self._upkeep = Upkeep(self._serving, patience or Patience())
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, metrics: Metrics) -> None:
        """Let a process's metrics look at the connections."""
        serving = self._serving
        opened = metrics.gauge("rpc_server_connections", "Connections that are open.")
        opened.set_function(lambda: len(serving.connections))
        broken = metrics.gauge(
            "rpc_server_broken_connections",
            "Connections so far whose peer broke a rule of HTTP/2, and was told so.",
        )
        broken.set_function(lambda: serving.broken)

    async def start(self, listen: str) -> int:
        """Bind "host:port" and take connections; returns the port. OSError if it cannot."""
        if self._tls is not None:
            self._tls.server_context()  # what is wrong with the files is told now
        self._sockets = bound(listen)
        for each in self._sockets:
            self._spawn(self._accept(each))
        self._upkeep.start()
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; let those under way end for `grace` seconds, then end them."""
        for task in self._tasks:
            task.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = []
        self._upkeep.stop()  # it has a grace of its own
        if grace:
            for connection in list(self._serving.connections):
                connection.drain()
            await self._serving.emptied(grace)
        for connection in list(self._serving.connections):
            connection.cut()
        await self._serving.emptied(0.5)
        for connection in list(self._serving.connections):
            connection.sender.abort()
        self._serving.deadlines.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._serving.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = self._serving.loop
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                extra = {"action": "accept_failed", "error": str(error)}
                log.warning("cannot take a connection", extra=extra)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            greeting = self._spawn(self._greet(accepted))
            # Before its first step it can be cancelled without a word.
            greeting.add_done_callback(partial(_close_if_cancelled, accepted))

    async def _greet(self, accepted: socket.socket) -> None:
        """Hand a connection to its protocol; with TLS, after the handshake."""
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = None if self._tls is None else self._tls.server_context()
            await self._serving.loop.connect_accepted_socket(
                lambda: Connection(self._serving),
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _HANDSHAKE_SECONDS,
            )
        except (OSError, StartupError) as error:
            extra = {"action": "greeting_failed", "error": str(error)}
            log.debug("a connection came to nothing", extra=extra)
            accepted.close()


def _close_if_cancelled(accepted: socket.socket, greeting: asyncio.Task[None]) -> None:
    if greeting.cancelled():
        accepted.close()


def bound(listen: str) -> list[socket.socket]:
    """Listening sockets of every address that the name has, all on one port."""
    host, _, port = listen.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in found:
            chosen = sockets[0].getsockname()[1] if sockets else where[1]
            sockets.append(_listening(family, kind, protocol, (where[0], chosen, *where[2:])))
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _listening(family: int, kind: int, protocol: int, where: Any) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and where[0] != "::":
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
