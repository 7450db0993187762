"""The composition root: from configuration to a running scheduler. The only file that sees all."""

from __future__ import annotations

import sys
from datetime import timedelta
from uuid import uuid4

from jobmesh.v1.scheduler_service_pb2_grpc import add_SchedulerServiceServicer_to_server

from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.jobs.type_settings import Retention, TypeSettings
from services.mesh.lease.etcd import (
    Compactor,
    EtcdClient,
    EtcdLockTable,
    EtcdRegistry,
    EtcdSettings,
    LeaseSession,
)
from services.mesh.lease.keys import Keys
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.lease.port import Entry, Lease
from services.mesh.rpc import Server
from services.mesh.runtime import Hooks, Process, run_service
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.settings import StoreSettings
from services.mesh.wire.type_settings import type_settings_from_entry
from services.scheduler.adapters.broker import BusBroker, Intake
from services.scheduler.adapters.registry import RegisteredWorkers
from services.scheduler.app.claims import LEAD, ClaimRules
from services.scheduler.app.keeping import KeepingRules
from services.scheduler.app.purging import PurgeRules
from services.scheduler.app.scheduler import Identity, Life, Outside, Rules, Scheduler
from services.scheduler.app.slots import SlotRules
from services.scheduler.config import SchedulerConfig
from services.scheduler.domain.lending import LoanRules
from services.scheduler.domain.pace import PaceRules
from services.scheduler.servicer import SchedulerServicer

#: Loaded only by processes that tests may strike.
FAILPOINTS = "services.scheduler.failpoints"


def main() -> None:
    """Be a scheduler until told to stop."""
    sys.exit(run_service("scheduler", SchedulerConfig, build, failpoints=FAILPOINTS))


async def build(config: SchedulerConfig, process: Process) -> None:
    """Make the parts and list them in the order they start."""
    # New at each start: a scheduler that comes back is another member, whose lease is its own.
    identity = Identity(f"{config.instance}-{uuid4().hex[:6]}", config.advertise or config.listen)
    etcd = EtcdClient(EtcdSettings(config.etcd_endpoints), clock=process.clock)
    process.add(Hooks("etcd", stop=etcd.close))
    bus = _bus(config, process)
    types = _types(config, process, etcd)
    stores = _stores(config, process, types)
    subjects = Subjects(config.nats_prefix)
    broker = BusBroker(bus, subjects, identity.scheduler_id, config.message_bytes)
    scheduler = Scheduler(
        identity,
        _rules(config),
        _outside(config, process, etcd, broker, stores, types),
        _life(process),
    )
    for component in scheduler.components():
        process.add(component)
    process.add(Compactor(etcd, enabled=scheduler.membership.keeps_mesh))
    parking = scheduler.parking
    ended, served = scheduler.parents_ended, scheduler.claimer.served
    told = (scheduler.grabbed, scheduler.heard, ended, parking.close, parking.withdrawn, served)
    process.add(Intake(bus, subjects, identity.scheduler_id, *told))
    server = Server.from_config(process, config)
    server.add(add_SchedulerServiceServicer_to_server, SchedulerServicer(scheduler.console))
    process.add(server)


def _bus(config: SchedulerConfig, process: Process) -> NatsBus:
    bus = NatsBus(
        config.nats_url,
        name=f"scheduler-{config.instance}",
        dependency=process.readiness.require("nats"),
        metrics=process.metrics,
    )
    return process.add(bus)


def _types(
    config: SchedulerConfig, process: Process, etcd: EtcdClient
) -> RegistryMirror[TypeSettings]:
    prefix = Keys(config.etcd_prefix).type_settings
    registry, decode = EtcdRegistry(etcd), type_settings_from_entry
    return process.add(RegistryMirror("type settings", registry, prefix, decode, process.tasks))


def _stores(
    config: SchedulerConfig, process: Process, types: RegistryMirror[TypeSettings]
) -> dict[str, PostgresShard]:
    settings = StoreSettings(
        application="jobmesh-scheduler",
        # One for each claim under way, three for the rounds.
        max_connections=config.claims_per_shard + 3,
        lock_timeout=config.statement_seconds / 2,
        statement_timeout=config.statement_seconds,
        call_timeout=config.statement_seconds + 0.5,
    )
    stores = {
        name: PostgresShard(name, dsn, settings, settings_of=types.items.get)
        for name, dsn in config.shard_dsns.items()
    }
    for name, store in stores.items():
        process.add(Hooks(f"shard-{name}", start=store.open, stop=store.close))
    return stores


def _outside(
    config: SchedulerConfig,
    process: Process,
    etcd: EtcdClient,
    broker: BusBroker,
    stores: dict[str, PostgresShard],
    types: RegistryMirror[TypeSettings],
) -> Outside:
    async def grant() -> Lease:
        return await LeaseSession.grant(etcd, ttl_seconds=config.lease_seconds, clock=process.clock)

    keys, registry = Keys(config.etcd_prefix), EtcdRegistry(etcd)
    workers = RegisteredWorkers(registry, keys)
    locks = EtcdLockTable(etcd, keys)
    places = process.add(RegistryMirror("places", registry, keys.limits, _owner, process.tasks))
    return Outside(stores, broker, registry, keys, locks, workers, grant, types, places)


def _owner(entry: Entry) -> str:
    return entry.value.decode()


def _purge(config: SchedulerConfig) -> PurgeRules:
    kept = Retention(
        succeeded=timedelta(days=config.keep_succeeded_days),
        failed=timedelta(days=config.keep_failed_days),
        cancelled=timedelta(days=config.keep_cancelled_days),
        expired=timedelta(days=config.keep_expired_days),
    )
    return PurgeRules(config.purge_seconds, kept, timedelta(hours=config.resume_hours))


def _life(process: Process) -> Life:
    return Life(process.tasks, process.clock, process.readiness, process.metrics, process.tracing)


def _rules(config: SchedulerConfig) -> Rules:
    pace = PaceRules(factor=config.linger_factor)
    if config.linger_factor == 0:
        pace = PaceRules(factor=0, least=0)
    return Rules(
        park=config.park_seconds,
        batch=config.claim_batch,
        message_bytes=config.message_bytes,
        loans=LoanRules(lasts=0.9 * config.park_seconds),
        claims=ClaimRules(config.claims_per_shard, config.ahead_seconds, pace=pace),
        keeping=KeepingRules(
            purge=_purge(config),
            tick=config.tick_seconds,
            rescue=config.rescue_seconds,
            slot=SlotRules(
                config.slot_seconds,
                config.dispatch_seconds,
                lead=LEAD * config.ahead_seconds,
            ),
        ),
    )
