"""The settings that several services have in common, as mixins."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from services.mesh.config.settings import setting


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What every process of the mesh has: where it listens, how it logs, how it ends."""

    listen: str = setting(
        "127.0.0.1:0", "Where gRPC is served; port 0 takes a free one.", kind="address"
    )
    advertise: str | None = setting(
        None, "How others reach this process, if not where it listens.", kind="address"
    )
    metrics_listen: str | None = setting(
        None, "Where /metrics and /healthz are served over HTTP; empty: nowhere.", kind="address"
    )
    instance: str = setting(
        default_factory=_own_name, help="Name of this process in logs, metrics and leases."
    )
    log_format: Literal["json", "console"] = setting("console", "How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least level that is logged."
    )
    otlp_endpoint: str | None = setting(
        None, "OTLP/gRPC endpoint spans are sent to, like http://127.0.0.1:4317; empty: no tracing."
    )
    trace_file: str | None = setting(
        None, "File that gets one JSON line for each finished span; for tests and debugging."
    )
    trace_ratio: float = setting(
        1.0, "Share of new traces that are recorded; a caller's own decision wins.", low=0, high=1
    )
    reflection: bool = setting(True, "Serve gRPC reflection; turn it off where strangers call.")
    rpc_server: Literal["own", "grpcio"] = setting(
        "own", "What serves gRPC: our own HTTP/2 on the event loop, or grpcio, which costs more."
    )
    drain_seconds: float = setting(
        20.0, "How long work under way may take to finish after SIGTERM.", low=0, high=3600
    )
    max_concurrent_rpcs: int = setting(
        4096, "Calls and streams served at once; one more is refused as overloaded.", low=1
    )
    tls_cert_file: str | None = setting(
        None, "PEM certificate chain of this process, as server and as client; empty: no TLS."
    )
    tls_key_file: str | None = setting(None, "PEM private key that belongs to the certificate.")
    tls_ca_file: str | None = setting(
        None, "PEM authority that peers' certificates must come from; callers must show one."
    )
    failpoints_enabled: bool = setting(
        False, "Let tests strike this process at its failpoints. Never in production."
    )
    failpoints: Mapping[str, str] = setting(
        default_factory=dict, help="Failpoints armed at boot: name=action[:argument][@n],…"
    )
    failpoints_journal: str | None = setting(
        None, "File that gets a JSON line whenever a failpoint of this process acts."
    )
    mutant: str | None = setting(
        None, "Function module:name that breaks this process on purpose; for tests of tests."
    )

    def problems(self) -> Iterator[str]:
        """What is wrong with the values taken together, one line each."""
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            yield "tls_cert_file and tls_key_file go together: set both or neither"
        if self.tls_ca_file is not None and self.tls_cert_file is None:
            yield "tls_ca_file needs tls_cert_file and tls_key_file"
        if (self.failpoints or self.mutant) and not self.failpoints_enabled:
            yield "failpoints and mutant need failpoints_enabled: they are for tests only"


@dataclass(frozen=True, kw_only=True)
class EtcdConfig:
    """Where leases, locks and the topology live."""

    etcd_endpoints: tuple[str, ...] = setting(
        ("127.0.0.1:7152",), "etcd members, host:port, separated by commas."
    )
    etcd_prefix: str = setting("/jobmesh", "Prefix of all keys of this mesh.")


@dataclass(frozen=True, kw_only=True)
class NatsConfig:
    """Where nudges, grabs and hints travel."""

    nats_url: str = setting(
        "nats://127.0.0.1:7142", "NATS servers, separated by commas.", secret=True
    )
    nats_prefix: str = setting("jm", "Prefix of all subjects of this mesh.")


@dataclass(frozen=True, kw_only=True)
class S3Config:
    """Where large inputs and outputs are kept."""

    s3_endpoint: str | None = setting(
        "http://127.0.0.1:7162", "S3-compatible endpoint; empty takes the AWS default."
    )
    s3_region: str = setting("us-east-1", "Region of the buckets.")
    s3_access_key: str = setting("jobmesh", "Access key id.")
    s3_secret_key: str = setting("jobmesh-secret", "Secret access key.", secret=True)
    s3_input_bucket: str = setting("jobmesh-input", "Bucket of the inputs.")
    s3_output_bucket: str = setting("jobmesh-output", "Bucket of the outputs.")


@dataclass(frozen=True, kw_only=True)
class ShardsConfig:
    """The job databases; only the Orchestrator and the Scheduler have them."""

    shard_dsns: Mapping[str, str] = setting(
        help="Shards by name: s0=postgresql://user:password@host/db,s1=…", secret=True
    )


@dataclass(frozen=True, kw_only=True)
class OrchestratorConfig:
    """How to reach the Orchestrator, for the services that call it."""

    orchestrator_target: str = setting(
        "127.0.0.1:7102",
        "Orchestrators: host:port, several separated by commas, or dns:///name:port.",
    )
