"""Wire to use cases and back, for Enqueue's own messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from random import SystemRandom
from typing import Any, NamedTuple
from uuid import UUID

from google.protobuf.field_mask_pb2 import FieldMask
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, schedule_pb2

from services.enqueue.app.watch import Delivery, Kind
from services.enqueue.domain.admission import (
    check_calendar,
    check_expiry,
    check_parents,
    check_start,
    check_unique,
)
from services.enqueue.domain.filtering import WatchFilter
from services.mesh.errors import InvalidField, MeshError, NotImplementedYet
from services.mesh.jobs import ids
from services.mesh.rpc.items import from_item_error, to_item_error
from services.mesh.wire.events import HintedEvent
from services.mesh.wire.ties import ties_from_proto
from services.mesh.wire.values import optional_datetime, timestamp

DEFAULT_NAMESPACE = "default"
DEFAULT_PAGE = 50
LARGEST_PAGE = 1000
HASH_BYTES = 32
#: In seconds.
LONGEST_WAIT = 3600
_RANDOM = SystemRandom()

#: What of a job that waits may be changed.
CHANGEABLE = ("schedule_time", "priority", "labels")

NewJob = orchestrator_service_pb2.NewJob
AlikeJobs = orchestrator_service_pb2.AlikeJobs
PutJobsRequest = orchestrator_service_pb2.PutJobsRequest
#: What became of one job: its id as text, or the Orchestrator's own result.
Submitted = str | orchestrator_service_pb2.PutJobResult


class Single(NamedTuple):
    """A job that came by a call of its own."""

    job: NewJob
    shape: bytes | None = None
    """The same for those that differ in nothing but the bytes of their inputs and their keys; None:
    none does.
    """


def namespace_of(given: str) -> str:
    return given or DEFAULT_NAMESPACE


def page_size_of(given: int, default: int = DEFAULT_PAGE) -> int:
    return min(given or default, LARGEST_PAGE)


def wait_of(request: pb.EnqueueRequest) -> float:
    """Seconds for which a call wants to wait for its job's end, as far as the contract allows it.
    To be asked before the call is held against the rules.
    """
    if not request.HasField("wait"):
        return 0.0
    return float(min(max(request.wait.seconds + 1, 0), LONGEST_WAIT))


def job_id_of(text: str, field: str = "job_id") -> str:
    """The canonical id; one this mesh cannot have made is refused before any I/O."""
    lower = text.lower()
    if not ids.is_canonical(lower):
        raise InvalidField(field, "expected a job id as this service returned it")
    return lower


def id_beside(job_id: str, now: datetime) -> str:
    """A new id in the bucket of that job: wherever it moves, the two stay together."""
    bucket = ids.bucket_of(UUID(job_id))
    return str(ids.new_job_id(bucket, int(now.timestamp() * 1000), _RANDOM))


def check_spec(spec: job_pb2.JobSpec, now: datetime) -> None:
    """What the rules of the contract cannot say; the error names fields within the spec."""
    check_start(optional_datetime(spec, "schedule_time"), now)
    check_expiry(optional_datetime(spec, "expire_time"), now)
    if spec.dependencies or spec.unique_key or spec.unique_policy:
        _check_ties(spec)


def _check_ties(spec: job_pb2.JobSpec) -> None:
    named = [parent.job_id for parent in ties_from_proto(spec).dependencies]
    check_parents(named)
    replaces = spec.unique_policy == job_pb2.UNIQUE_POLICY_REPLACE
    check_unique(
        spec.unique_key, replaces=replaces, given=bool(spec.unique_policy), waits=bool(named)
    )


def check_template(spec: job_pb2.JobSpec, now: datetime) -> None:
    """As `check_spec`, for the jobs of a schedule, which stay together in its shard."""
    if spec.dependencies:
        text = "the jobs of a schedule cannot wait for others"
        raise InvalidField("schedule.template.dependencies", text)
    if spec.unique_key or spec.unique_policy:
        text = "the jobs of a schedule hold no key: its overlap policy says how many may live"
        raise InvalidField("schedule.template.unique_key", text)
    if spec.HasField("expire_time"):
        text = "one time is none for all jobs of a schedule: timeouts.start bounds each one's wait"
        raise InvalidField("schedule.template.expire_time", text)
    check_spec(spec, now)


def check_schedule(schedule: schedule_pb2.Schedule, now: datetime) -> None:
    """As `check_spec`, for a schedule and its template."""
    check_template(schedule.template, now)
    start = optional_datetime(schedule, "start_time", "schedule.")
    end = optional_datetime(schedule, "end_time", "schedule.")
    if end is not None and end <= (start or now):
        raise InvalidField("schedule.end_time", "must be after start_time, and after now")


def new_job(
    namespace: str, spec: job_pb2.JobSpec, idempotency_key: str, traceparent: str
) -> NewJob:
    """What is sent to an Orchestrator."""
    job = NewJob()
    fill_new_job(job, namespace, spec, idempotency_key, traceparent)
    return job


def fill_new_job(
    job: NewJob, namespace: str, spec: job_pb2.JobSpec, idempotency_key: str, traceparent: str
) -> None:
    """As `new_job`, in place. The hash covers what the caller said, nothing else."""
    job.namespace = namespace
    job.spec.CopyFrom(spec)
    if traceparent:
        job.traceparent = traceparent
    if idempotency_key:
        job.idempotency_key = idempotency_key
        job.request_hash = _request_hash(spec)


def fill_like(job: NewJob, namespace: str, spec: job_pb2.JobSpec, traceparent: str) -> None:
    """What jobs that are alike have in common: all but the bytes of their inputs."""
    fill_new_job(job, namespace, spec, "", traceparent)
    if job.spec.input.WhichOneof("content") == "data":
        job.spec.input.data = b""


def fill_keys(alike: AlikeJobs, items: Sequence[pb.EnqueueItem]) -> None:
    """The keys of jobs that are alike."""
    alike.idempotency_keys.extend([item.idempotency_key for item in items])
    alike.request_hashes = b"".join([_request_hash(item.job) for item in items])


def spell_out(request: PutJobsRequest) -> None:
    """Jobs in `keyed` as messages instead, behind those that are there, in the same order."""
    for alike in request.keyed:
        inline = alike.like.spec.input.WhichOneof("content") == "data"
        for number, key in enumerate(alike.idempotency_keys):
            job = request.jobs.add()
            job.CopyFrom(alike.like)
            if inline:
                job.spec.input.data = alike.inputs[number]
            job.idempotency_key = key
            begin = HASH_BYTES * number
            job.request_hash = alike.request_hashes[begin : begin + HASH_BYTES]
    request.ClearField("keyed")


def _request_hash(spec: job_pb2.JobSpec) -> bytes:
    """The same for the same bytes, wherever a repeated upload has put them."""
    said = spec
    if spec.input.object.sha256:
        said = job_pb2.JobSpec()
        said.CopyFrom(spec)
        said.input.object.ClearField("key")
    return hashlib.sha256(said.SerializeToString(deterministic=True)).digest()


def stored_job(submitted: NewJob, result: orchestrator_service_pb2.PutJobResult) -> job_pb2.Job:
    """The job as the caller sees it: what the shard said, and what the caller knows."""
    if result.HasField("error"):
        raise from_item_error(result.error)
    job = result.job
    job.namespace = submitted.namespace
    job.spec.CopyFrom(submitted.spec)
    if job.spec.input.WhichOneof("content") == "data":
        job.spec.input.ClearField("data")
    return job


def fill_results(
    results: Any,
    count: int,
    stored: Iterable[Submitted],
    order: Iterable[int],
    errors: Mapping[int, MeshError],
) -> None:
    """One EnqueueResult per item: what was stored, of the items in `order`; the errors by place."""
    outcomes: dict[int, Submitted | MeshError] = dict(zip(order, stored, strict=False))
    outcomes.update(errors)
    for place in range(count):
        outcome = outcomes[place]
        if isinstance(outcome, str):
            results.add(job_id=outcome)
        elif isinstance(outcome, MeshError):
            results.add(error=to_item_error(outcome))
        elif outcome.HasField("error"):
            results.add(error=outcome.error)
        else:
            results.add(job_id=outcome.job.id, existing=outcome.existing)


def watch_response(delivery: Delivery, now: datetime) -> pb.WatchJobsResponse:
    response = pb.WatchJobsResponse(resume_token=delivery.token)
    match delivery.kind:
        case Kind.SNAPSHOT:
            response.snapshot.CopyFrom(delivery.message)
        case Kind.EVENT:
            _put_event(response.event, delivery.message)
        case Kind.HEARTBEAT:
            beat = pb.Heartbeat(time=timestamp(now), lagging_shards=delivery.lagging)
            response.heartbeat.CopyFrom(beat)
        case Kind.DRAIN:
            response.drain.SetInParent()
        case Kind.BATCH:
            snapshots, events = response.batch.snapshots, response.batch.events
            for part in delivery.message:
                if part.kind is Kind.SNAPSHOT:
                    snapshots.append(part.message)
                else:
                    _put_event(events.add(), part.message)
        case Kind.PROGRESS:
            response.progress.CopyFrom(delivery.message)
    return response


def _put_event(event: job_pb2.JobEvent, message: job_pb2.JobEvent | HintedEvent) -> None:
    """What was read is a message already; what was hinted becomes one here."""
    if isinstance(message, HintedEvent):
        message.fill(event)
    else:
        event.CopyFrom(message)


def watch_filter(request: pb.WatchJobsRequest) -> WatchFilter:
    """What a watch wants. A condition that transitions cannot be held against is refused."""
    wanted = request.filter
    if request.progress:
        raise InvalidField("progress", "only jobs that are watched by id tell their progress")
    for field in ("create_time_from", "create_time_until"):
        if wanted.HasField(field):
            raise NotImplementedYet(f"WatchJobs by JobFilter.{field}")
    if wanted.schedule:
        raise NotImplementedYet("WatchJobs by JobFilter.schedule")
    return WatchFilter(
        namespace=namespace_of(request.namespace),
        types=frozenset(wanted.types),
        labels=tuple(sorted(wanted.labels.items())),
        states=frozenset(wanted.states),
    )


def list_query(request: pb.ListJobsRequest) -> bytes:
    """What a page token is bound to: all that decides which jobs come, and in which order."""
    query = pb.ListJobsRequest(namespace=namespace_of(request.namespace), filter=request.filter)
    return query.SerializeToString(deterministic=True)


# --- filters and changes


def check_filter(jobs: job_pb2.JobFilter) -> None:
    """Times that can be compared with those of jobs; anything else is the caller's mistake."""
    for field in ("create_time_from", "create_time_until"):
        check_calendar(f"filter.{field}", optional_datetime(jobs, field, "filter."))


def check_choice(jobs: job_pb2.JobFilter) -> None:
    """As `check_filter`, for a filter that decides what is changed: it must say something."""
    if not jobs.ByteSize():
        raise InvalidField("filter", "give at least one condition; an empty filter is refused")
    check_filter(jobs)


def bulk_query(verb: str, namespace: str, jobs: job_pb2.JobFilter) -> bytes:
    """What the page token of a call by filter is bound to."""
    query = pb.ListJobsRequest(namespace=namespace_of(namespace), filter=jobs)
    return verb.encode() + query.SerializeToString(deterministic=True)


def changed_spec(given: job_pb2.JobSpec, mask: FieldMask) -> job_pb2.JobSpec:
    """The fields that the mask names, alone; a path that cannot be changed is refused."""
    if not mask.paths:
        raise InvalidField("update_mask", f"name what to change: {', '.join(CHANGEABLE)}")
    for path in mask.paths:
        if path not in CHANGEABLE:
            text = f"cannot change {path[:100]!r} of a job, only {', '.join(CHANGEABLE)}"
            raise InvalidField("update_mask", text)
    # The rules of the contract are about whole specs: a type that satisfies them stands in.
    spec = job_pb2.JobSpec(type="any")
    mask.MergeMessage(given, spec, replace_message_field=True, replace_repeated_field=True)
    if "schedule_time" in mask.paths and not given.HasField("schedule_time"):
        spec.ClearField("schedule_time")
    return spec


def check_move(spec: job_pb2.JobSpec, now: datetime) -> None:
    """What the rules cannot say about a new time."""
    try:
        check_start(optional_datetime(spec, "schedule_time"), now)
    except InvalidField as error:
        raise InvalidField("job.schedule_time", error.violations[0].description) from None
