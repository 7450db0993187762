"""What the scheduler's tests stand on: real shards, broker and etcd; schedulers in this process or
in one of their own; a worker and a submitter reduced to what a scheduler sees of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from tempfile import TemporaryFile
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import pytest
from jobmesh.v1 import bus_pb2

from services.mesh.bus import Message, Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.jobs.ids import from_bytes, new_job_id
from services.mesh.jobs.model import NewJob, Payload
from services.mesh.jobs.reports import Succeeded
from services.mesh.lease.etcd import (
    EtcdClient,
    EtcdRegistry,
    EtcdSettings,
    JobLocks,
    LeaseSession,
)
from services.mesh.lease.keys import Keys
from services.mesh.runtime import Process
from services.mesh.store.postgres import PostgresShard
from services.mesh.wire.values import micros_of
from services.scheduler.config import SchedulerConfig
from services.scheduler.main import build


async def until(
    holds: Callable[[], bool], seconds: float = 10.0, what: str = "the condition"
) -> None:
    """Return once it holds; looks every few milliseconds, fails after the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds} s")
        await asyncio.sleep(0.005)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What schedulers in this process logged as errors, but for the loss of a lease.

    Nor what gRPC's poller says when it wakes up for nothing: it reads from a pipe that another
    event loop of this process has emptied, and goes on.
    """
    return [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
        and "lease" not in record.name
        and "PollerCompletionQueue" not in record.getMessage()
    ]


class Wire:
    """A way to a server that can be frozen (nothing passes, nobody is told) or cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Wire]:
        wire = cls(port)
        server = await asyncio.start_server(wire._accept, "127.0.0.1", 0)
        wire.port = server.sockets[0].getsockname()[1]
        try:
            yield wire
        finally:
            wire.thaw()
            wire.cut()
            server.close()
            await server.wait_closed()

    port: int = 0

    def freeze(self) -> None:
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        self._writers -= {writer, back}

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def at_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(str(parts.port), str(port))))


async def eventually(
    holds: Callable[[], Awaitable[bool]], seconds: float = 10.0, what: str = "the condition"
) -> None:
    """The same for a condition that must be asked for."""
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Servers:
    """Where the real servers are, and this test's place in them."""

    dsns: dict[str, str]
    nats_url: str
    etcd_endpoint: str
    prefix: str

    @property
    def keys(self) -> Keys:
        return Keys(f"/{self.prefix}")

    def config(self, **changes: object) -> SchedulerConfig:
        settings: dict[str, object] = {
            "shard_dsns": self.dsns,
            "nats_url": self.nats_url,
            "nats_prefix": self.prefix,
            "etcd_endpoints": (self.etcd_endpoint,),
            "etcd_prefix": f"/{self.prefix}",
            "instance": f"sched-{uuid4().hex[:6]}",
            "drain_seconds": 5.0,
        }
        return SchedulerConfig(**(settings | changes))  # type: ignore[arg-type]

    def environment(self, **changes: str) -> dict[str, str]:
        """The same for a process of its own."""
        return {
            **os.environ,
            "JOBMESH_SHARD_DSNS": ",".join(f"{name}={dsn}" for name, dsn in self.dsns.items()),
            "JOBMESH_NATS_URL": self.nats_url,
            "JOBMESH_NATS_PREFIX": self.prefix,
            "JOBMESH_ETCD_ENDPOINTS": self.etcd_endpoint,
            "JOBMESH_ETCD_PREFIX": f"/{self.prefix}",
            "JOBMESH_LOG_FORMAT": "json",
            **changes,
        }


@dataclass(frozen=True)
class Received:
    """One dispatch as it reached the worker."""

    job_id: UUID
    fence: int
    attempt: int
    shard: str
    due_us: int
    when: float


class RigWorker:
    """A worker down to its registration, its grabs and what it was sent."""

    def __init__(self, rig: Rig, worker_id: str) -> None:
        self.worker_id = worker_id
        self.received: list[Received] = []
        self.batches: list[bus_pb2.DispatchBatch] = []
        self.no_responders = 0
        self.calls = 0
        #: Whether it says that it waits for due times.
        self.waits = False
        self.regrab: dict[str, int] = {}
        self._rig = rig
        self._numbers: dict[str, int] = {}

    async def start(self) -> RigWorker:
        self.lease = await LeaseSession.grant(self._rig.etcd, ttl_seconds=5)
        registry = EtcdRegistry(self._rig.etcd)
        await registry.put(self._rig.servers.keys.worker(self.worker_id), b"", self.lease)
        self.locks = JobLocks(self._rig.etcd, self._rig.servers.keys, self.lease, self.worker_id)
        self._inbox = await self._rig.bus.open_inbox(self._answered)
        return self

    async def stop(self) -> None:
        self.regrab.clear()
        await self.lease.close()

    async def answer_calls(self, type_: str, credit: int) -> None:
        """Send a grab to each scheduler that calls for the type."""

        async def called(message: Message) -> None:
            self.calls += 1
            await self.grab(type_, credit, at=message.reply)

        await self._rig.bus.subscribe(self._rig.subjects.call(type_), called)

    async def grab(self, type_: str, credit: int, *, again: bool = False, at: str = "") -> int:
        """Ask for work; with `again`, do so anew after each answer."""
        if again:
            self.regrab[type_] = credit
        number = self._numbers[type_] = self._numbers.get(type_, 0) + 1
        message = bus_pb2.Grab(
            worker_id=self.worker_id, type=type_, credit=credit, grab_no=number, waits=self.waits
        )
        subject = at or self._rig.subjects.grab(type_)
        reply = self._inbox.address(type_)
        await self._rig.bus.publish(subject, message.SerializeToString(), reply=reply)
        return number

    async def withdraw(self, type_: str) -> None:
        """Take the newest grab of the type back."""
        message = bus_pb2.Grab(worker_id=self.worker_id, type=type_, grab_no=self._numbers[type_])
        subject = self._rig.subjects.withdraw(type_)
        await self._rig.bus.publish(subject, message.SerializeToString())

    def ids(self) -> list[UUID]:
        return [dispatch.job_id for dispatch in self.received]

    async def _answered(self, token: str, message: Message) -> None:
        if message.no_responders:
            self.no_responders += 1
            await asyncio.sleep(0.02)
        else:
            self._take(bus_pb2.DispatchBatch.FromString(message.payload))
        if token in self.regrab:
            await self.grab(token, self.regrab[token])

    def _take(self, batch: bus_pb2.DispatchBatch) -> None:
        now = time.time()
        self.batches.append(batch)
        for dispatch in batch.dispatches:
            job_id = from_bytes(dispatch.job_id)
            shard = self._rig.placed.get(job_id, "")
            due = dispatch.due_time_us
            arrived = Received(job_id, dispatch.dispatch_no, dispatch.attempt, shard, due, now)
            self.received.append(arrived)

    async def complete(self, received: Sequence[Received]) -> None:
        """Report success, as the Orchestrator would."""
        for shard in {each.shard for each in received}:
            reports = [
                Succeeded(each.job_id, each.fence, self.worker_id)
                for each in received
                if each.shard == shard
            ]
            await self._rig.stores[shard].report(reports)


@dataclass
class Rig:
    """One mesh of a test."""

    servers: Servers
    stores: dict[str, PostgresShard]
    bus: NatsBus
    etcd: EtcdClient
    placed: dict[UUID, str] = field(default_factory=dict)

    @property
    def subjects(self) -> Subjects:
        return Subjects(self.servers.prefix)

    @asynccontextmanager
    async def scheduler(self, **changes: object) -> AsyncIterator[Process]:
        """A scheduler in this process, ready on entry and drained on exit."""
        config = self.servers.config(**changes)
        process = Process("scheduler", config.instance, drain_seconds=config.drain_seconds)
        life = asyncio.create_task(process.run(lambda: build(config, process)), name="scheduler")
        try:
            await asyncio.wait_for(process.serving(), 10)
            await process.readiness.wait_ready(10)
            yield process
        finally:
            process.stop("the test is over")
            assert await life == 0

    @asynccontextmanager
    async def scheduler_process(self, **changes: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A scheduler in a process of its own, on the loop it has in production; killed on exit if
        it still runs. It must not have logged an error, but for the loss of a lease.
        """
        with TemporaryFile("w+") as logs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.scheduler",
                env=self.servers.environment(**changes),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=logs,
            )
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()
            logs.seek(0)
            lines = [json.loads(line) for line in logs if line.startswith("{")]
            errors = [line for line in lines if line["level"] == "error"]
            assert [line for line in errors if "lease" not in line["logger"]] == []

    @asynccontextmanager
    async def worker(self, worker_id: str = "") -> AsyncIterator[RigWorker]:
        worker = await RigWorker(self, worker_id or f"w-{uuid4().hex[:6]}").start()
        try:
            yield worker
        finally:
            await worker.stop()

    async def put(
        self,
        shard: str,
        type_: str,
        count: int = 1,
        *,
        delay: timedelta | None = None,
        nudge: bool = True,
        size: int = 0,
        namespace: str = "default",
        **fields: object,
    ) -> list[UUID]:
        """Store jobs and nudge, as the Orchestrator does."""
        now_ms = round(time.time() * 1000)
        jobs = [
            NewJob(
                id=new_job_id(random.randrange(4096), now_ms, random.SystemRandom()),
                namespace=namespace,
                type=type_,
                input=Payload.inline(b"x" * size),
                delay=delay,
                **fields,  # type: ignore[arg-type]
            )
            for _ in range(count)
        ]
        self.placed.update((job.id, shard) for job in jobs)
        answer = await self.stores[shard].put_jobs(jobs, 1)
        if nudge:
            due = max(result.due_time for result in answer.results)
            await self.nudge(shard, type_, None if delay is None else due)
        return [job.id for job in jobs]

    async def nudge(self, shard: str, type_: str, due: datetime | None = None) -> None:
        message = bus_pb2.Nudge(shard=shard, due_time_us=micros_of(due))
        await self.bus.publish(self.subjects.due(type_), message.SerializeToString())

    async def members(self) -> list[str]:
        entries = await EtcdRegistry(self.etcd).entries(self.servers.keys.schedulers)
        return [entry.key.rpartition("/")[2] for entry in entries]

    async def wait_members(self, count: int) -> None:
        async def all_there() -> bool:
            return len(await self.members()) >= count

        await eventually(all_there, 45)

    async def shard_now(self, shard: str) -> datetime:
        return (await self.stores[shard].probe()).now


@asynccontextmanager
async def open_rig(servers: Servers) -> AsyncIterator[Rig]:
    stores = {name: PostgresShard(name, dsn) for name, dsn in servers.dsns.items()}
    await asyncio.gather(*(store.migrate() for store in stores.values()))
    for store in stores.values():
        await store.open()
    bus = NatsBus(servers.nats_url, name="rig")
    await bus.start()
    await bus.wait_connected(10)
    etcd = EtcdClient(EtcdSettings((servers.etcd_endpoint,)))
    try:
        yield Rig(servers, stores, bus, etcd)
    finally:
        await bus.stop()
        await etcd.close()
        for store in stores.values():
            await store.close()
