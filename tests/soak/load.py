"""A steady mix of what clients do, at a given rate of jobs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2, retry_pb2, schedule_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub

NAMESPACES = ("blue", "red")
#: Of all jobs, these parts.
MIX = {"noop": 0.6, "brief": 0.15, "flaky": 0.15, "later": 0.1}
#: One in five comes by a call of its own, and no more of them than clients at a desk would send:
#: at 1,000 jobs/s the run is about what the tables and the memory do, not about gRPC.
SINGLE = 0.2
SINGLES_PER_SECOND = 60.0
LARGE_BYTES = 300_000
_BATCH_SECONDS = 0.2
_CALL_SECONDS = 20.0
_CALLS_AT_ONCE = 200
#: Codes that say how things are, not that something went wrong: it ended before it was cancelled.
_ANSWERS = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_RETRY = retry_pb2.RetryPolicy(
    backoff=retry_pb2.BACKOFF_FIXED, max_attempts=3, initial_delay=Duration(seconds=2)
)


class Load:
    """Clients of one Enqueue. `counts` says what they did; nothing of it is sent again."""

    def __init__(self, target: str, rate: float, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self._rate = rate
        self._singles = min(rate * SINGLE, SINGLES_PER_SECOND)
        self._random = random.Random(seed)
        self._channel = grpc.aio.insecure_channel(target)
        self._stub = EnqueueServiceStub(self._channel)
        self._recent: deque[tuple[str, str]] = deque(maxlen=2000)
        self._calls: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    @property
    def errors(self) -> dict[str, int]:
        """Calls and items that were answered by an error, by kind."""
        return {name: count for name, count in self.counts.items() if ":" in name}

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """The load goes on inside the block."""
        await self._create_schedule(True)
        loops = [asyncio.create_task(work, name=name) for name, work in self._loops()]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await asyncio.gather(*self._calls, return_exceptions=True)
            await self._create_schedule(False)
            await self._channel.close()

    def _loops(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        return [
            ("batches", self._paced(1 / _BATCH_SECONDS, self._batch)),
            ("singles", self._paced(self._singles, self._single)),
            ("large", self._paced(self._rate / 1000, self._large)),
            ("watches", self._paced(2, self._watch)),
            ("filters", self._paced(0.2, self._watch_filter)),
            ("reads", self._paced(5, self._read)),
            ("lists", self._paced(0.5, self._list)),
            ("cancels", self._paced(1, self._cancel)),
        ]

    async def _paced(
        self, per_second: float, call: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Begin a call at each beat, whether or not the ones before have been answered."""
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            beat = max(beat + 1 / per_second, loop.time() - 1)
            await asyncio.sleep(beat - loop.time())
            if len(self._calls) >= _CALLS_AT_ONCE:
                self.counts["held_back"] += 1
                continue
            task = asyncio.create_task(self._counted(call))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _counted(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        name = call.__name__.lstrip("_")
        try:
            await call()
            self.counts[name] += 1
        except grpc.aio.AioRpcError as error:
            if error.code() not in _ANSWERS:
                self.counts[f"{name}:{error.code().name}"] += 1

    # --- submitting

    async def _batch(self) -> None:
        size = max(1, round((self._rate - self._singles) * _BATCH_SECONDS))
        space = self._random.choice(NAMESPACES)
        items = [pb.EnqueueItem(job=self._spec()) for _ in range(size)]
        request = pb.EnqueueBatchRequest(namespace=space, items=items)
        answer = await self._stub.EnqueueBatch(request, timeout=_CALL_SECONDS)
        for result in answer.results:
            if result.job_id:
                self._stored(space, result.job_id)
            else:
                self.counts[f"item:{result.error.code}"] += 1

    async def _single(self) -> None:
        space = self._random.choice(NAMESPACES)
        key = f"soak-{next(self._numbers)}"
        request = pb.EnqueueRequest(namespace=space, job=self._spec(), idempotency_key=key)
        answer = await self._stub.Enqueue(request, timeout=_CALL_SECONDS)
        self._stored(space, answer.job.id)

    async def _large(self) -> None:
        data = self._random.randbytes(16) * (LARGE_BYTES // 16)
        spec = job_pb2.JobSpec(type="echo", input=payload_pb2.Payload(data=data))
        request = pb.EnqueueRequest(namespace=NAMESPACES[0], job=spec)
        answer = await self._stub.Enqueue(request, timeout=_CALL_SECONDS)
        self._stored(NAMESPACES[0], answer.job.id)

    def _spec(self) -> job_pb2.JobSpec:
        (kind,) = self._random.choices(list(MIX), list(MIX.values()))
        type_ = "noop" if kind == "later" else kind
        spec = job_pb2.JobSpec(type=type_, input=payload_pb2.Payload(data=b"x" * 200))
        spec.labels["kind"] = kind
        if kind == "later":
            spec.schedule_time.FromNanoseconds(
                time.time_ns() + round(self._random.uniform(1, 20) * 1e9)
            )
        elif kind == "flaky":
            spec.retry_policy.CopyFrom(_RETRY)
        return spec

    def _stored(self, space: str, job_id: str) -> None:
        self.counts["jobs"] += 1
        self._recent.append((space, job_id))

    async def _create_schedule(self, running: bool) -> None:
        name = "every-second"
        if not running:
            request = pb.DeleteScheduleRequest(namespace=NAMESPACES[0], name=name)
            await self._stub.DeleteSchedule(request)
            return
        every = schedule_pb2.Interval(every=Duration(seconds=1))
        schedule = schedule_pb2.Schedule(
            name=name,
            template=job_pb2.JobSpec(type="noop"),
            recurrences=[schedule_pb2.Recurrence(interval=every)],
        )
        request = pb.CreateScheduleRequest(namespace=NAMESPACES[0], schedule=schedule)
        await self._stub.CreateSchedule(request)

    # --- looking

    def _some(self) -> tuple[str, str]:
        return self._random.choice(self._recent) if self._recent else (NAMESPACES[0], "")

    async def _watch(self) -> None:
        """Follow a few jobs; every other watch is closed before they have ended."""
        space, _ = self._some()
        ids = [job_id for named, job_id in list(self._recent)[-100:] if named == space][-20:]
        if not ids:
            return
        call = self._stub.WatchJobs(pb.WatchJobsRequest(namespace=space, job_ids=ids), timeout=30)
        await _read_on(call, self._random.choice([5, 1_000_000]))

    async def _watch_filter(self) -> None:
        filter_ = job_pb2.JobFilter(types=["noop"])
        request = pb.WatchJobsRequest(namespace=self._random.choice(NAMESPACES), filter=filter_)
        await _read_on(self._stub.WatchJobs(request, timeout=30), 500)

    async def _read(self) -> None:
        space, job_id = self._some()
        if job_id:
            request = pb.GetJobRequest(namespace=space, job_id=job_id)
            await self._stub.GetJob(request, timeout=_CALL_SECONDS)

    async def _list(self) -> None:
        filter_ = job_pb2.JobFilter(states=[job_pb2.JOB_STATE_FAILED])
        request = pb.ListJobsRequest(namespace=self._random.choice(NAMESPACES), filter=filter_)
        await self._stub.ListJobs(request, timeout=_CALL_SECONDS)

    async def _cancel(self) -> None:
        space, job_id = self._some()
        if job_id:
            request = pb.CancelJobRequest(namespace=space, job_id=job_id)
            await self._stub.CancelJob(request, timeout=_CALL_SECONDS)


async def _read_on(call: Any, responses: int) -> None:
    """Read so many, or until it ends by itself or by its time; then close."""
    try:
        async for _ in call:
            responses -= 1
            if responses <= 0:
                break
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
    finally:
        call.cancel()
