"""The composition root: the only place that knows every part of a Scaler."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from jobmesh.v1 import orchestrator_service_pb2
from jobmesh.v1.scaler_service_pb2_grpc import add_ScalerServiceServicer_to_server

from services.mesh.lease import Keys, Lease
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings, LeaseSession
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.rpc import Server, TlsFiles, open_channel
from services.mesh.runtime import Hooks, Process, run_service
from services.mesh.wire.type_settings import type_settings_from_entry
from services.scaler.adapters.etcd import (
    EtcdPools,
    EtcdStatuses,
    ScalerKeys,
    note_from_entry,
    pool_from_entry,
    status_from_entry,
    worker_from_entry,
)
from services.scaler.adapters.leadership import Candidacy
from services.scaler.adapters.orchestrator import OrchestratorLoad
from services.scaler.adapters.process.driver import ProcessDriver
from services.scaler.adapters.process.launcher import Launcher, worker_environment
from services.scaler.adapters.workers import GrpcWorkerCalls
from services.scaler.app.board import Board
from services.scaler.app.last_work import LastWork
from services.scaler.app.load_follower import LoadFollower
from services.scaler.app.metrics import PoolMetrics
from services.scaler.app.pools import Pools
from services.scaler.app.reconciler import Drivers, Reconciler
from services.scaler.app.scale_in import ScaleIn
from services.scaler.config import ScalerConfig
from services.scaler.servicer import ScalerServicer

#: Loaded only by processes that tests may strike.
FAILPOINTS = "services.scaler.failpoints"


@dataclass(frozen=True, slots=True)
class Scaler:
    """The parts of a wired Scaler that its owner may want to look at."""

    server: Server
    reconciler: Reconciler
    candidacy: Candidacy


async def build(config: ScalerConfig, process: Process) -> None:
    """What `run_service` asks for."""
    assemble(config, process)


def assemble(config: ScalerConfig, process: Process) -> Scaler:
    """Wire a Scaler; what is added first starts first and stops last."""
    etcd = EtcdClient(EtcdSettings(config.etcd_endpoints), clock=process.clock)
    process.add(Hooks("etcd", stop=etcd.close))
    registry, keys = EtcdRegistry(etcd), Keys(config.etcd_prefix)
    own_keys = ScalerKeys(keys)

    mirrors = _Mirrors(registry, own_keys, process)
    load = _load(config, process)
    metrics = PoolMetrics(process.metrics)
    calls = GrpcWorkerCalls(TlsFiles.from_config(config))
    driver = process.add(_process_driver(config, process, calls, metrics))
    candidacy = process.add(_candidacy(config, process, etcd, registry, keys))
    statuses = EtcdStatuses(etcd, registry, own_keys, lambda: candidacy.lease_id)
    board = Board(mirrors.pools, mirrors.statuses, statuses)
    reconciler = Reconciler(
        leader=candidacy,
        pools=mirrors.pools,
        workers=mirrors.workers,
        statuses=mirrors.statuses,
        settings=mirrors.settings,
        paused=mirrors.paused,
        report=lambda: load.report,
        drivers=Drivers(driver),
        scale_in=ScaleIn(calls, candidacy, process.tasks),
        last_work=lambda: LastWork(calls, process.clock, process.tasks),
        store=statuses,
        board=board,
        metrics=metrics,
        clock=process.clock,
        interval=config.reconcile_seconds,
        stale_after=timedelta(seconds=config.stale_after_seconds),
    )
    load.on_report(reconciler.nudge)
    driver.on_change(reconciler.nudge)
    candidacy.on_change(lambda _: reconciler.nudge())
    mirrors.pools.on_change(lambda _: reconciler.nudge())
    mirrors.workers.on_change(lambda _: reconciler.nudge())
    mirrors.settings.on_change(lambda _: reconciler.nudge())
    mirrors.paused.on_change(lambda _: reconciler.nudge())
    process.add(reconciler)

    server = Server.from_config(process, config)
    servicer = ScalerServicer(Pools(EtcdPools(registry, keys), process.clock), board, process.drain)
    server.add(add_ScalerServiceServicer_to_server, servicer)
    process.add(server)
    return Scaler(server, reconciler, candidacy)


class _Mirrors:
    """What the Scaler follows in etcd."""

    def __init__(self, registry: EtcdRegistry, keys: ScalerKeys, process: Process) -> None:
        tasks = process.tasks
        self.pools = process.add(
            RegistryMirror("pools", registry, keys.mesh.pools, pool_from_entry, tasks)
        )
        self.workers = process.add(
            RegistryMirror("workers", registry, keys.mesh.workers, worker_from_entry, tasks)
        )
        self.statuses = process.add(
            RegistryMirror("statuses", registry, keys.statuses, status_from_entry, tasks)
        )
        decode, prefix = type_settings_from_entry, keys.mesh.type_settings
        self.settings = process.add(
            RegistryMirror("type settings", registry, prefix, decode, tasks)
        )
        self.paused = process.add(
            RegistryMirror("paused types", registry, keys.mesh.paused, note_from_entry, tasks)
        )


def _load(config: ScalerConfig, process: Process) -> LoadFollower:
    channel = process.add(
        open_channel(
            config.orchestrator_target,
            peer="orchestrator",
            services=[orchestrator_service_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]],
            tracing=process.tracing,
            tls=TlsFiles.from_config(config),
        )
    )
    interval = timedelta(seconds=config.stats_interval_seconds)
    return process.add(
        LoadFollower(
            OrchestratorLoad(channel, interval, process.clock),
            process.tasks,
            process.readiness.require("orchestrator"),
            silence=config.stale_after_seconds,
        )
    )


def _candidacy(
    config: ScalerConfig, process: Process, etcd: EtcdClient, registry: EtcdRegistry, keys: Keys
) -> Candidacy:
    async def grant() -> Lease:
        return await LeaseSession.grant(etcd, ttl_seconds=config.lease_seconds, clock=process.clock)

    dependency = process.readiness.require("etcd")
    return Candidacy(
        registry, keys.scaler_leader, config.instance, grant, process.tasks, dependency
    )


def _process_driver(
    config: ScalerConfig, process: Process, calls: GrpcWorkerCalls, metrics: PoolMetrics
) -> ProcessDriver:
    folder = Path(config.local_workers_dir).absolute()
    environ = worker_environment(os.environ, _passed_on(config, folder))
    return ProcessDriver(
        Launcher(config.worker_command, environ, folder, process.clock),
        calls,
        process.clock,
        metrics,
        host=socket.gethostname(),
        start_timeout=timedelta(seconds=config.start_timeout_seconds),
        settle=timedelta(seconds=config.settle_seconds),
        drain_grace=timedelta(seconds=config.drain_grace_seconds),
    )


def _passed_on(config: ScalerConfig, folder: Path) -> dict[str, str]:
    """What a worker must be told even if the Scaler knows it from its flags."""
    values = {
        "ETCD_ENDPOINTS": ",".join(config.etcd_endpoints),
        "ETCD_PREFIX": config.etcd_prefix,
        "ORCHESTRATOR_TARGET": config.orchestrator_target,
        "LOCAL_WORKERS_DIR": str(folder),
        "LOG_FORMAT": config.log_format,
        "LOG_LEVEL": config.log_level,
        "OTLP_ENDPOINT": config.otlp_endpoint,
        "TLS_CERT_FILE": config.tls_cert_file,
        "TLS_KEY_FILE": config.tls_key_file,
        "TLS_CA_FILE": config.tls_ca_file,
    }
    return {f"JOBMESH_{name}": value for name, value in values.items() if value is not None}


def main() -> None:
    """Run a Scaler until it is told to stop."""
    sys.exit(run_service("scaler", ScalerConfig, build, failpoints=FAILPOINTS))
