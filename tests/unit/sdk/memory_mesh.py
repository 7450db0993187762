"""A tiny mesh in memory behind a real gRPC server, to test clients against.

It keeps the contract where clients depend on it (keys, batches, pages, watches with tokens,
uploads, rich errors made by the chassis' own code), runs nothing by itself, and breaks where a test
says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_status import rpc_status
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import (
    job_pb2,
)
from jobmesh.v1.enqueue_service_pb2_grpc import (
    EnqueueServiceServicer,
    add_EnqueueServiceServicer_to_server,
)
from jobmesh.v1.orchestrator_service_pb2_grpc import (
    add_OrchestratorServiceServicer_to_server,
)
from jobmesh.v1.payload_pb2 import ObjectRef, Payload
from jobmesh.v1.scaler_service_pb2_grpc import (
    add_ScalerServiceServicer_to_server,
)
from jobmesh.v1.scheduler_service_pb2_grpc import (
    add_SchedulerServiceServicer_to_server,
)

from services.mesh.errors import (
    IdempotencyConflict,
    JobNotFound,
    MeshError,
    ParentNotStored,
    ResumeTokenExpired,
    SlowConsumer,
    UnknownType,
)
from services.mesh.rpc.errors import to_status
from services.mesh.rpc.items import to_item_error
from tests.unit.sdk.memory_operators import MemoryOrchestrator, MemoryScaler, MemoryScheduler
from tests.unit.sdk.memory_schedules import PAGE, MemorySchedules
from tests.unit.sdk.memory_types import MemoryTypes

TERMINAL = (4, 5, 6, 7)

REASONS = {
    "SCHEDULED": "CREATED",
    "DISPATCHED": "CLAIMED",
    "RUNNING": "STARTED",
    "SUCCEEDED": "SUCCEEDED",
    "FAILED": "FAILED",
    "CANCELLED": "CANCELLED",
}


@dataclass
class Fault:
    """One call goes wrong: before anything is done, or after everything is."""

    error: MeshError | grpc.StatusCode
    after: bool = False


@dataclass
class Record:
    job: job_pb2.Job
    events: list[job_pb2.JobEvent] = field(default_factory=list)


class MemoryMesh(MemoryTypes, MemorySchedules, EnqueueServiceServicer):
    """The service; `faults[method]` are taken one per call, `calls[method]` is what was asked."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.keys: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.types = ["echo", "primes"]
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.calls: dict[str, list[Any]] = defaultdict(list)
        #: Methods that never answer.
        self.hanging: set[str] = set()
        self.changed = asyncio.Condition()
        #: Breaks watch streams: called with the number of responses a stream has sent.
        self.cut_watch: Callable[[int], str] = lambda sent: ""
        self.tokens_expire = False
        self.omit_tokens = False
        #: Whether EnqueueStream is served, and how often it ends politely at the next message.
        self.streams = False
        self.drains = 0
        #: Called with each stored job, to let it "run".
        self.on_stored: Callable[[MemoryMesh, str], None] = lambda mesh, job_id: None
        #: The services beside this one.
        self.scaler = MemoryScaler()  # type: ignore[abstract]
        self.scheduler = MemoryScheduler()  # type: ignore[abstract]

    # --- what tests do

    def put(self, spec: job_pb2.JobSpec, namespace: str = "default") -> job_pb2.Job:
        now = Timestamp()
        now.FromDatetime(datetime.now(UTC))
        job = job_pb2.Job(
            id=str(uuid.uuid4()), namespace=namespace, spec=spec, create_time=now, due_time=now
        )
        self.records[job.id] = Record(job)
        self.move(job.id, "SCHEDULED")
        self.on_stored(self, job.id)
        return job

    def move(self, job_id: str, state: str, **changes: Any) -> None:
        """One transition with its event."""
        record = self.records[job_id]
        job = record.job
        now = Timestamp()
        now.FromDatetime(datetime.now(UTC))
        job.state = job_pb2.JobState.Value(f"JOB_STATE_{state}")
        job.version += 1
        if state == "DISPATCHED":
            job.attempt += 1
            job.dispatch_no += 1
            job.attempts.add(attempt=job.attempt, dispatch_no=job.dispatch_no, dispatch_time=now)
        if state == "SCHEDULED" and job.attempts:
            job.attempts[-1].end_time.CopyFrom(now)
        if state == "RUNNING":
            job.start_time.CopyFrom(now)
            job.attempts[-1].start_time.CopyFrom(now)
        if job.state in TERMINAL:
            job.end_time.CopyFrom(now)
        job.MergeFrom(job_pb2.Job(**changes))
        event = job_pb2.JobEvent(
            job_id=job_id,
            namespace=job.namespace,
            type=job.spec.type,
            version=job.version,
            state=job.state,
            reason=job_pb2.EventReason.Value(f"EVENT_REASON_{REASONS[state]}"),
            time=now,
            attempt=job.attempt,
            note=changes.get("end_note", ""),
        )
        if "failure" in changes:
            event.failure.CopyFrom(changes["failure"])
        record.events.append(event)

    async def advance(self, job_id: str, *states: str, **changes: Any) -> None:
        """Transitions that watchers hear of."""
        for state in states:
            last = state == states[-1]
            async with self.changed:
                self.move(job_id, state, **(changes if last else {}))
                self.changed.notify_all()

    # --- jobs

    async def Enqueue(self, request: pb.EnqueueRequest, context: Any) -> pb.EnqueueResponse:
        fault = await self._begin("Enqueue", request, context)
        namespace = request.namespace or "default"
        job, existing = await self._store(namespace, request.job, request.idempotency_key, context)
        await self._end(fault, context)
        async with self.changed:
            self.changed.notify_all()
        return pb.EnqueueResponse(job=job, existing=existing)

    async def _store(
        self, namespace: str, spec: job_pb2.JobSpec, key: str, context: Any
    ) -> tuple[job_pb2.Job, bool]:
        if spec.type not in self.types:
            await self._abort(context, UnknownType(spec.type))
        content = _content(spec)
        known = self.keys.get((namespace, key)) if key else None
        if known is not None:
            if known[1] != content:
                await self._abort(context, IdempotencyConflict(known[0]))
            return self.records[known[0]].job, True
        job = self.put(spec, namespace)
        if key:
            self.keys[namespace, key] = (job.id, content)
        return job, False

    async def EnqueueBatch(
        self, request: pb.EnqueueBatchRequest, context: Any
    ) -> pb.EnqueueBatchResponse:
        fault = await self._begin("EnqueueBatch", request, context)
        namespace = request.namespace or "default"
        results = self._store_items(namespace, request.items)
        await self._end(fault, context)
        return pb.EnqueueBatchResponse(results=results)

    async def EnqueueStream(
        self, request_iterator: AsyncIterator[pb.EnqueueStreamRequest], context: Any
    ) -> AsyncIterator[pb.EnqueueStreamResponse]:
        if not self.streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older server")
        namespace, count = "", 0
        async for request in request_iterator:
            namespace = namespace or request.namespace or "default"
            fault = await self._begin("EnqueueStream", request, context)
            if self.drains:
                self.drains -= 1
                return
            results = self._store_items(namespace, request.items)
            await self._end(fault, context)
            yield pb.EnqueueStreamResponse(first_item=count, results=results)
            count += len(results)

    def _store_items(
        self, namespace: str, items: Sequence[pb.EnqueueItem]
    ) -> list[pb.EnqueueResult]:
        results: list[pb.EnqueueResult] = []
        for item in items:
            named = [parent.item for parent in item.item_dependencies]
            lost = next((place for place in named if not results[place].job_id), None)
            for parent in item.item_dependencies:
                job_id = results[parent.item].job_id
                item.job.dependencies.add(job_id=job_id, on_failure=parent.on_failure)
            if lost is None:
                results.append(self._store_item(namespace, item))
            else:
                results.append(_item_error(ParentNotStored(lost, results[lost].error.reason)))
        return results

    def _store_item(self, namespace: str, item: pb.EnqueueItem) -> pb.EnqueueResult:
        planned = self.faults["item"].pop(0) if self.faults["item"] else None
        if planned is not None and isinstance(planned.error, MeshError) and not planned.after:
            return _item_error(planned.error)
        if item.job.type not in self.types:
            return _item_error(UnknownType(item.job.type))
        known = self.keys.get((namespace, item.idempotency_key))
        job_id = known[0] if known else self.put(item.job, namespace).id
        if item.idempotency_key:
            self.keys[namespace, item.idempotency_key] = (job_id, _content(item.job))
        if planned is not None and isinstance(planned.error, MeshError):
            return _item_error(planned.error)
        return pb.EnqueueResult(job_id=job_id, existing=known is not None)

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        fault = await self._begin("GetJob", request, context)
        await self._end(fault, context)
        return pb.GetJobResponse(job=(await self._record(request.job_id, context)).job)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        await self._begin("ListJobs", request, context)
        jobs = [r.job for r in reversed(self.records.values()) if _matches(request.filter, r.job)]
        start = int(request.page_token or 0)
        end = start + min(PAGE, request.page_size or PAGE)
        more = end < len(jobs)
        return pb.ListJobsResponse(jobs=jobs[start:end], next_page_token=str(end) if more else "")

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        await self._begin("CancelJob", request, context)
        record = await self._record(request.job_id, context)
        if record.job.state in TERMINAL:
            return pb.CancelJobResponse(job=record.job, cancelled=False)
        await self.advance(request.job_id, "CANCELLED", end_note=request.reason)
        return pb.CancelJobResponse(job=record.job, cancelled=True)

    async def ListTypes(self, request: pb.ListTypesRequest, context: Any) -> pb.ListTypesResponse:
        await self._begin("ListTypes", request, context)
        return pb.ListTypesResponse(types=self.types)

    # --- watches: a token is "job=version,job=version"

    async def WatchJobs(
        self, request: pb.WatchJobsRequest, context: Any
    ) -> AsyncIterator[pb.WatchJobsResponse]:
        await self._begin("WatchJobs", request, context)
        for job_id in request.job_ids:
            await self._record(job_id, context)
        if request.resume_token and self.tokens_expire:
            self.tokens_expire = False
            await self._abort(context, ResumeTokenExpired())
        sent = 0
        async for response in self._responses(request):
            yield response
            sent += 1
            cut = self.cut_watch(sent)
            if cut == "drain":
                yield pb.WatchJobsResponse(drain=pb.Drain(), resume_token=response.resume_token)
                return
            if cut == "slow":
                await self._abort(context, SlowConsumer())
            if cut:
                await context.abort(grpc.StatusCode[cut], "cut by the test")

    async def _responses(self, request: pb.WatchJobsRequest) -> AsyncIterator[pb.WatchJobsResponse]:
        seen = dict(_parse(request.resume_token))
        if not request.resume_token:
            for job_id in self._watched(request):
                record = self.records[job_id]
                seen[job_id] = record.job.version
                yield pb.WatchJobsResponse(snapshot=record.job, resume_token=self._token(seen))
        while True:
            for job_id in self._watched(request):
                for event in list(self.records[job_id].events)[seen.get(job_id, 0) :]:
                    seen[job_id] = event.version
                    yield pb.WatchJobsResponse(event=event, resume_token=self._token(seen))
            if self._all_ended(request, seen):
                return
            async with self.changed:
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.05)
                except TimeoutError:
                    yield pb.WatchJobsResponse(heartbeat=pb.Heartbeat())

    def _all_ended(self, request: pb.WatchJobsRequest, seen: dict[str, int]) -> bool:
        """Every watched id is terminal and its last event was sent."""
        jobs = [self.records[job_id].job for job_id in request.job_ids]
        return bool(jobs) and all(
            job.state in TERMINAL and seen.get(job.id, 0) >= job.version for job in jobs
        )

    def _watched(self, request: pb.WatchJobsRequest) -> list[str]:
        if request.job_ids:
            return list(request.job_ids)
        return [i for i, r in self.records.items() if _matches(request.filter, r.job)]

    def _token(self, seen: dict[str, int]) -> str:
        return "" if self.omit_tokens else ",".join(f"{k}={v}" for k, v in seen.items())

    # --- bytes

    async def UploadInput(self, request_iterator: Any, context: Any) -> pb.UploadInputResponse:
        start: pb.UploadStart | None = None
        data = b""
        async for message in request_iterator:
            if message.HasField("start"):
                start = message.start
                await self._begin("UploadInput", start, context)
            data += message.chunk
        assert start is not None
        key = f"{start.namespace}/{uuid.uuid4().hex}"
        self.objects[key] = data
        ref = ObjectRef(key=key, size_bytes=len(data), sha256=hashlib.sha256(data).digest())
        return pb.UploadInputResponse(payload=Payload(object=ref, content_type=start.content_type))

    async def DownloadOutput(
        self, request: pb.DownloadOutputRequest, context: Any
    ) -> AsyncIterator[pb.DownloadOutputResponse]:
        fault = await self._begin("DownloadOutput", request, context)
        record = await self._record(request.job_id, context)
        output = record.job.output
        data = self.objects[output.object.key] if output.HasField("object") else output.data
        yield pb.DownloadOutputResponse(
            info=pb.OutputInfo(
                content_type=output.content_type,
                size_bytes=len(data),
                sha256=output.object.sha256,
            )
        )
        for start in range(0, len(data), 1000):
            yield pb.DownloadOutputResponse(chunk=data[start : start + 1000])
            await self._end(fault, context)

    # --- faults and errors

    async def _begin(self, method: str, request: Any, context: Any) -> Fault | None:
        copy = type(request)()
        copy.CopyFrom(request)
        self.calls[method].append(copy)
        if method in self.hanging:
            await asyncio.Event().wait()
        fault = self.faults[method].pop(0) if self.faults[method] else None
        if fault is not None and not fault.after:
            await self._abort(context, fault.error)
        return fault

    async def _end(self, fault: Fault | None, context: Any) -> None:
        if fault is not None and fault.after:
            await self._abort(context, fault.error)

    async def _abort(self, context: Any, error: MeshError | grpc.StatusCode) -> None:
        if isinstance(error, grpc.StatusCode):
            await context.abort(error, "injected by the test")
        else:
            await context.abort_with_status(rpc_status.to_status(to_status(error)))

    async def _record(self, job_id: str, context: Any) -> Record:
        if job_id not in self.records:
            await self._abort(context, JobNotFound(job_id))
        return self.records[job_id]


def _content(spec: job_pb2.JobSpec) -> bytes:
    return hashlib.sha256(spec.SerializeToString(deterministic=True)).digest()


def _item_error(error: MeshError) -> pb.EnqueueResult:
    return pb.EnqueueResult(error=to_item_error(error))


def _matches(wanted: job_pb2.JobFilter, job: job_pb2.Job) -> bool:
    return (
        (not wanted.states or job.state in wanted.states)
        and (not wanted.types or job.spec.type in wanted.types)
        and all(job.spec.labels.get(key) == value for key, value in wanted.labels.items())
        and wanted.schedule in ("", job.schedule)
        and job.create_time.ToNanoseconds() >= wanted.create_time_from.ToNanoseconds()
        and (
            not wanted.HasField("create_time_until")
            or job.create_time.ToNanoseconds() < wanted.create_time_until.ToNanoseconds()
        )
    )


def _parse(token: str) -> list[tuple[str, int]]:
    parts = [part.partition("=") for part in token.split(",") if part]
    return [(job_id, int(version)) for job_id, _, version in parts]


async def serve(mesh: MemoryMesh, port: int = 0) -> tuple[grpc.aio.Server, str]:
    """A server on a free port, and its address."""
    server = grpc.aio.server()
    # The rest of each contract answers UNIMPLEMENTED, as the generated base classes do.
    orchestrator = MemoryOrchestrator()  # type: ignore[abstract]
    add_EnqueueServiceServicer_to_server(mesh, server)
    add_ScalerServiceServicer_to_server(mesh.scaler, server)
    add_OrchestratorServiceServicer_to_server(orchestrator, server)
    add_SchedulerServiceServicer_to_server(mesh.scheduler, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, f"127.0.0.1:{bound}"


def succeed(mesh: MemoryMesh, job_id: str) -> None:
    """Each stored job has run by the time its id is known, and returned its input."""
    mesh.move(job_id, "DISPATCHED")
    mesh.move(job_id, "SUCCEEDED", output=mesh.records[job_id].job.spec.input)
