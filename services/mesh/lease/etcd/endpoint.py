"""Where etcd is and how to reach it: settings, channels, stubs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc
from etcd import rpc_pb2_grpc

if TYPE_CHECKING:
    from etcd.rpc_pb2_grpc import (
        AuthAsyncStub,
        KVAsyncStub,
        LeaseAsyncStub,
        MaintenanceAsyncStub,
        WatchAsyncStub,
    )

#: etcd closes connections that ping more often than every 5 s (its --grpc-keepalive-min-time).
PING_MS = 10_000
PING_TIMEOUT_MS = 5_000

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    # A peer that vanished without a word ends our streams, instead of keeping them for ever.
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backs off to two minutes; a lease lives five seconds. The minimum also bounds a
    # handshake that hangs.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # Without it, all clients of a process share one connection per member, and its troubles.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How to reach etcd."""

    # Each "host:port", with http:// or https:// in front or not; several may share a string.
    endpoints: tuple[str, ...]
    # PEM files. An authority, or https:// in front of an endpoint, turns TLS on; certificate and
    # key say who we are.
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password: str = ""
    # A call that was not answered by then failed.
    timeout_seconds: float = 3.0

    def targets(self) -> list[str]:
        """host:port of each endpoint. Raises ValueError on anything else."""
        parts = ",".join(self.endpoints).split(",")
        found = [_target(part.strip()) for part in parts if part.strip()]
        if not found:
            raise ValueError("etcd endpoints: expected host:port[,host:port…], got nothing")
        return found

    @property
    def tls(self) -> bool:
        return bool(self.ca_file) or any("https://" in endpoint for endpoint in self.endpoints)


def _target(endpoint: str) -> str:
    url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if (
        url.scheme not in ("http", "https")
        or not url.hostname
        or not url.port
        or url.path.strip("/")
    ):
        raise ValueError(
            f"etcd endpoint {endpoint!r}: expected host:port, http://host:port or https://host:port"
        )
    return url.netloc.rpartition("@")[2]


def _pem(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


class Endpoint:
    """One member of the cluster: a channel that connects by itself, and the stubs on it."""

    def __init__(self, target: str, settings: EtcdSettings) -> None:
        self.target = target
        self.channel = _open(target, settings)
        self.kv: KVAsyncStub = rpc_pb2_grpc.KVStub(self.channel)
        self.lease: LeaseAsyncStub = rpc_pb2_grpc.LeaseStub(self.channel)
        self.watch: WatchAsyncStub = rpc_pb2_grpc.WatchStub(self.channel)
        self.auth: AuthAsyncStub = rpc_pb2_grpc.AuthStub(self.channel)
        self.maintenance: MaintenanceAsyncStub = rpc_pb2_grpc.MaintenanceStub(self.channel)


def _open(target: str, settings: EtcdSettings) -> grpc.aio.Channel:
    if not settings.tls:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        _pem(settings.ca_file), _pem(settings.key_file), _pem(settings.cert_file)
    )
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)
