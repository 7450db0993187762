"""What can be set about a Scaler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from services.mesh.config import EtcdConfig, OrchestratorConfig, ServiceConfig, setting


@dataclass(frozen=True, kw_only=True)
class ScalerConfig(OrchestratorConfig, EtcdConfig, ServiceConfig):
    """The Scaler's own settings; what its workers need is passed on from its environment."""

    listen: str = setting("127.0.0.1:7105", "Where gRPC is served.", kind="address")
    reconcile_seconds: float = setting(
        5.0, "Longest time between two looks at the pools; news are acted on at once.", low=0.1
    )
    # As often as the connection would be asked for a sign of life otherwise.
    stats_interval_seconds: float = setting(
        4.0, "Longest silence the Orchestrator is asked to keep between statistics.", low=0.1
    )
    stale_after_seconds: float = setting(
        15.0, "Statistics older than this are not believed: no pool shrinks by them.", low=0.2
    )
    lease_seconds: int = setting(
        5, "Life of the lease under which one Scaler leads; another takes over after it.", low=2
    )
    start_timeout_seconds: float = setting(
        60.0,
        "A worker process that has not registered by then is stopped and counts as dead.",
        low=1,
    )
    settle_seconds: float = setting(
        10.0, "A worker that dies sooner than this after its start counts as crashed.", low=0
    )
    drain_grace_seconds: float = setting(
        10.0,
        "How long past its drain timeout a worker may live before it gets SIGTERM; and past that, "
        "before it gets SIGKILL, one that has never registered.",
        low=0,
    )
    local_workers_dir: str = setting(
        ".jobmesh/workers", "Directory of the worker processes' logs and records."
    )
    worker_command: tuple[str, ...] = setting(
        (sys.executable, "-m", "services.worker"),
        "Command that starts a worker process, its words separated by commas.",
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.stale_after_seconds < 2 * self.stats_interval_seconds:
            yield "stale_after_seconds must be at least twice stats_interval_seconds"
