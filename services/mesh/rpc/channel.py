"""The client's side: a channel for generated stubs.

    channel = open_channel(config.orchestrator_target, peer="orchestrator", process=process,
                           services=[orchestrator_service_pb2.DESCRIPTOR.services_by_name[…]])
    process.add(channel)
    stub = OrchestratorServiceStub(channel)
    response = await stub.GetJobs(request, timeout=2.0)     # raises MeshError

Wrapping the channel costs a small object per call; grpc.aio's interceptors cost a task per layer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from services.mesh.rpc.calls import Outgoing, StreamCallable, UnaryCallable
from services.mesh.rpc.server import MAX_SEND_BYTES
from services.mesh.rpc.tls import TlsFiles
from services.mesh.runtime import StartupError
from services.mesh.telemetry.tracing import Tracing

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_SEND_BYTES),
    ("grpc.max_send_message_length", -1),
    # A peer that froze or lost its network says nothing, and until it is given up every other call
    # goes there and waits for its deadline. Keepalive finds that on a connection at rest; writing
    # puts it off, so under load it is the timeout of the transport's own pings (default: a minute).
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that restarts is found again within seconds, not after the default's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This bounds a connection's making, too: a peer whose two cores are busy needs its time for it.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 1),
)


class Channel(grpc.aio.Channel):
    """A channel whose calls carry deadline and trace context, and fail with MeshError."""

    def __init__(self, inner: grpc.aio.Channel, outgoing: Outgoing) -> None:
        self.name = f"channel to {outgoing.peer}"
        self._inner, self._outgoing = inner, outgoing

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return UnaryCallable(
            self._inner.unary_unary(method, *args, **kwargs), method, self._outgoing
        )

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return StreamCallable(self._inner.stream_unary(method, *args, **kwargs), self._outgoing)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return StreamCallable(self._inner.unary_stream(method, *args, **kwargs), self._outgoing)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return StreamCallable(self._inner.stream_stream(method, *args, **kwargs), self._outgoing)

    async def start(self) -> None:
        """A component: connects in the background as soon as it is asked to."""
        self._inner.get_state(try_to_connect=True)

    async def stop(self) -> None:
        await self._inner.close()

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._inner.close()


def open_channel(
    target: str,
    *,
    peer: str,
    services: Iterable[ServiceDescriptor] = (),
    timeout: float = 5.0,
    tracing: Tracing | None = None,
    tls: TlsFiles | None = None,
    health: str | None = None,
) -> Channel:
    """Open a channel; it connects when first used, and reconnects by itself.

    `target` is "host:port", several of them separated by commas, or a gRPC target (`dns:///…`).
    `services` are the contracts spoken: their idempotent methods are retried if a replica is away.
    `timeout` is the deadline of unary calls that bring none. With `health`, the name of a service,
    replicas that are not ready get no calls.
    """
    options = (*OPTIONS, ("grpc.service_config", service_config(services, health)))
    resolved = resolve(target)
    inner = (
        grpc.aio.insecure_channel(resolved, options)
        if tls is None
        else grpc.aio.secure_channel(resolved, tls.channel_credentials(), options)
    )
    return Channel(inner, Outgoing(peer, timeout, tracing or Tracing()))


def resolve(target: str) -> str:
    """The target as gRPC names it: a list of addresses becomes one `ipv4:` or `ipv6:` target."""
    addresses = [part.strip() for part in target.split(",") if part.strip()]
    if not addresses:
        raise StartupError("no address to call")
    if len(addresses) == 1:
        return addresses[0]
    literal = [address.replace("localhost", "127.0.0.1") for address in addresses]
    if all(_is_ipv4(address) for address in literal):
        return f"ipv4:{','.join(literal)}"
    if all(address.startswith("[") for address in literal):
        return f"ipv6:{','.join(literal)}"
    raise StartupError(
        f"cannot call {target!r}: several addresses must be IP addresses; "
        "give a name that resolves to all of them (dns:///name:port) instead"
    )


def _is_ipv4(address: str) -> bool:
    host = address.rpartition(":")[0]
    parts = host.split(".")
    return len(parts) == 4 and all(part.isdigit() for part in parts)


def service_config(services: Iterable[ServiceDescriptor], health: str | None = None) -> str:
    """Balance over all addresses; retry what the contract calls idempotent, within a budget."""
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    names = [name for service in services for name in _idempotent(service)]
    if names:
        policy = {
            "maxAttempts": 3,
            "initialBackoff": "0.05s",
            "maxBackoff": "1s",
            "backoffMultiplier": 3,
            # The second is what gRPC says of calls that a draining server has not begun.
            "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
        }
        config["methodConfig"] = [{"name": names, "retryPolicy": policy}]
        # Retries stop when more than about a tenth of the calls fail: they must not feed an outage.
        config["retryThrottling"] = {"maxTokens": 100, "tokenRatio": 0.1}
    if health is not None:
        config["healthCheckConfig"] = {"serviceName": health}
    return json.dumps(config)


def _idempotent(service: ServiceDescriptor) -> Sequence[dict[str, str]]:
    return [
        {"service": service.full_name, "method": method.name}
        for method in service.methods
        if method.GetOptions().idempotency_level and not method.client_streaming
    ]
