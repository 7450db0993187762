"""gRPC's own server behind the same door as ours, for who would rather trust that one.

`JOBMESH_RPC_SERVER=grpcio`. It takes several times the CPU of a call; whatever ours promises is
tested with both.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import grpc

from services.mesh.rpc.http2.listener import MOST_STREAMS
from services.mesh.rpc.http2.upkeep import Patience
from services.mesh.rpc.tls import TlsFiles

_PATIENCE = Patience()
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    # The default of two minutes lets a peer hold connections open without ever speaking.
    ("grpc.server_handshake_timeout_ms", int(1000 * _PATIENCE.greeting)),
    ("grpc.max_connection_idle_ms", int(1000 * _PATIENCE.idle)),
    # Connections are renewed, so that new replicas get their share and certificates are re-checked.
    ("grpc.max_connection_age_ms", int(1000 * _PATIENCE.age)),
    ("grpc.max_connection_age_grace_ms", int(1000 * _PATIENCE.grace)),
    # Finds watchers that vanished without a word; the default would take two hours.
    ("grpc.keepalive_time_ms", int(1000 * _PATIENCE.silence)),
    ("grpc.keepalive_timeout_ms", int(1000 * _PATIENCE.answer)),
    # Must not be more than our clients' keepalive, or they are sent away for too many pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_max_unrequested_time_in_server", 30),
    # Without this a second server on the same port would silently share it.
    ("grpc.so_reuseport", 0),
    ("grpc.enable_channelz", 0),
)


class GrpcioListener:
    """Serves on one address, by `grpc.aio`; as `http2.Listener` otherwise."""

    def __init__(
        self,
        find: Callable[[str], Any],
        *,
        largest_message: int,
        largest_sent: int,
        tls: TlsFiles | None = None,
    ) -> None:
        sizes = (
            ("grpc.max_receive_message_length", largest_message),
            ("grpc.max_send_message_length", largest_sent),
        )
        self._server = grpc.aio.server(options=(*OPTIONS, *sizes))
        self._server.add_generic_rpc_handlers((_Found(find),))
        self._tls = tls

    async def start(self, listen: str) -> int:
        """Bind "host:port" and take connections; returns the port. OSError if it cannot."""
        _try_address(listen)
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, self._tls.server_credentials())
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()
        return port

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; let those under way end for `grace` seconds, then end them."""
        await self._server.stop(grace)


class _Found(grpc.GenericRpcHandler):
    """Every method by its path, in one dictionary.

    gRPC can also be told the methods one by one, but then its server waits on one future per method
    and goes through all of them for each call.
    """

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._find(handler_call_details.method)


def _try_address(address: str) -> None:
    """Bind once by ourselves: gRPC says why it cannot only in a log line of its own."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
