"""Many open watches, each of one job that nothing happens to until the end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub

from tests.bench.load import chunks, spec

#: A connection has room for so many calls.
PER_CHANNEL = 500
A_YEAR = Duration(seconds=31_536_000)


class Watchers:
    """Opens watches over channels of their own, and counts those that were told of the end."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: list[asyncio.Task[bool]] = []
        self._ids: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for channel in self._channels:
            await channel.close()

    def _stub(self) -> Any:
        # Without a pool of its own a channel shares the connection of its like.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels.append(grpc.aio.insecure_channel(self._target, options))
        return EnqueueServiceStub(self._channels[-1])

    async def open(self, count: int) -> None:
        """Return when all are open and have seen their job once."""
        job = spec("stamp")
        job.delay.CopyFrom(A_YEAR)
        stub = self._stub()
        for part in chunks(range(count)):
            request = pb.EnqueueBatchRequest(items=[pb.EnqueueItem(job=job) for _ in part])
            answer = await stub.EnqueueBatch(request)
            self._ids += [result.job_id for result in answer.results]
        seen = asyncio.Semaphore(0)
        for start in range(0, count, PER_CHANNEL):
            stub = self._stub()
            for job_id in self._ids[start : start + PER_CHANNEL]:
                watch = self._follow(stub, job_id, seen)
                self._tasks.append(asyncio.create_task(watch, name=f"watch-{job_id}"))
        for _ in range(count):
            await seen.acquire()

    async def _follow(self, stub: Any, job_id: str, seen: asyncio.Semaphore) -> bool:
        told = False
        async for response in stub.WatchJobs(pb.WatchJobsRequest(job_ids=[job_id])):
            if response.HasField("snapshot"):
                seen.release()
            told = told or response.event.state == job_pb2.JOB_STATE_CANCELLED
        return told

    async def cancel_all(self) -> int:
        """Cancel the jobs; how many watches were told before they ended."""
        stub = self._stub()
        for job_id in self._ids:
            await stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
        return sum(await asyncio.gather(*self._tasks))
