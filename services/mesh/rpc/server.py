"""The gRPC server of a process: every service on one port, with health, reflection and limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Self, TypeVar, cast

import grpc

from services.mesh.config import ServiceConfig
from services.mesh.rpc import health
from services.mesh.rpc.failpoints import serve_failpoints
from services.mesh.rpc.grpcio import GrpcioListener
from services.mesh.rpc.http2 import Listener
from services.mesh.rpc.interceptors.admission import Admission
from services.mesh.rpc.interceptors.chain import Chain
from services.mesh.rpc.interceptors.deadline import Deadlines
from services.mesh.rpc.interceptors.method import Method
from services.mesh.rpc.interceptors.metrics import CallMetrics
from services.mesh.rpc.interceptors.tracing import ServerSpans
from services.mesh.rpc.reflection import reflection_handlers
from services.mesh.rpc.tls import TlsFiles
from services.mesh.rpc.unimplemented import filled
from services.mesh.rpc.validation import Rules
from services.mesh.runtime import Process, StartupError

S = TypeVar("S")
#: By the name of a method.
Waits = Mapping[str, Callable[[Any], float]]
log = logging.getLogger(__name__)

#: What serves: our own HTTP/2 on the event loop, or gRPC's server.
Kind = Literal["own", "grpcio"]
AnyListener = Listener | GrpcioListener
_KINDS: Mapping[Kind, Callable[..., AnyListener]] = {"own": Listener, "grpcio": GrpcioListener}

MIB = 1024 * 1024
#: The largest message a client may send: a full batch of jobs with inline inputs, and its framing.
MAX_RECEIVE_BYTES = 4 * MIB + 64 * 1024
#: The largest that an Orchestrator takes: such a batch, grown on its way by what Enqueue adds to
#: each of 1,000 jobs (namespace, hash, trace, ids of parents, its type's defaults): 12 KiB each.
MAX_PUT_BYTES = 16 * MIB
#: The largest message sent: 1,000 jobs that were asked for by id, each with the longest failure.
MAX_SEND_BYTES = 32 * MIB


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
        kind: Kind = "own",
    ) -> None:
        self._process, self._listen, self._kind = process, listen, kind
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
        self._listener: AnyListener | None = None
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
            kind=config.rpc_server,
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
        self._add_health()
        if self._reflection:
            names = [*self._services, health.SERVICE]
            self._routes.add_plain(reflection_handlers(names, self._process.drain))
        listener = _KINDS[self._kind](
            self._routes.find,
            largest_message=self._receive_bytes,
            largest_sent=MAX_SEND_BYTES,
            tls=self._tls,
        )
        if isinstance(listener, Listener):
            listener.show(self._process.metrics)
        self._port = await self._bound(listener)
        self._listener = listener
        extra = {"action": "serving", "address": self.address, "services": self._services}
        log.info("serving", extra=extra)

    async def finish(self, timeout: float) -> None:
        """Take no more calls; wait for those under way, then cancel what is left."""
        if self._listener is not None:
            await self._listener.stop(timeout)

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop(None)

    def _add_health(self) -> None:
        process = self._process
        servicer = health.HealthServicer(process.readiness, process.drain, self._services)
        self._routes.add_plain(health.handlers(servicer))

    async def _bound(self, listener: AnyListener) -> int:
        try:
            return await listener.start(self._listen)
        except OSError as error:
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


class Routes:
    """Every method by its path."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def add(self, method: Method, handler: Any) -> None:
        self._handlers[f"/{method.full_name}"] = handler

    def add_plain(self, handlers: Mapping[str, Any]) -> None:
        """Those that no policy is put around: whoever looks after the process must get through."""
        self._handlers.update(handlers)

    def find(self, path: str) -> Any:
        return self._handlers.get(path)


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
