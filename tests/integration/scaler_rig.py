"""What the Scaler's integration tests stand on: Scalers, an Orchestrator that says what the test
wants, and the worker processes that come of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
from jobmesh.v1 import orchestrator_service_pb2 as stats_pb
from jobmesh.v1 import orchestrator_service_pb2_grpc as stats_rpc
from jobmesh.v1 import pool_pb2, worker_service_pb2
from jobmesh.v1 import scaler_service_pb2 as pb
from jobmesh.v1 import scaler_service_pb2_grpc as rpc

from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.rpc import open_channel
from services.mesh.runtime import Process
from services.mesh.testing.waiting import eventually
from services.mesh.wire.values import timestamp
from services.scaler.config import ScalerConfig
from services.scaler.main import Scaler, assemble

STANDIN = (sys.executable, str(Path(__file__).with_name("scaler_standin.py")))


class SaidLoad(stats_rpc.OrchestratorServiceServicer):
    """An Orchestrator that streams the statistics a test sets."""

    def __init__(self) -> None:
        self._response = stats_pb.StatsResponse()
        self._changed = asyncio.Condition()
        self.mute = False
        self.streams = 0

    async def say(self, *types: stats_pb.TypeStats, missing: tuple[str, ...] = ()) -> None:
        """From now on these are the statistics."""
        self._response = stats_pb.StatsResponse(types=types, missing_shards=missing)
        async with self._changed:
            self._changed.notify_all()

    async def Stats(
        self, request: stats_pb.StatsRequest, context: Any
    ) -> AsyncIterator[stats_pb.StatsResponse]:
        self.streams += 1
        interval = request.interval.ToNanoseconds() / 1e9
        while True:
            if not self.mute:
                self._response.time.CopyFrom(timestamp(datetime.now(UTC)) or self._response.time)
                yield self._response
            try:
                async with asyncio.timeout(interval), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                pass  # time to repeat it


def load(type_: str, backlog: int = 0, in_flight: int = 0) -> stats_pb.TypeStats:
    return stats_pb.TypeStats(type=type_, backlog=backlog, in_flight=in_flight)


def spec(type_: str, app: str = "fine", **values: Any) -> pool_pb2.PoolSpec:
    """A pool that reacts fast."""
    made = pool_pb2.PoolSpec(type=type_, target_backlog_per_worker=10, **values)
    for name, seconds in (("empty_for", 0.2), ("cooldown", 0.2), ("drain_timeout", 30.0)):
        if not made.HasField(name):  # type: ignore[arg-type]
            getattr(made, name).FromNanoseconds(int(seconds * 1e9))
    made.process.app = app
    return made


@dataclass
class Replica:
    """A Scaler that runs in this process."""

    process: Process
    scaler: Scaler
    stub: Any
    ended: asyncio.Task[int]

    @property
    def leads(self) -> bool:
        return self.scaler.candidacy.is_leader

    async def stop(self) -> int:
        self.process.stop("the test is over with it")
        return await self.ended

    async def pool(self, type_: str) -> pool_pb2.Pool:
        response: pb.GetPoolResponse = await self.stub.GetPool(pb.GetPoolRequest(type=type_))
        return response.pool

    async def create(self, spec: pool_pb2.PoolSpec) -> pool_pb2.Pool:
        response: pb.CreatePoolResponse = await self.stub.CreatePool(
            pb.CreatePoolRequest(spec=spec)
        )
        return response.pool

    async def until(
        self, type_: str, holds: Callable[[pool_pb2.Pool], bool], seconds: float = 30
    ) -> pool_pb2.Pool:
        """The pool, once the condition holds for it."""
        request = pb.WatchPoolsRequest(types=[type_])
        call = self.stub.WatchPools(request)
        try:
            async with asyncio.timeout(seconds):
                async for response in call:
                    if holds(response.pool):
                        return response.pool  # type: ignore[no-any-return]
        finally:
            call.cancel()
        raise AssertionError("the stream ended")


def counts(pool: pool_pb2.Pool) -> tuple[int, int, int, int]:
    return pool.desired, pool.actual, pool.starting, pool.draining


@dataclass
class Rig:
    """One mesh with as many Scalers as a test wants."""

    etcd_endpoint: str
    prefix: str
    folder: Path
    orchestrator: SaidLoad
    target: str
    registry: EtcdRegistry
    keys: Keys
    stack: AsyncExitStack
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, **settings: Any) -> ScalerConfig:
        values = {
            "listen": "127.0.0.1:0",
            "etcd_endpoints": (self.etcd_endpoint,),
            "etcd_prefix": self.prefix,
            "orchestrator_target": self.target,
            "local_workers_dir": str(self.folder),
            "worker_command": STANDIN,
            "stats_interval_seconds": 0.5,
            "lease_seconds": 2,
        }
        return ScalerConfig(**{**values, **self.settings, **settings})

    async def scaler(self, **settings: Any) -> Replica:
        """Start a Scaler; it ends with the test at the latest."""
        config = self.config(**settings)
        process = Process("scaler", config.instance, drain_seconds=2.0)
        made: list[Scaler] = []

        async def build() -> None:
            made.append(assemble(config, process))

        ended = asyncio.create_task(process.run(build), name="scaler-under-test")
        await process.serving()
        channel = open_channel(made[0].server.address, peer="scaler")
        replica = Replica(process, made[0], rpc.ScalerServiceStub(channel), ended)
        self.stack.push_async_callback(channel.close)
        self.stack.push_async_callback(replica.stop)
        return replica

    async def workers(self) -> list[worker_service_pb2.WorkerInfo]:
        entries = await self.registry.entries(self.keys.workers)
        return [worker_service_pb2.WorkerInfo.FromString(entry.value) for entry in entries]

    def pids(self) -> list[int]:
        """The worker processes of this rig that live, registered or not."""
        everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in everyone if _lives(pid, self.folder)]

    async def one_pid(self) -> int:
        """The only worker process, once it can be seen: a new one has no environment at first."""
        await eventually(lambda: len(self.pids()) == 1)
        return self.pids()[0]

    def busy(self, pid: int) -> Path:
        return self.folder / f"{pid}.busy"

    def finish_one(self, pid: int) -> None:
        """The worker runs a job that no statistics see."""
        with (self.folder / f"{pid}.finished").open("a") as file:
            file.write(".")

    def ended(self) -> list[str]:
        return sorted(file.read_text() for file in self.folder.glob("*.ended"))

    async def clean_up(self) -> None:
        for file in self.folder.glob("*.busy"):
            file.unlink()
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        await eventually(lambda: not any(_lives(pid, self.folder) for pid in pids))
        await eventually(lambda: all(_collected(pid) for pid in pids))


def _collected(pid: int) -> bool:
    """A Scaler that has stopped no longer collects its children, but here their parent lives on."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _lives(pid: int, folder: Path) -> bool:
    """Whether the process lives and carries the rig's folder in its environment."""
    mark = f"JOBMESH_LOCAL_WORKERS_DIR={folder}".encode()
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@asynccontextmanager
async def rigged(
    etcd_endpoint: str, prefix: str, folder: Path, orchestrator: SaidLoad | None = None
) -> AsyncIterator[Rig]:
    orchestrator = orchestrator or SaidLoad()  # type: ignore[abstract]
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    stats_rpc.add_OrchestratorServiceServicer_to_server(orchestrator, server)
    await server.start()
    client = EtcdClient(EtcdSettings((etcd_endpoint,)))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.push_async_callback(server.stop, None)
        keys = Keys(f"/{prefix}")
        rig = Rig(
            etcd_endpoint,
            keys.prefix,
            folder,
            orchestrator,
            f"127.0.0.1:{port}",
            EtcdRegistry(client),
            keys,
            stack,
        )
        stack.push_async_callback(rig.clean_up)
        yield rig
