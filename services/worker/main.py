"""Composition root: the only place that knows every part."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from jobmesh.v1.worker_service_pb2_grpc import add_WorkerServiceServicer_to_server

from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.rpc import Server, TlsFiles, open_channel
from services.mesh.runtime import Hooks, Process, run_service
from services.mesh.telemetry.metrics import version
from services.worker.adapters.broker import BusBroker, RegrabOnReconnect
from services.worker.adapters.command_executor import CommandExecutor, CommandSettings
from services.worker.adapters.declarations import Declarations
from services.worker.adapters.executor_process import ExecutorSettings
from services.worker.adapters.handler_logs import AttemptLogs
from services.worker.adapters.instruments import ReadinessDependencies, WorkerInstruments
from services.worker.adapters.loop_executor import LoopExecutor
from services.worker.adapters.membership import EtcdMembership, EtcdSchedulers, LeaseTerms
from services.worker.adapters.objects import BlobObjects
from services.worker.adapters.offering import Offering, load_offering
from services.worker.adapters.presence import Presence
from services.worker.adapters.process_executor import ProcessExecutor
from services.worker.adapters.reports import GrpcOrchestrators
from services.worker.app.attached import AttachDesk, AttachSettings
from services.worker.app.courier import Courier
from services.worker.app.grabber import Board
from services.worker.app.node import Node, NodeSettings
from services.worker.app.runner import Runner, RunSettings
from services.worker.app.tenure import Surroundings
from services.worker.app.turns import Turns
from services.worker.config import WorkerConfig
from services.worker.domain.book import AttemptBook
from services.worker.domain.grabbing import GrabSettings
from services.worker.domain.info import WorkerInfo
from services.worker.ports import Executor, Instruments, Objects
from services.worker.servicer import WorkerServicer

#: Loaded only by processes that tests may strike.
FAILPOINTS = "services.worker.failpoints"


async def build(config: WorkerConfig, process: Process) -> None:
    """Wire the process. Order of `add` is the order of the start; the server comes last."""
    offering = load_offering(config)
    capacity = offering.capacities(config)
    book = AttemptBook(capacity, config.max_unsettled)
    instruments = WorkerInstruments(process.metrics, process.tracing, book)

    etcd = EtcdClient(EtcdSettings(config.etcd_endpoints))
    process.add(Hooks("etcd", stop=etcd.close))
    bus = process.add(
        NatsBus(
            config.nats_url,
            name=f"worker {config.instance}",
            dependency=RegrabOnReconnect(process.readiness.require("nats"), lambda: node.regrab()),
            metrics=process.metrics,
        )
    )
    objects = _objects(config, process)
    desk = AttachDesk(lambda: node, objects, _attach_settings(config))
    process.metrics.gauge("worker_executors", "Executors attached.").set_function(desk.__len__)
    runner = _runner(config, process, offering, objects, desk, instruments)
    server = Server.from_config(process, config)
    standing = WorkerInfo(
        capacity=capacity,
        host=socket.gethostname(),
        pid=os.getpid(),
        start_time=process.clock.now(),
        version=version(),
        started_by=config.started_by,
    )

    def about() -> WorkerInfo:
        address = config.advertise or server.address
        return replace(standing, address=address, capacity=dict(book.capacity))

    around = _surroundings(config, process, bus, book, runner, instruments)
    node = process.add(_node(config, process, etcd, around, about, offering, desk.drain))
    server.add(
        add_WorkerServiceServicer_to_server,
        WorkerServicer(node, desk),
    )
    process.add(server)


def _objects(config: WorkerConfig, process: Process) -> Objects:
    settings = S3Settings(
        config.s3_endpoint or "", config.s3_region, config.s3_access_key, config.s3_secret_key
    )
    connection = S3Connection(settings)
    process.add(Hooks("s3", stop=connection.close))
    return BlobObjects(
        S3BlobStore(connection, config.s3_input_bucket),
        S3BlobStore(connection, config.s3_output_bucket),
    )


def _attach_settings(config: WorkerConfig) -> AttachSettings:
    return AttachSettings(
        is_open=config.attach,
        grace=config.kill_grace_seconds,
        run_timeout=config.run_timeout_seconds,
    )


def _runner(
    config: WorkerConfig,
    process: Process,
    offering: Offering,
    objects: Objects,
    desk: AttachDesk,
    instruments: Instruments,
) -> Runner:
    spool = Path(tempfile.mkdtemp(prefix="jobmesh-worker-", dir=config.spool_dir))
    process.add(Hooks("spool", stop=partial(_remove, spool)))
    own = _executors(config, process, offering, spool)
    # What nobody here serves is for those who attach.
    executors: Mapping[str, Executor] = defaultdict(lambda: desk, own)
    courier = Courier(
        objects,
        spool,
        process.clock,
        inline_bytes=config.inline_bytes,
        patience=config.output_patience_seconds,
    )
    limits = RunSettings(
        default_timeout=config.run_timeout_seconds,
        abandon_after=config.kill_grace_seconds + 1.0,
        log_bytes=config.log_bytes,
        log_seconds=config.log_seconds,
    )
    return Runner(executors, offering.timeouts, courier, instruments, process.clock, limits)


def _executors(
    config: WorkerConfig, process: Process, offering: Offering, spool: Path
) -> dict[str, Executor]:
    handlers = offering.functions
    logs = AttemptLogs()
    process.add(Hooks("handler logs", start=logs.attach, stop=logs.detach))
    loop = LoopExecutor({t: spec for t, spec in handlers.items() if spec.is_async}, spool, logs)
    plain = [t for t, spec in handlers.items() if not spec.is_async]
    executors: dict[str, Executor] = dict.fromkeys(handlers, loop)
    if plain:
        settings = ExecutorSettings(
            app=config.app,
            spool=spool,
            kill_grace=config.kill_grace_seconds,
            memory_bytes=config.executor_memory_bytes,
            environ=dict(os.environ),
        )
        pool = ProcessExecutor(settings)
        process.add(Hooks("executors", start=pool.warm, stop=pool.close))
        executors |= dict.fromkeys(plain, pool)
    if offering.commands:
        programs = CommandExecutor(offering.commands, _command_settings(config, spool))
        process.add(Hooks("commands", stop=programs.close))
        executors |= dict.fromkeys(offering.commands, programs)
    return executors


def _command_settings(config: WorkerConfig, spool: Path) -> CommandSettings:
    return CommandSettings(
        spool=spool,
        kill_grace=config.kill_grace_seconds,
        max_output=config.command_output_bytes,
        environ=dict(os.environ),
    )


def _surroundings(
    config: WorkerConfig,
    process: Process,
    bus: NatsBus,
    book: AttemptBook,
    runner: Runner,
    instruments: Instruments,
) -> Surroundings:
    channel = process.add(
        open_channel(
            config.orchestrator_target,
            peer="orchestrator",
            tracing=process.tracing,
            tls=TlsFiles.from_config(config),
        )
    )
    return Surroundings(
        book=book,
        board=Board(),
        runner=runner,
        turns=Turns(runner, book.may_run, process.clock),
        broker=BusBroker(bus, Subjects(config.nats_prefix)),
        orchestrators=GrpcOrchestrators(channel, process.clock),
        instruments=instruments,
        dependencies=ReadinessDependencies(process.readiness),
        clock=process.clock,
        grabbing=GrabSettings(
            patience=config.grab_seconds,
            linger=config.linger_seconds,
            ahead=config.foresight_seconds,
        ),
    )


def _node(
    config: WorkerConfig,
    process: Process,
    etcd: EtcdClient,
    around: Surroundings,
    about: Callable[[], WorkerInfo],
    offering: Offering,
    on_drain: Callable[[], None],
) -> Node:
    keys, registry = Keys(config.etcd_prefix), EtcdRegistry(etcd)
    terms = LeaseTerms(config.lease_seconds, config.lease_margin_seconds, config.etcd_max_txn_ops)
    presence = Presence(config.local_workers_dir)
    declarations = Declarations(registry, keys, offering.asked)
    return Node(
        EtcdMembership(etcd, registry, keys, about, terms, presence, declarations),
        EtcdSchedulers(registry, keys),
        around,
        about=about,
        tasks=process.tasks,
        served=process.serving,
        end_process=process.stop,
        on_drain=on_drain,
        on_death=lambda task: process.stop(f"task {task} died", exit_code=1),
        settings=NodeSettings(
            lost_grace=config.lost_grace_seconds, drain_seconds=config.drain_seconds
        ),
    )


async def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run a worker until it is told to stop."""
    sys.exit(run_service("worker", WorkerConfig, build, failpoints=FAILPOINTS))
