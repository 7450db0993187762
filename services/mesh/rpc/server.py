"""The gRPC server of a process: every service on one port, with health, reflection and limits."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self, TypeVar, cast

import grpc
from grpc_health.v1 import health_pb2_grpc

from services.mesh.config import ServiceConfig
from services.mesh.rpc import health
from services.mesh.rpc.failpoints import serve_failpoints
from services.mesh.rpc.interceptors.admission import Admission
from services.mesh.rpc.interceptors.chain import Chain
from services.mesh.rpc.interceptors.deadline import Deadlines
from services.mesh.rpc.interceptors.method import Method
from services.mesh.rpc.interceptors.metrics import CallMetrics
from services.mesh.rpc.interceptors.tracing import ServerSpans
from services.mesh.rpc.reflection import add_reflection
from services.mesh.rpc.tls import TlsFiles
from services.mesh.rpc.unimplemented import filled
from services.mesh.rpc.validation import Rules
from services.mesh.runtime import Process, StartupError

S = TypeVar("S")
#: By the name of a method.
Waits = Mapping[str, Callable[[Any], float]]
log = logging.getLogger(__name__)

MIB = 1024 * 1024
#: The largest message a client may send: a full batch of jobs with inline inputs, and its framing.
MAX_RECEIVE_BYTES = 4 * MIB + 64 * 1024
#: The largest that an Orchestrator takes: such a batch, grown on its way by what Enqueue adds to
#: each of 1,000 jobs (namespace, hash, trace, ids of parents, its type's defaults): 12 KiB each.
MAX_PUT_BYTES = 16 * MIB
#: The largest message sent: 1,000 jobs that were asked for by id, each with the longest failure.
MAX_SEND_BYTES = 32 * MIB

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    # Per connection. Bounds what one peer can open and reset in a burst; leaves room for a client
    # with hundreds of watches on one channel.
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    # The default of two minutes lets a peer hold connections open without ever speaking.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    # Connections are renewed, so that new replicas get their share and certificates are re-checked.
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    # Finds watchers that vanished without a word; the default would take two hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Must not be more than our clients' keepalive, or they are sent away for too many pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_max_unrequested_time_in_server", 30),
    # Without this a second server on the same port would silently share it.
    ("grpc.so_reuseport", 0),
    ("grpc.enable_channelz", 0),
)


class Server:
    """A component that serves; add it to the process last, so that it starts last and stops first.

    server = Server.from_config(process, config)
    server.add(add_SchedulerServiceServicer_to_server, SchedulerServicer(…))
    process.add(server)
    """

    name = "grpc server"

    def __init__(
        self,
        process: Process,
        listen: str = "127.0.0.1:0",
        *,
        reflection: bool = True,
        max_concurrent_rpcs: int = 4096,
        write_seconds: float = 30.0,
        receive_bytes: int = MAX_RECEIVE_BYTES,
        tls: TlsFiles | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._process, self._listen = process, listen
        self._receive_bytes = receive_bytes
        self._reflection, self._tls = reflection, tls
        self.rules = rules or Rules()
        self._routes = Routes()
        self._services: list[str] = []
        self._chain = Chain(
            Admission(max_concurrent_rpcs),
            Deadlines(),
            ServerSpans(process.tracing),
            self.rules,
            CallMetrics(process.metrics),
            write_seconds,
        )
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @classmethod
    def from_config(
        cls, process: Process, config: ServiceConfig, *, receive_bytes: int = MAX_RECEIVE_BYTES
    ) -> Self:
        server = cls(
            process,
            config.listen,
            reflection=config.reflection,
            max_concurrent_rpcs=config.max_concurrent_rpcs,
            receive_bytes=receive_bytes,
            tls=TlsFiles.from_config(config),
        )
        if process.failpoints is not None:
            serve_failpoints(server, process.failpoints)
        return server

    def add(
        self,
        register: Callable[[S, grpc.aio.Server], None],
        servicer: S,
        *,
        unchecked: Collection[str] = (),
        shares: Mapping[str, float] | None = None,
        waits: Waits | None = None,
    ) -> None:
        """Serve a servicer by its generated `add_…Servicer_to_server`.

        `unchecked` names methods whose requests are not held against the contract's rules: internal
        ones that carry large batches a neighbour has checked already, and such as do it themselves.
        `shares` says of which methods there may be less than the process serves at once: this part.
        `waits` says of which a request may ask to be kept waiting, and how many seconds it does: so
        much longer may it take, if its caller set no deadline.
        """
        registrar = _Registrar(self, frozenset(unchecked), shares or {}, waits or {})
        register(servicer, cast(grpc.aio.Server, registrar))

    @property
    def address(self) -> str:
        """Where it listens, with the real port; only after `start`."""
        host = self._listen.rpartition(":")[0]
        return f"{host}:{self._port}"

    async def start(self) -> None:
        most = ("grpc.max_receive_message_length", self._receive_bytes)
        server = grpc.aio.server(options=(*OPTIONS, most))
        server.add_generic_rpc_handlers((self._routes,))
        self._add_health(server)
        if self._reflection:
            names = [*self._services, health.SERVICE]
            add_reflection(server, names, self._process.drain)
        self._port = self._bind(server)
        self._server = server
        await server.start()
        extra = {"action": "serving", "address": self.address, "services": self._services}
        log.info("serving", extra=extra)

    async def finish(self, timeout: float) -> None:
        """Take no more calls; wait for those under way, then cancel what is left."""
        if self._server is not None:
            await self._server.stop(timeout)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def _add_health(self, server: grpc.aio.Server) -> None:
        process = self._process
        servicer = health.HealthServicer(process.readiness, process.drain, self._services)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

    def _bind(self, server: grpc.aio.Server) -> int:
        try:
            _try_address(self._listen)
            if self._tls is not None:
                return server.add_secure_port(self._listen, self._tls.server_credentials())
            return server.add_insecure_port(self._listen)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StartupError(
                f"cannot listen on {self._listen}: {reason} (set JOBMESH_LISTEN or --listen)"
            ) from error

    def _route(
        self,
        service: str,
        handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
        unchecked: frozenset[str],
        shares: Mapping[str, float],
        waits: Waits,
    ) -> None:
        self._services.append(service)
        for name, handler in handlers.items():
            share = shares.get(name, 1.0)
            checked = name not in unchecked
            method = Method(service, name, checked=checked, share=share, waits=waits.get(name))
            self._routes.add(method, self._chain.wrap(method, _filled(handler, name)))


def _try_address(address: str) -> None:
    """Bind once by ourselves: gRPC says why it cannot only in a log line of its own."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


class Routes(grpc.GenericRpcHandler):
    """Every method by its path, in one dictionary.

    gRPC can also be told the methods one by one, but then its server waits on one future per method
    and goes through all of them for each call.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def add(self, method: Method, handler: Any) -> None:
        self._handlers[f"/{method.full_name}"] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


class _Registrar:
    """Stands in for a server while generated code registers a servicer's methods."""

    def __init__(
        self,
        server: Server,
        unchecked: frozenset[str],
        shares: Mapping[str, float],
        waits: Waits,
    ) -> None:
        self._server, self._unchecked = server, unchecked
        self._shares, self._waits = shares, waits

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same methods come again, by name, in the next call."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        self._server._route(service, handlers, self._unchecked, self._shares, self._waits)


def _filled(handler: Any, name: str) -> Any:
    """The handler with its behaviour replaced if the servicer does not implement it."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    given = {kind: getattr(handler, kind) for kind in kinds}
    changed = {kind: filled(fn, name) for kind, fn in given.items() if fn is not None}
    return handler._replace(**changed)
