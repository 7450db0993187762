"""Composition root: the only place that knows every part."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb
from jobmesh.v1.enqueue_service_pb2_grpc import add_EnqueueServiceServicer_to_server
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub

from services.enqueue import convert
from services.enqueue.adapters.company import Company, Singles
from services.enqueue.adapters.jobs import BusHints, BusProgress, OrchestratorSource
from services.enqueue.adapters.logs import MeshLogs, Workers
from services.enqueue.adapters.order import BusBell, OrchestratorOrder
from services.enqueue.adapters.orphans import EtcdTurns, OrchestratorOrphans
from services.enqueue.adapters.put_line import PutLine
from services.enqueue.adapters.submitting import Submitter
from services.enqueue.adapters.surroundings import EtcdSurroundings
from services.enqueue.app.collecting import Collector, Shelf
from services.enqueue.app.filter_hub import FilterHub
from services.enqueue.app.gate import Gate
from services.enqueue.app.inputs import Inputs, Outputs
from services.enqueue.app.logs import LogReader
from services.enqueue.app.stream import Room
from services.enqueue.app.turnstile import Turnstile
from services.enqueue.app.type_settings import TypeSettingsStore
from services.enqueue.app.types import KnownTypes
from services.enqueue.app.watches import WatchHub
from services.enqueue.config import EnqueueConfig
from services.enqueue.domain.quotas import Quotas, Rate
from services.enqueue.servicer import EnqueueServicer
from services.enqueue.servicer.desk import Desk
from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.lease import Keys, Lease
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings, LeaseSession
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.rpc import Server, TlsFiles, open_channel
from services.mesh.rpc.work import WorkLimit
from services.mesh.runtime import Hooks, Process, run_service
from services.mesh.wire.type_settings import settings_message

if TYPE_CHECKING:
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

#: Of the collector's turn.
LEASE_SECONDS = 10

ORCHESTRATOR = orchestrator_pb.DESCRIPTOR.services_by_name["OrchestratorService"]
#: Of all calls and streams at once, what these may take: the rest is for cancels and queries.
SHARES = {
    **dict.fromkeys(("Enqueue", "EnqueueBatch", "EnqueueStream", "UploadInput"), 15 / 16),
    **dict.fromkeys(("ListJobs", "CountJobs", "WatchJobs", "WatchLogs", "DownloadOutput"), 7 / 8),
}
#: Loaded only by processes that tests may strike.
FAILPOINTS = "services.enqueue.failpoints"


async def build(config: EnqueueConfig, process: Process) -> None:
    """Wire the process. Order of `add` is the order of the start; the server comes last."""
    ready, clock = process.readiness, process.clock
    etcd = EtcdClient(EtcdSettings(config.etcd_endpoints))
    process.add(Hooks("etcd", stop=etcd.close))
    bus = process.add(
        NatsBus(
            config.nats_url,
            name=f"enqueue {config.instance}",
            dependency=ready.require("nats"),
            metrics=process.metrics,
        )
    )
    orchestrator = _orchestrator(config, process)
    types = process.add(
        KnownTypes(
            EtcdRegistry(etcd),
            Keys(config.etcd_prefix),
            process.tasks,
            clock,
            ready.require("types"),
            accept_unknown=config.unknown_types == "accept",
        )
    )
    settings = process.add(
        RegistryMirror(
            "type settings",
            EtcdRegistry(etcd),
            Keys(config.etcd_prefix).type_settings,
            settings_message,
            process.tasks,
            ready.require("type settings").up,
        )
    )
    watches = process.add(
        WatchHub(
            OrchestratorSource(orchestrator),
            BusHints(bus, Subjects(config.nats_prefix)),
            BusProgress(bus, Subjects(config.nats_prefix)),
            clock,
            process.drain,
            process.metrics,
            reread=config.reread_seconds,
            heartbeat=config.heartbeat_seconds,
            backlog=config.watch_backlog,
        )
    )
    filter_watches = process.add(
        FilterHub(
            OrchestratorOrder(orchestrator),
            BusBell(bus, Subjects(config.nats_prefix)),
            clock,
            process.drain,
            process.tasks,
            process.metrics,
            reread=config.reread_seconds,
            heartbeat=config.heartbeat_seconds,
            backlog=config.watch_backlog,
        )
    )
    objects = S3Connection(_s3(config))
    process.add(Hooks("objects", stop=objects.close))

    outputs = S3BlobStore(objects, config.s3_output_bucket)
    workers = Workers(
        EtcdRegistry(etcd), Keys(config.etcd_prefix), process.tracing, TlsFiles.from_config(config)
    )
    logs = LogReader(MeshLogs(orchestrator, outputs, workers), watches, process.drain)

    if config.collect_seconds:
        process.add(_collector(config, process, etcd, orchestrator, objects))
    # Of a trace, each put is a call with a span on either side.
    line = None if process.tracing.enabled else process.add(PutLine(orchestrator, process.tasks))
    turnstile = Turnstile(config.storing_jobs, metrics=process.metrics)
    submitter = Submitter(orchestrator, turnstile, line)
    gate = _gate(config, process)
    server = Server.from_config(process, config)
    desk = Desk(
        orchestrator=orchestrator,
        put=Company(submitter.put_brief, process.tasks, gate).put,
        put_one=Singles(submitter.put, process.tasks, gate).put,
        types=types,
        settings=settings,
        settings_store=TypeSettingsStore(EtcdRegistry(etcd), Keys(config.etcd_prefix)),
        inputs=Inputs(
            S3BlobStore(objects, config.s3_input_bucket),
            config.inline_bytes,
            config.upload_bytes,
            clock,
            renew_after=timedelta(hours=config.orphan_hours) / 2,
        ),
        outputs=Outputs(outputs),
        logs=logs,
        watches=watches,
        surroundings=EtcdSurroundings(EtcdRegistry(etcd), Keys(config.etcd_prefix)),
        filter_watches=filter_watches,
        room=Room(config.admitted_bytes, config.admitted_jobs),
        gate=gate,
        drain=process.drain,
        rules=server.rules,
        clock=clock,
        tracing=process.tracing,
    )
    server.add(
        add_EnqueueServiceServicer_to_server,
        EnqueueServicer(desk),
        # It checks calls itself, and quicker: most are like one before them.
        unchecked={"Enqueue"},
        shares=SHARES,
        waits={"Enqueue": convert.wait_of},
    )
    process.add(server)


def _gate(config: EnqueueConfig, process: Process) -> Gate:
    own = {namespace: Rate.parse(text) for namespace, text in config.quotas.items()}
    work = WorkLimit(config.admitted_jobs, config.admitted_bytes, process.metrics)
    return Gate(Quotas(Rate.parse(config.quota), own), work, process.clock, process.metrics)


def _collector(
    config: EnqueueConfig,
    process: Process,
    etcd: EtcdClient,
    orchestrator: OrchestratorServiceAsyncStub,
    objects: S3Connection,
) -> Collector:
    async def grant() -> Lease:
        return await LeaseSession.grant(etcd, ttl_seconds=LEASE_SECONDS, clock=process.clock)

    orphans = OrchestratorOrphans(orchestrator)
    inputs = S3BlobStore(objects, config.s3_input_bucket)
    outputs = S3BlobStore(objects, config.s3_output_bucket)
    key = Keys(config.etcd_prefix).collector
    return Collector(
        {"input": Shelf(inputs, orphans.inputs), "output": Shelf(outputs, orphans.outputs)},
        EtcdTurns(EtcdRegistry(etcd), key, config.instance, grant),
        process.clock,
        process.metrics,
        interval=config.collect_seconds,
        age=timedelta(hours=config.orphan_hours),
        dry_run=config.collect_dry_run,
    )


def _orchestrator(config: EnqueueConfig, process: Process) -> OrchestratorServiceAsyncStub:
    channel = process.add(
        open_channel(
            config.orchestrator_target,
            peer="orchestrator",
            services=[ORCHESTRATOR],
            timeout=10.0,
            tracing=process.tracing,
            tls=TlsFiles.from_config(config),
        )
    )
    return OrchestratorServiceStub(channel)


def _s3(config: EnqueueConfig) -> S3Settings:
    return S3Settings(
        endpoint=config.s3_endpoint or "",
        region=config.s3_region,
        access_key=config.s3_access_key,
        secret_key=config.s3_secret_key,
    )


def main() -> None:
    sys.exit(run_service("enqueue", EnqueueConfig, build, failpoints=FAILPOINTS))
