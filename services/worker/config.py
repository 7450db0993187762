"""The worker's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.mesh.config import (
    EtcdConfig,
    NatsConfig,
    OrchestratorConfig,
    S3Config,
    ServiceConfig,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(OrchestratorConfig, S3Config, NatsConfig, EtcdConfig, ServiceConfig):
    """What one worker is told at boot."""

    app: str = setting(
        "jobmesh.examples",
        'Module with the handlers, or one group in it: "module:app"; empty: none.',
    )
    commands: str = setting(
        "", 'Programs that serve types, beside the app: JSON {"type": "program arguments"}.'
    )
    attach: bool = setting(
        False, "Let executors attach (WorkerService.Attach) and run types that nobody here serves."
    )
    types: tuple[str, ...] = setting((), "Which of the app's types to serve; empty: all.")
    capacity: int | None = setting(
        None, "Attempts at once per type, whatever the handlers say.", low=1, high=10_000
    )
    async_capacity: int = setting(
        256, "The same for async handlers that do not say.", low=1, high=10_000
    )
    process_capacity: int | None = setting(
        None, "The same for plain functions; empty: one per processor.", low=1, high=1_000
    )
    run_timeout_seconds: float | None = setting(
        None, "Limit for attempts whose job and handler set none; empty: no limit.", low=0.001
    )
    started_by: str = setting("", 'Who started this process: "scaler", or empty.')
    local_workers_dir: str | None = setting(
        None, "Folder in which this worker leaves a file about itself while it lives."
    )
    # --- how it works
    lease_seconds: int = setting(
        5, "How long after its death others take this worker's jobs over.", low=2, high=300
    )
    lease_margin_seconds: float = setting(
        1.0, "How long before its lease may end the worker stops trusting it.", low=0.1
    )
    etcd_max_txn_ops: int = setting(
        128, "Locks in one etcd transaction; etcd's own --max-txn-ops.", low=8, high=10_000
    )
    # A grab may be with a scheduler that froze or lost its network: nobody says so, and until it is
    # asked again this worker is idle. Schedulers answer after five seconds at the latest.
    grab_seconds: float = setting(
        8.0, "How long an answer to a grab may take; more than schedulers park one.", low=0.1
    )
    linger_seconds: float = setting(
        0.002, "How long crumbs of room are gathered before a grab.", low=0, high=1
    )
    foresight_seconds: float = setting(
        0.05,
        "Work is asked for that will find room within so long; 0: only what has room now.",
        low=0,
        high=1,
    )
    max_unsettled: int = setting(
        2000, "Attempts that may wait for their verdict before no more are taken.", low=1
    )
    inline_bytes: int = setting(
        16 * 1024, "Larger outputs become objects.", low=0, high=1024 * 1024
    )
    log_bytes: int = setting(
        1024 * 1024, "What is kept of the log of one attempt.", low=1024, high=64 * 1024 * 1024
    )
    log_seconds: float = setting(
        3.0,
        "A running attempt's log is kept this often; long ones less. 0: when it ends.",
        low=0,
        high=3600,
    )
    spool_dir: str | None = setting(
        None, "Folder for inputs, outputs and scratch files; empty: the system's own."
    )
    kill_grace_seconds: float = setting(
        2.0, "From SIGTERM to SIGKILL for a handler that is stopped.", low=0, high=60
    )
    executor_memory_bytes: int = setting(
        0, "Address space an executor process may have; 0: no limit.", low=0
    )
    command_output_bytes: int = setting(1 << 30, "The largest output a command may have.", low=0)
    lost_grace_seconds: float = setting(
        2.0, "How long attempts may go on after a lost lease before a new identity begins.", low=0
    )
    output_patience_seconds: float = setting(
        30.0, "How long an output is offered to an object store that is away.", low=0
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.lease_margin_seconds >= self.lease_seconds:
            yield "lease_margin_seconds must be less than lease_seconds"
        if not self.app and not self.commands and not self.attach:
            yield "without an app there must be commands or attach: nothing would be served"
