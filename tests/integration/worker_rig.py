"""What the worker's integration tests stand on: a worker in this process with real NATS, etcd and
S3 around it, an Orchestrator that answers as the test wants, and a scheduler played by the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self
from uuid import UUID

import grpc.aio
from jobmesh.v1 import bus_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1 import worker_service_pb2 as worker_pb
from jobmesh.v1.orchestrator_service_pb2_grpc import (
    OrchestratorServiceServicer,
    add_OrchestratorServiceServicer_to_server,
)
from jobmesh.v1.worker_service_pb2_grpc import WorkerServiceStub
from localmesh.providers import S3Settings

from services.mesh.bus import SCHEDULERS, Message, Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.jobs.ids import from_bytes, new_job_id
from services.mesh.lease import Keys, LockOwner
from services.mesh.lease.etcd import EtcdClient, EtcdLockTable, EtcdRegistry, EtcdSettings
from services.mesh.rpc import open_channel
from services.mesh.runtime import Process
from services.mesh.telemetry.tracing import Tracing
from services.mesh.testing.waiting import eventually
from services.worker.config import WorkerConfig
from services.worker.main import build

APP = "tests.integration.worker_handlers"
COMMITTED, STALE, RETRY = pb.VERDICT_COMMITTED, pb.VERDICT_STALE, pb.VERDICT_RETRY

Judge = Callable[[pb.AttemptReport], "pb.Verdict.ValueType | None"]


class Orchestrator(OrchestratorServiceServicer):
    """Takes reports and judges them; by default it commits all. `None` is no answer."""

    def __init__(self) -> None:
        self.judge: Judge = lambda report: COMMITTED
        self.reports: list[pb.AttemptReport] = []
        self.sizes: list[int] = []
        self.workers: list[str] = []
        self._breaks: asyncio.Event = asyncio.Event()
        self._drains = False
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_OrchestratorServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def break_streams(self, *, politely: bool = False) -> None:
        self._drains = politely
        breaks, self._breaks = self._breaks, asyncio.Event()
        breaks.set()

    async def ReportAttempts(
        self, requests: AsyncIterator[pb.ReportAttemptsRequest], context: Any
    ) -> AsyncIterator[pb.ReportAttemptsResponse]:
        broken = asyncio.create_task(self._breaks.wait(), name="broken")
        hello = (await anext(aiter(requests))).hello
        self.workers.append(hello.worker_id)
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                await asyncio.wait({reading, broken}, return_when=asyncio.FIRST_COMPLETED)
                if broken.done():
                    reading.cancel()
                    break
                if reading.result() is grpc.aio.EOF:
                    return
                yield self._answer(reading.result())
        finally:
            broken.cancel()
        if self._drains:
            yield pb.ReportAttemptsResponse(draining=True)
            return
        await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")

    def _answer(self, request: pb.ReportAttemptsRequest) -> pb.ReportAttemptsResponse:
        self.sizes.append(len(request.reports))
        response = pb.ReportAttemptsResponse()
        for report in request.reports:
            self.reports.append(report)
            verdict = self.judge(report)
            if verdict is not None:
                response.verdicts.add(
                    job_id=report.job_id, dispatch_no=report.dispatch_no, verdict=verdict
                )
        return response

    # --- for tests

    def of(self, job: UUID) -> list[pb.AttemptReport]:
        return [report for report in self.reports if report.job_id == job.bytes]

    def kinds(self, job: UUID) -> list[str]:
        return [str(report.WhichOneof("report")) for report in self.of(job)]

    def endings(self) -> Counter[str]:
        """How many jobs were reported, by their last report."""
        last = {report.job_id: str(report.WhichOneof("report")) for report in self.reports}
        return Counter(last.values())

    async def reported(self, job: UUID, kind: str, seconds: float = 15.0) -> pb.AttemptReport:
        """Wait for such a report of the job."""
        await eventually(lambda: kind in self.kinds(job), seconds)
        return next(r for r in self.of(job) if r.WhichOneof("report") == kind)


@dataclass(frozen=True, slots=True)
class Parked:
    grab: bus_pb2.Grab
    reply: str


class Scheduler:
    """Parks grabs, and answers them when the test says so."""

    def __init__(self, bus: NatsBus, subjects: Subjects) -> None:
        self._bus, self._subjects = bus, subjects
        self.grabs: list[Parked] = []
        self.parked: dict[str, Parked] = {}
        self.called_for = 0

    async def start(self) -> None:
        await self._bus.subscribe(self._subjects.all_withdrawals, self._withdrawn)
        await self._bus.subscribe(self._subjects.all_grabs, self._grabbed, queue=SCHEDULERS)
        await self._bus.subscribe(self._subjects.grab_at("test"), self._called_for)

    def _grabbed(self, message: Message) -> None:
        grab = bus_pb2.Grab.FromString(message.payload)
        self.grabs.append(Parked(grab, message.reply))
        self.parked[grab.type] = self.grabs[-1]

    def _called_for(self, message: Message) -> None:
        self.called_for += 1
        self._grabbed(message)

    async def call(self, type_: str) -> None:
        """Call for grabs; they are parked like all others."""
        here = self._subjects.grab_at("test")
        await self._bus.publish(self._subjects.call(type_), b"", reply=here)

    def _withdrawn(self, message: Message) -> None:
        taken_back = bus_pb2.Grab.FromString(message.payload)
        parked = self.parked.get(taken_back.type)
        if parked is not None and parked.grab.grab_no == taken_back.grab_no:
            assert parked.grab.worker_id == taken_back.worker_id
            del self.parked[taken_back.type]

    async def waiting(self, type_: str, credit: int = 1) -> Parked:
        """Wait until a grab of the type is parked, with that much credit."""
        await eventually(lambda: type_ in self.parked and self.parked[type_].grab.credit >= credit)
        return self.parked[type_]

    async def dispatch(self, type_: str, *dispatches: bus_pb2.Dispatch) -> Parked:
        """Answer the parked grab of the type."""
        parked = await self.waiting(type_)
        del self.parked[type_]
        await self.answer(parked, *dispatches)
        return parked

    async def answer(self, parked: Parked, *dispatches: bus_pb2.Dispatch, **more: Any) -> None:
        batch = bus_pb2.DispatchBatch(
            type=parked.grab.type,
            grab_no=parked.grab.grab_no,
            dispatches=dispatches,
            scheduler_id="test",
            **more,
        )
        await self._bus.publish(parked.reply, batch.SerializeToString())

    async def cancel(self, worker_id: str, job: UUID, fence: int = 1) -> None:
        hint = bus_pb2.CancelHint()
        hint.attempts.add(job_id=job.bytes, dispatch_no=fence)
        await self._bus.publish(self._subjects.cancel(worker_id), hint.SerializeToString())


def new_job() -> UUID:
    random = Random()
    return new_job_id(random.randrange(4096), int(time.time() * 1000), random)


def dispatch(
    job: UUID, value: object = None, *, fence: int = 1, timeout: float = 0.0, **fields: Any
) -> bus_pb2.Dispatch:
    made = bus_pb2.Dispatch(
        job_id=job.bytes,
        namespace="default",
        dispatch_no=fence,
        attempt=1,
        due_time_us=int(time.time() * 1e6),
        **fields,
    )
    if value is not None:
        made.input.data = json.dumps(value).encode()
        made.input.content_type = "application/json"
    if timeout:
        made.run_timeout.FromNanoseconds(int(timeout * 1e9))
    return made


@dataclass
class Rig:
    """A worker and everything around it."""

    orchestrator: Orchestrator
    scheduler: Scheduler
    config: WorkerConfig
    etcd: EtcdClient
    keys: Keys
    process: Process = field(init=False)
    _running: asyncio.Task[int] | None = None

    @property
    def registry(self) -> EtcdRegistry:
        return EtcdRegistry(self.etcd)

    async def start(self, *, ready: bool = True, tracing: Tracing | None = None) -> Self:
        """Start a worker; the former one must have ended."""
        drain = self.config.drain_seconds
        self.process = Process("worker", drain_seconds=drain, tracing=tracing)
        work = self.process.run(lambda: build(self.config, self.process))
        self._running = asyncio.create_task(work, name="worker")
        if ready:
            await self.process.serving()
            await self.process.readiness.wait_ready(15)
        return self

    async def stop(self, seconds: float = 30.0) -> int:
        """Have it drain, and return its exit code."""
        self.process.stop("end of the test")
        return await self.ended(seconds)

    async def ended(self, seconds: float = 30.0) -> int:
        assert self._running is not None
        async with asyncio.timeout(seconds):
            return await self._running

    async def worker_ids(self) -> list[str]:
        entries = await self.registry.entries(self.keys.workers)
        return [entry.key.removeprefix(self.keys.workers) for entry in entries]

    async def worker_id(self) -> str:
        (worker_id,) = await self.worker_ids()
        return worker_id

    async def lock_of(self, job: UUID) -> LockOwner | None:
        return (await EtcdLockTable(self.etcd, self.keys).held([job.bytes])).get(job.bytes)

    async def unlocked(self, *jobs: UUID) -> None:
        async def free() -> bool:
            return not await EtcdLockTable(self.etcd, self.keys).held(job.bytes for job in jobs)

        await eventually(free)

    async def info(self) -> worker_pb.WorkerInfo:
        entry = await self.registry.get(self.keys.worker(await self.worker_id()))
        assert entry is not None
        return worker_pb.WorkerInfo.FromString(entry.value)

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        """The worker's own service."""
        async with open_channel((await self.info()).address, peer="worker") as channel:
            yield WorkerServiceStub(channel)

    def metric(self, name: str, **labels: str) -> float:
        return self.process.metrics.value(f"jobmesh_{name}", labels) or 0.0


@asynccontextmanager
async def rigged(
    *,
    nats_url: str,
    etcd: str,
    prefix: str,
    spool: Path,
    types: Sequence[str],
    app: str = APP,
    s3: S3Settings | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A rig without a worker yet; whatever was started ends with the block."""
    async with AsyncExitStack() as stack:
        orchestrator = Orchestrator()  # type: ignore[abstract]
        await orchestrator.start()
        stack.push_async_callback(orchestrator.stop)
        bus = NatsBus(nats_url, name="test")
        await bus.start()
        stack.push_async_callback(bus.stop)
        await bus.wait_connected(10)
        scheduler = Scheduler(bus, Subjects(prefix))
        await scheduler.start()
        client = EtcdClient(EtcdSettings((etcd,)))
        stack.push_async_callback(client.close)
        config = WorkerConfig(
            app=app,
            types=tuple(types),
            etcd_endpoints=(etcd,),
            etcd_prefix=f"/{prefix}",
            nats_url=nats_url,
            nats_prefix=prefix,
            orchestrator_target=f"127.0.0.1:{orchestrator.port}",
            spool_dir=str(spool),
            **(_s3(s3) | {"drain_seconds": 2.0, "kill_grace_seconds": 0.5} | settings),
        )
        rig = Rig(orchestrator, scheduler, config, client, Keys(f"/{prefix}"))
        try:
            yield rig
        finally:
            with suppress(AttributeError):
                await rig.stop()


def _s3(settings: S3Settings | None) -> dict[str, Any]:
    if settings is None:
        return {}
    return {
        "s3_endpoint": settings.endpoint,
        "s3_region": settings.region,
        "s3_access_key": settings.access_key,
        "s3_secret_key": settings.secret_key,
        "s3_input_bucket": settings.input_bucket,
        "s3_output_bucket": settings.output_bucket,
    }


def job_of(report: pb.AttemptReport) -> UUID:
    return from_bytes(report.job_id)
