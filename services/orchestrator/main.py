"""Composition root: the only place that knows every part."""

from __future__ import annotations

import sys
from random import Random, SystemRandom
from uuid import uuid4

from jobmesh.v1.orchestrator_service_pb2_grpc import add_OrchestratorServiceServicer_to_server

from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.lease.port import Entry
from services.mesh.rpc import Server
from services.mesh.rpc.server import MAX_PUT_BYTES
from services.mesh.rpc.work import WorkLimit
from services.mesh.runtime import Hooks, Process, run_service
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.settings import StoreSettings
from services.mesh.wire.type_settings import type_settings_from_entry
from services.orchestrator.adapters.announcer import BusAnnouncer
from services.orchestrator.adapters.due_listener import DueListener
from services.orchestrator.adapters.hands import BusHands, LoanDesk
from services.orchestrator.app.changes import Changes
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.parents import Parents
from services.orchestrator.app.reports import Reports
from services.orchestrator.app.schedules import Schedules
from services.orchestrator.app.shards import Prober, Shards
from services.orchestrator.app.stats import Statistics
from services.orchestrator.app.submission import Submission
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.servicer import OrchestratorServicer

#: Of all calls and streams at once, what these may take: the rest is for reports and cancels.
SHARES = {"PutJobs": 15 / 16, "PutJobsStream": 15 / 16, "ListJobs": 7 / 8, "CountJobs": 7 / 8}
#: Loaded only by processes that tests may strike.
FAILPOINTS = "services.orchestrator.failpoints"


async def build(config: OrchestratorConfig, process: Process) -> None:
    """Wire the process. Order of `add` is the order of the start; the server comes last."""
    clock, ready = process.clock, process.readiness
    # Ids need to differ, not to be secret; the system's own source costs ten times as much.
    random = Random(SystemRandom().getrandbits(256))

    etcd = EtcdClient(EtcdSettings(config.etcd_endpoints))
    process.add(Hooks("etcd", stop=etcd.close))
    bus = process.add(
        NatsBus(
            config.nats_url,
            name=f"orchestrator {config.instance}",
            echo=False,  # of what it tells others of due work it knows already
            dependency=ready.require("nats"),
            metrics=process.metrics,
        )
    )

    # What jobs of schedules are given that are made here, by trigger and backfill.
    types = process.add(
        RegistryMirror(
            "type settings",
            EtcdRegistry(etcd),
            Keys(config.etcd_prefix).type_settings,
            type_settings_from_entry,
            process.tasks,
            ready.require("type settings").up,
        )
    )

    def is_limited(type_: str) -> bool:
        return type_ in types.items and types.items[type_].limited

    settings = StoreSettings(
        application=f"orchestrator {config.instance}",
        max_connections=config.shard_connections,
        statement_timeout=config.statement_seconds,
        lock_timeout=min(2.0, config.statement_seconds),
        call_timeout=config.statement_seconds + 1,
    )
    stores = {
        name: PostgresShard(name, dsn, settings, settings_of=types.items.get)
        for name, dsn in config.shard_dsns.items()
    }
    shards = Shards(stores, clock, ready.require("shards"))
    for store in stores.values():
        process.add(Hooks(f"shard {store.name}", start=store.open, stop=store.close))
        process.add(Prober(shards, store, clock, config.probe_seconds))

    topology = process.add(
        TopologyKeeper(
            EtcdRegistry(etcd),
            Keys(config.etcd_prefix),
            list(stores),
            process.tasks,
            ready.require("topology"),
        )
    )
    statistics = Statistics(shards, clock, process.drain, config.stats_seconds, config.stats_cap)
    subjects = Subjects(config.nats_prefix)
    announcer = BusAnnouncer(bus, subjects, process.metrics, statistics.changed)
    process.add(DueListener(bus, subjects, statistics.changed))
    loans = _loans(config, process, bus, subjects, shards, etcd, announcer)
    paused = _paused(config, process, etcd, loans)
    loans.is_barred = lambda type_: type_ in paused.items or is_limited(type_)
    searches = config.shard_connections // 2
    lookup = Lookup(shards, topology, announcer, searches)
    reports = process.add(
        Reports(shards, topology, announcer, process.tasks, process.metrics, clock)
    )

    server = Server.from_config(process, config, receive_bytes=MAX_PUT_BYTES)
    server.add(
        add_OrchestratorServiceServicer_to_server,
        # Methods it does not override are answered with UNIMPLEMENTED by the server.
        OrchestratorServicer(  # type: ignore[abstract]
            Submission(shards, topology, announcer, clock, random, Parents(lookup, shards), loans),
            lookup,
            Changes(lookup, shards, topology, announcer, clock, random),
            reports,
            Schedules(shards, topology, announcer, clock, random),
            statistics,
            shards,
            topology,
            process.drain,
            process.tracing,
            WorkLimit(config.admitted_jobs, config.admitted_bytes, process.metrics),
        ),
        # Enqueue and the workers have checked what they send; these carry large batches.
        unchecked={"PutJobs", "PutJobsStream", "ReportAttempts"},
        shares=SHARES,
    )
    process.add(server)


def _loans(
    config: OrchestratorConfig,
    process: Process,
    bus: NatsBus,
    subjects: Subjects,
    shards: Shards,
    etcd: EtcdClient,
    announcer: BusAnnouncer,
) -> Loans:
    # New at each start: what was lent to the one before is not ours.
    hands = BusHands(bus, subjects, f"{config.instance}-{uuid4().hex[:6]}")
    loans = Loans(hands, shards, process.tasks, process.clock, process.metrics, process.tracing)
    if not config.loans:
        return loans
    prefix, registry = Keys(config.etcd_prefix).workers, EtcdRegistry(etcd)
    workers = process.add(RegistryMirror("workers", registry, prefix, _nothing, process.tasks))

    def changed(worker_id: str) -> None:
        if worker_id not in workers.items:
            loans.worker_lost(worker_id)

    workers.on_change(changed)
    desk = process.add(LoanDesk(bus, subjects, hands, loans))
    announcer.lend_at, announcer.on_nudged = (lambda: desk.lend_at), loans.nudged
    return loans


def _paused(
    config: OrchestratorConfig, process: Process, etcd: EtcdClient, loans: Loans
) -> RegistryMirror[None]:
    """Followed here, too: a recall may get lost, and an older scheduler may lend all the same."""
    prefix, registry = Keys(config.etcd_prefix).paused, EtcdRegistry(etcd)
    paused = process.add(RegistryMirror("paused types", registry, prefix, _nothing, process.tasks))

    def changed(type_: str) -> None:
        if type_ in paused.items:
            loans.barred(type_)

    paused.on_change(changed)
    return paused


def _nothing(entry: Entry) -> None:
    """That it is there says all."""


def main() -> None:
    sys.exit(run_service("orchestrator", OrchestratorConfig, build, failpoints=FAILPOINTS))
