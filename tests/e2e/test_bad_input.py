"""Bad input: the right code, the reason, the field by its name, and nothing stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from jobmesh.client import AsyncClient
from jobmesh.client.status import from_rpc
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2, schedule_pb2, scheduler_service_pb2
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from localmesh.harness import RunningMesh

from services.mesh.jobs.ids import new_job_id

NOW = int(time.time())
YEAR = 365 * 86400
NO_JOB = str(new_job_id(7, NOW * 1000, Random(1)))
INVALID = grpc.StatusCode.INVALID_ARGUMENT
ECHO = job_pb2.JobSpec(type="echo")
NO_STATE = job_pb2.JobState.ValueType(99)
NOT_FOUND = grpc.StatusCode.NOT_FOUND


@dataclass(frozen=True)
class Bad:
    """One call that must be refused. `field` is part of the path of the bad field."""

    name: str
    method: str
    request: Callable[[], Any]
    code: grpc.StatusCode = INVALID
    reason: str = "INVALID_FIELD"
    field: str = ""


def job(**spec: Any) -> Callable[[], pb.EnqueueRequest]:
    return lambda: pb.EnqueueRequest(job=job_pb2.JobSpec(**{"type": "echo", **spec}))


def at(seconds: int, nanos: int = 0) -> Timestamp:
    return Timestamp(seconds=seconds, nanos=nanos)


def schedule(every: Duration | None, **given: Any) -> Callable[[], pb.CreateScheduleRequest]:
    interval = schedule_pb2.Interval(every=every)
    rules = [] if every is None else [schedule_pb2.Recurrence(interval=interval)]
    template = given.pop("template", {"type": "echo"})
    made = schedule_pb2.Schedule(name="bad", template=template, recurrences=rules, **given)
    return lambda: pb.CreateScheduleRequest(schedule=made)


TIME = "job.schedule_time"
EVERY = "schedule.recurrences[0].interval.every"
TABLE = [
    # --- what to run
    Bad("unknown type", "Enqueue", job(type="nobody"), NOT_FOUND, "UNKNOWN_TYPE"),
    Bad("no job", "Enqueue", pb.EnqueueRequest, field="job"),
    Bad("no type", "Enqueue", job(type=""), field="job.type"),
    Bad("type with spaces", "Enqueue", job(type="NOT A TYPE"), field="job.type"),
    Bad("priority", "Enqueue", job(priority=10), field="job.priority"),
    Bad("label with NUL", "Enqueue", job(labels={"a": "x\0y"}), field="job.labels"),
    Bad(
        "key with NUL",
        "Enqueue",
        lambda: pb.EnqueueRequest(job=ECHO, idempotency_key="a\0b"),
        field="idempotency_key",
    ),
    Bad(
        "jitter is no number",
        "Enqueue",
        job(retry_policy={"jitter": float("nan"), "max_attempts": 2}),
        field="job.retry_policy.jitter",
    ),
    Bad("no time to run", "Enqueue", job(timeouts={"run": {}}), field="job.timeouts.run"),
    # --- when
    Bad("an hour ago", "Enqueue", job(schedule_time=at(NOW - 3600)), field=TIME),
    Bad("in 100 years", "Enqueue", job(schedule_time=at(NOW + 100 * YEAR)), field=TIME),
    Bad("after the last year", "Enqueue", job(schedule_time=at(10**14)), field=TIME),
    Bad("before the first year", "Enqueue", job(schedule_time=at(-(10**14))), field=TIME),
    Bad("minus five nanoseconds", "Enqueue", job(schedule_time=at(NOW, -5)), field=TIME),
    Bad("expired", "Enqueue", job(expire_time=at(1000)), field="job.expire_time"),
    Bad("absurd expiry", "Enqueue", job(expire_time=at(10**14)), field="job.expire_time"),
    Bad("negative delay", "Enqueue", job(delay={"seconds": -1}), field="job.delay"),
    Bad("absurd delay", "Enqueue", job(delay={"seconds": 10**13}), field="job.delay"),
    Bad(
        "time and delay",
        "Enqueue",
        job(delay={"seconds": 1}, schedule_time=at(NOW + 60)),
        field="job",
    ),
    # --- again and again
    Bad("interval 0", "CreateSchedule", schedule(Duration()), field=EVERY),
    Bad("negative interval", "CreateSchedule", schedule(Duration(seconds=-5)), field=EVERY),
    Bad("half a second", "CreateSchedule", schedule(Duration(nanos=500_000_000)), field=EVERY),
    Bad("no rule", "CreateSchedule", schedule(None), field="schedule.recurrences"),
    Bad(
        "absurd start",
        "CreateSchedule",
        schedule(Duration(seconds=5), start_time=at(10**14)),
        field="start_time",
    ),
    Bad(
        "schedule of an unknown type",
        "CreateSchedule",
        schedule(Duration(seconds=5), template={"type": "nobody"}),
        NOT_FOUND,
        "UNKNOWN_TYPE",
    ),
    # --- with what
    Bad("1 MiB and a byte", "Enqueue", job(input={"data": bytes(2**20 + 1)}), field="job.input"),
    Bad(
        "another's object",
        "Enqueue",
        job(input={"object": {"key": "other/inputs/x"}}),
        NOT_FOUND,
        "OBJECT_NOT_FOUND",
    ),
    Bad("no items", "EnqueueBatch", pb.EnqueueBatchRequest, field="items"),
    Bad(
        "1001 items",
        "EnqueueBatch",
        lambda: pb.EnqueueBatchRequest(items=[pb.EnqueueItem(job=ECHO)] * 1001),
        field="items",
    ),
    # --- which
    Bad("no id", "GetJob", pb.GetJobRequest, field="job_id"),
    Bad("malformed id", "GetJob", lambda: pb.GetJobRequest(job_id="42"), field="job_id"),
    Bad(
        "an id nobody made",
        "GetJob",
        lambda: pb.GetJobRequest(job_id=str(uuid.uuid4())),
        field="job_id",
    ),
    Bad(
        "no such job",
        "GetJob",
        lambda: pb.GetJobRequest(job_id=NO_JOB),
        NOT_FOUND,
        "JOB_NOT_FOUND",
    ),
    Bad("cancel 42", "CancelJob", lambda: pb.CancelJobRequest(job_id="42"), field="job_id"),
    Bad(
        "cancel for NUL",
        "CancelJob",
        lambda: pb.CancelJobRequest(job_id=NO_JOB, reason="\0"),
        field="reason",
    ),
    Bad("watch 42", "WatchJobs", lambda: pb.WatchJobsRequest(job_ids=["42"]), field="job_ids[0]"),
    Bad("watch nothing", "WatchJobs", pb.WatchJobsRequest),
    Bad(
        "garbage to resume",
        "WatchJobs",
        lambda: pb.WatchJobsRequest(job_ids=[NO_JOB], resume_token="garbage"),
        reason="RESUME_TOKEN_INVALID",
        field="resume_token",
    ),
    Bad(
        "garbage page",
        "ListJobs",
        lambda: pb.ListJobsRequest(page_token="garbage"),
        reason="PAGE_TOKEN_INVALID",
        field="page_token",
    ),
    Bad(
        "page of null",
        "ListJobs",
        lambda: pb.ListJobsRequest(page_token="bnVsbA"),
        reason="PAGE_TOKEN_INVALID",
        field="page_token",
    ),
    Bad(
        "garbage page of schedules",
        "ListSchedules",
        lambda: pb.ListSchedulesRequest(page_token="garbage"),
        reason="PAGE_TOKEN_INVALID",
        field="page_token",
    ),
    Bad("page of -1", "ListJobs", lambda: pb.ListJobsRequest(page_size=-1), field="page_size"),
    Bad(
        "absurd filter",
        "ListJobs",
        lambda: pb.ListJobsRequest(filter=job_pb2.JobFilter(create_time_from=at(10**14))),
        field="create_time_from",
    ),
    Bad(
        "state 99",
        "ListJobs",
        lambda: pb.ListJobsRequest(filter=job_pb2.JobFilter(states=[NO_STATE])),
        field="filter.states[0]",
    ),
]


@pytest.fixture
async def namespace(client: AsyncClient) -> AsyncIterator[str]:
    """A tenant of one test's own; nothing may be stored for it."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    page = await client.stub.ListJobs(pb.ListJobsRequest(namespace=name))
    assert list(page.jobs) == []
    made = await client.stub.ListSchedules(pb.ListSchedulesRequest(namespace=name))
    assert list(made.schedules) == []


@pytest.mark.parametrize("bad", TABLE, ids=[bad.name for bad in TABLE])
async def test_bad_input_is_refused_by_field_and_stores_nothing(
    client: AsyncClient, namespace: str, bad: Bad
) -> None:
    request = bad.request()
    request.namespace = namespace
    failure = await _refused(getattr(client.stub, bad.method), request)
    error = from_rpc(failure, client.address, 0)
    assert (failure.code(), error.reason) == (bad.code, bad.reason)
    if bad.field:
        assert any(bad.field in violation.field for violation in error.violations)
        assert all(violation.description for violation in error.violations)


async def test_a_bad_item_of_a_batch_is_refused_alone(client: AsyncClient, namespace: str) -> None:
    labelled = job_pb2.JobSpec(type="echo", labels={"a": "x\0"})
    items = [pb.EnqueueItem(job=labelled), pb.EnqueueItem()]
    request = pb.EnqueueBatchRequest(namespace=namespace, items=items)
    results = (await client.stub.EnqueueBatch(request)).results
    assert [result.error.reason for result in results] == ["INVALID_FIELD"] * 2
    fields = [result.error.field_violations[0].field for result in results]
    assert fields[0].startswith("items[0].job.labels")
    assert fields[1] == "items[1].job"


async def test_a_message_of_200_megabytes_is_refused_by_the_transport(
    mesh: RunningMesh, client: AsyncClient, namespace: str
) -> None:
    before = _memory(mesh)
    large = payload_pb2.Payload(data=bytes(200 << 20))
    request = pb.EnqueueRequest(namespace=namespace, job=job_pb2.JobSpec(type="echo", input=large))
    failure = await _refused(client.stub.Enqueue, request)
    assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _memory(mesh) - before < 100 << 20
    assert (await client.stub.ListTypes(pb.ListTypesRequest())).types


async def test_an_unknown_shard_is_not_found(mesh: RunningMesh) -> None:
    async with grpc.aio.insecure_channel(mesh.targets("scheduler")[0]) as channel:
        tick = SchedulerServiceStub(channel).Tick
        failure = await _refused(tick, scheduler_service_pb2.TickRequest(shards=["s9"]))
    error = from_rpc(failure, "", 0)
    assert (failure.code(), error.reason) == (NOT_FOUND, "SHARD_NOT_FOUND")
    assert error.metadata == {"shard": "s9"}


async def _refused(method: Any, request: Any) -> grpc.aio.AioRpcError:
    """The error that a call, unary or a stream of answers, ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _first_answer(method(request, timeout=20))
    return caught.value


async def _first_answer(call: Any) -> Any:
    return await (call.read() if isinstance(call, grpc.aio.UnaryStreamCall) else call)


def _memory(mesh: RunningMesh) -> int:
    usage = mesh.process("enqueue").usage()
    assert usage is not None
    return usage.memory_bytes
