"""Submitting jobs in several ways, and following each of them to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import grpc
from jobmesh.client import AsyncClient
from jobmesh.options import NewJob
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, payload_pb2
from jobmesh.v1 import scheduler_service_pb2 as scheduler_pb
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

PAYLOAD = b"x" * 200
WATCHED = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: when it began, when all were stored, when all had ended."""

    jobs: int
    began: float
    stored: float
    ended: float

    @property
    def rate(self) -> float:
        return self.jobs / (self.ended - self.began)

    @property
    def store_rate(self) -> float:
        return self.jobs / (self.stored - self.began)


class Load:
    """A client of the mesh that keeps it busy."""

    def __init__(self, enqueue: str, orchestrator: str) -> None:
        self._target = enqueue
        self._channels = [
            grpc.aio.insecure_channel(target, OPTIONS) for target in (enqueue, orchestrator)
        ]
        self._enqueue = EnqueueServiceStub(self._channels[0])
        self._orchestrator = OrchestratorServiceStub(self._channels[1])

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def batches(self, count: int, size: int, under_way: int = 4, type_: str = "noop") -> Run:
        """Submit by EnqueueBatch and watch every job to its end."""
        room = asyncio.Semaphore(under_way)
        watches: list[asyncio.Task[None]] = []
        item = pb.EnqueueItem(job=spec(type_))
        began = time.perf_counter()

        async def one(items: int) -> None:
            async with room:
                request = pb.EnqueueBatchRequest(items=[item] * items)
                answer = await self._enqueue.EnqueueBatch(request)
            ids = [result.job_id for result in answer.results]
            assert all(ids), next(r.error for r in answer.results if not r.job_id)
            watches.append(asyncio.create_task(self.watch(ids)))

        await asyncio.gather(*(one(size) for _ in range(count // size)))
        stored = time.perf_counter()
        await asyncio.gather(*watches)
        return Run(count, began, stored, time.perf_counter())

    async def stream(self, count: int, size: int) -> Run:
        """Submit over one EnqueueStream and watch every job to its end."""
        watches: list[asyncio.Task[None]] = []
        message = pb.EnqueueStreamRequest(items=[pb.EnqueueItem(job=spec("noop"))] * size)
        began = time.perf_counter()
        call = self._enqueue.EnqueueStream(message for _ in range(count // size))
        async for answer in call:
            ids = [result.job_id for result in answer.results]
            assert all(ids), next(r.error for r in answer.results if not r.job_id)
            watches.append(asyncio.create_task(self.watch(ids)))
        stored = time.perf_counter()
        await asyncio.gather(*watches)
        return Run(count, began, stored, time.perf_counter())

    async def store_paused(self, count: int, size: int, scheduler: str) -> list[str]:
        """Store jobs while their type is paused."""
        async with grpc.aio.insecure_channel(scheduler) as channel:
            schedulers = SchedulerServiceStub(channel)
            await schedulers.PauseType(scheduler_pb.PauseTypeRequest(type="noop"))
        return await self.stored(count, size)

    async def drain(self, ids: Sequence[str], scheduler: str) -> Run:
        """Resume the type and follow its jobs to their end."""
        began = time.perf_counter()
        async with grpc.aio.insecure_channel(scheduler) as channel:
            schedulers = SchedulerServiceStub(channel)
            await schedulers.ResumeType(scheduler_pb.ResumeTypeRequest(type="noop"))
        resumed = time.perf_counter()
        await asyncio.gather(*(self.watch(part) for part in chunks(ids)))
        return Run(len(ids), began, resumed, time.perf_counter())

    async def stored(self, count: int, size: int) -> list[str]:
        """The ids of jobs that were stored, and are not watched."""
        request = pb.EnqueueBatchRequest(items=[pb.EnqueueItem(job=spec("noop"))] * size)
        ids: list[str] = []
        for _ in range(count // size):
            answer = await self._enqueue.EnqueueBatch(request)
            ids += [result.job_id for result in answer.results]
        return ids

    async def large(self, count: int, size: int, concurrency: int = 4) -> Run:
        """Jobs whose input and output are objects, by single calls."""
        room = asyncio.Semaphore(concurrency)
        began = time.perf_counter()

        async def one(number: int) -> str:
            data = number.to_bytes(8, "big") * (size // 8)
            job = job_pb2.JobSpec(type="echo", input=payload_pb2.Payload(data=data))
            async with room:
                answer = await self._enqueue.Enqueue(pb.EnqueueRequest(job=job))
            return str(answer.job.id)

        ids = await asyncio.gather(*(one(number) for number in range(count)))
        stored = time.perf_counter()
        await self.watch(ids)
        return Run(count, began, stored, time.perf_counter())

    async def singles(self, count: int, concurrency: int) -> Run:
        """Submit by single Enqueue calls and watch every job to its end."""
        turns = iter(range(count))
        ids: list[str] = []
        began = time.perf_counter()

        async def caller() -> None:
            for _ in turns:
                answer = await self._enqueue.Enqueue(pb.EnqueueRequest(job=spec("noop")))
                ids.append(answer.job.id)

        await asyncio.gather(*(caller() for _ in range(concurrency)))
        stored = time.perf_counter()
        await asyncio.gather(*(self.watch(part) for part in chunks(ids)))
        return Run(count, began, stored, time.perf_counter())

    async def singles_by_client(self, count: int, concurrency: int) -> Run:
        """The same through the Python client, whose calls share messages."""
        turns = iter(range(count))
        ids: list[str] = []
        async with AsyncClient(self._target, timeout=60) as client:
            began = time.perf_counter()

            async def caller() -> None:
                for _ in turns:
                    handle = await client.enqueue("noop", PAYLOAD)
                    ids.append(handle.id)

            await asyncio.gather(*(caller() for _ in range(concurrency)))
        stored = time.perf_counter()
        await asyncio.gather(*(self.watch(part) for part in chunks(ids)))
        return Run(count, began, stored, time.perf_counter())

    async def many_by_client(self, count: int) -> Run:
        """Submit by one `enqueue_stream`, which gives every job a key, and watch every job."""
        async with AsyncClient(self._target, timeout=60) as client:
            watches: list[asyncio.Task[None]] = []
            ids: list[str] = []
            began = time.perf_counter()
            async for ack in client.enqueue_stream(NewJob("noop", PAYLOAD) for _ in range(count)):
                ids.append(ack.id)
                if len(ids) == WATCHED:
                    watches.append(asyncio.create_task(self.watch(ids)))
                    ids = []
            stored = time.perf_counter()
        await asyncio.gather(*watches, *(self.watch(part) for part in chunks(ids)))
        return Run(count, began, stored, time.perf_counter())

    async def stamped(self, count: int, per_second: float) -> list[float]:
        """Milliseconds from each submit to the start of its handler, at a steady rate."""
        sent: dict[str, int] = {}

        async def one(number: int) -> None:
            await asyncio.sleep(number / per_second)
            now = time.time_ns()
            answer = await self._enqueue.Enqueue(pb.EnqueueRequest(job=spec("stamp")))
            sent[answer.job.id] = now

        await asyncio.gather(*(one(number) for number in range(count)))
        starts = await self._starts(list(sent))
        return [(starts[job_id] - now) / 1e6 for job_id, now in sent.items()]

    async def stamped_batches(self, per_second: float, seconds: float) -> list[float]:
        """As `stamped`, at a rate that takes batches: one every 20 ms."""
        size = max(1, round(per_second / 50))
        sent: dict[str, int] = {}
        request = pb.EnqueueBatchRequest(items=[pb.EnqueueItem(job=spec("stamp"))] * size)

        async def one(number: int) -> None:
            await asyncio.sleep(number / 50)
            now = time.time_ns()
            answer = await self._enqueue.EnqueueBatch(request)
            sent.update((result.job_id, now) for result in answer.results)

        await asyncio.gather(*(one(number) for number in range(round(50 * seconds))))
        starts = await self._starts(list(sent))
        return [(starts[job_id] - now) / 1e6 for job_id, now in sent.items()]

    async def late(self, count: int, seconds: float) -> list[float]:
        """Milliseconds from each job's due time to the start of its handler."""
        first = datetime.now(UTC) + timedelta(seconds=2 + count / 2000)
        due = [first + timedelta(seconds=seconds * n / count) for n in range(count)]
        starts = await self.started_at(due)
        return [(start - time_).total_seconds() * 1e3 for time_, start in starts]

    async def started_at(self, due: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
        """Store a job for each of these times; when each was due, and started."""
        ids: list[str] = []
        for part in chunks(due):
            items = [pb.EnqueueItem(job=spec("stamp")) for _ in part]
            for item, time_ in zip(items, part, strict=True):
                item.job.schedule_time.FromDatetime(time_)
            answer = await self._enqueue.EnqueueBatch(pb.EnqueueBatchRequest(items=items))
            ids += [result.job_id for result in answer.results]
        starts = await self._starts(ids)
        return [(t, moment(starts[job_id])) for job_id, t in zip(ids, due, strict=True)]

    async def watch(self, ids: Sequence[str]) -> None:
        """Return when all these jobs have ended well."""
        left = set(ids)
        request = pb.WatchJobsRequest(job_ids=ids, batches=True, ends_only=True)
        async for response in self._enqueue.WatchJobs(request):
            for event in response.batch.events:
                if event.state == job_pb2.JOB_STATE_SUCCEEDED:
                    left.discard(event.job_id)
        assert not left, f"{len(left)} jobs did not succeed, {next(iter(left))} among them"

    async def _starts(self, ids: Sequence[str]) -> dict[str, int]:
        await asyncio.gather(*(self.watch(part) for part in chunks(ids)))
        starts: dict[str, int] = {}
        for part in chunks(ids):
            request = orchestrator_service_pb2.GetJobsRequest(
                job_ids=part, view=job_pb2.JOB_VIEW_FULL
            )
            answer = await self._orchestrator.GetJobs(request)
            starts |= {r.job.id: int(r.job.output.data) for r in answer.results}
        return starts


def spec(type_: str) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(type=type_, input=payload_pb2.Payload(data=PAYLOAD))


def moment(ns: int) -> datetime:
    return EPOCH + timedelta(microseconds=ns // 1000)


def chunks(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    return (ids[start : start + WATCHED] for start in range(0, len(ids), WATCHED))
