"""What the Orchestrator can be told at boot."""

from __future__ import annotations

from dataclasses import dataclass

from services.mesh.config import EtcdConfig, NatsConfig, ServiceConfig, ShardsConfig, setting


@dataclass(frozen=True, kw_only=True)
class OrchestratorConfig(ShardsConfig, NatsConfig, EtcdConfig, ServiceConfig):
    """Settings of `python -m services.orchestrator`."""

    listen: str = setting("127.0.0.1:7102", "Where gRPC is served.", kind="address")
    probe_seconds: float = setting(
        0.9, "How often a healthy shard is asked for a sign of life.", low=0.05
    )
    shard_connections: int = setting(8, "Connections to each shard.", low=2, high=1000)
    statement_seconds: float = setting(
        5.0, "Longest time one statement may take before it is given up.", low=0.1
    )
    stats_seconds: float = setting(
        0.2,
        "Least time between two reads of the backlog while jobs wait; more while none does.",
        low=0.05,
    )
    stats_cap: int = setting(
        10_000, "Up to how many due jobs per type and shard are counted.", low=1
    )
    admitted_jobs: int = setting(
        32_768, "New jobs being stored at once; more are refused as overloaded.", low=1_000
    )
    admitted_bytes: int = setting(
        256 * 1024**2, "The same in bytes of their messages.", low=5 * 1024**2
    )
    loans: bool = setting(
        True, "Hand new jobs straight to workers whose grabs schedulers lend, while nothing waits."
    )
