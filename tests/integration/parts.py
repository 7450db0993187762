"""Services run inside the test process, over real servers, and called as others call them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from jobmesh.v1 import bus_pb2, job_pb2, topology_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub

from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.config import ServiceConfig
from services.mesh.rpc import Channel, Server, open_channel
from services.mesh.runtime import Process
from services.mesh.store.postgres import PostgresShard
from services.mesh.wire.events import HintedEvent, read_hint
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.main import build

C = TypeVar("C", bound=ServiceConfig)

NAMES = ("s0", "s1", "s2")


class Stand:
    """A running Orchestrator and what it stands on."""

    def __init__(
        self,
        process: Process,
        stub: OrchestratorServiceStub,
        bus: NatsBus,
        prefix: str,
        address: str,
    ) -> None:
        self.address = address
        self.process, self.stub, self.bus, self.subjects = process, stub, bus, Subjects(prefix)
        self.hints: list[HintedEvent] = []
        #: (shard, names) of every hint: new jobs are told of by namespace and type only.
        self.bells: list[tuple[str, set[str]]] = []
        self.nudges: list[tuple[str, str]] = []
        self.stores: dict[str, PostgresShard] = {}

    async def put(self, *jobs: pb.NewJob) -> list[pb.PutJobResult]:
        return list((await self.stub.PutJobs(pb.PutJobsRequest(jobs=jobs))).results)

    async def get(self, job_id: str, **given) -> pb.GetJobResult:
        answer = await self.stub.GetJobs(pb.GetJobsRequest(job_ids=[job_id], **given))
        return answer.results[0]

    def store_of(self, job: job_pb2.Job) -> PostgresShard:
        return self.stores[job.shard]


@asynccontextmanager
async def served(
    name: str, config: C, build: Callable[[C, Process], Awaitable[None]]
) -> AsyncIterator[tuple[Process, Channel, str]]:
    """A service from its start to its end: the process, a channel to it, and its address."""
    process = Process(name, drain_seconds=5)
    running = asyncio.create_task(process.run(lambda: build(config, process)))
    try:
        async with asyncio.timeout(20):
            await process.serving()
        await process.readiness.wait_ready(20)
        (server,) = (part for part in process._components if isinstance(part, Server))
        async with open_channel(server.address, peer=name) as channel:
            # The first connection takes longer than it may where others start processes beside us.
            async with asyncio.timeout(20):
                await channel.channel_ready()
            yield process, channel, server.address
    finally:
        process.stop("test over")
        assert await running == 0


@asynccontextmanager
async def connected_bus(nats_url: str) -> AsyncIterator[NatsBus]:
    bus = NatsBus(nats_url)
    await bus.start()
    try:
        await bus.wait_connected(20)
        yield bus
    finally:
        await bus.stop()


@asynccontextmanager
async def orchestrator(
    dsns: list[str], nats_url: str, etcd_endpoint: str, prefix: str
) -> AsyncIterator[Stand]:
    config = OrchestratorConfig(
        listen="127.0.0.1:0",
        shard_dsns=dict(zip(NAMES, dsns, strict=True)),
        nats_url=nats_url,
        nats_prefix=prefix,
        etcd_endpoints=(etcd_endpoint,),
        etcd_prefix=f"/{prefix}",
        probe_seconds=0.2,
        stats_seconds=0.05,
    )
    async with (
        connected_bus(nats_url) as bus,
        served("orchestrator", config, build) as (process, channel, address),
    ):
        stand = Stand(process, OrchestratorServiceStub(channel), bus, prefix, address)
        await all_healthy(stand)
        await listen(stand)
        for name, dsn in zip(NAMES, dsns, strict=True):
            stand.stores[name] = PostgresShard(name, dsn)
            await stand.stores[name].open()
        try:
            yield stand
        finally:
            for store in stand.stores.values():
                await store.close()


async def all_healthy(stand: Stand) -> None:
    call = stand.stub.WatchTopology(pb.WatchTopologyRequest())
    async with asyncio.timeout(20):
        async for response in call:
            shards = response.topology.shards
            if all(s.health == topology_pb2.SHARD_HEALTH_HEALTHY for s in shards):
                break
    call.cancel()


class Everything(dict):
    """Wants every job."""

    def get(self, key: bytes) -> str:
        return str(uuid.UUID(bytes=key))


async def listen(stand: Stand) -> None:
    def hint(message):
        stand.hints.extend(read_hint(message.payload, Everything()))
        batch = bus_pb2.EventBatch.FromString(message.payload)
        stand.bells.append((batch.shard, set(batch.names)))

    def nudge(message):
        shard = bus_pb2.Nudge.FromString(message.payload).shard
        stand.nudges.append((stand.subjects.tail(message.subject), shard))

    await stand.bus.subscribe(stand.subjects.all_hints, hint)
    await stand.bus.subscribe(stand.subjects.all_due, nudge)
