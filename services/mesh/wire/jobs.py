"""Jobs: what was submitted becomes a NewJob, a row becomes a Job."""

from __future__ import annotations

from uuid import UUID

from jobmesh.v1 import job_pb2, orchestrator_service_pb2

from services.mesh.jobs.attempts import NO_HISTORY, Attempt, History, Outcome
from services.mesh.jobs.model import NO_LABELS, JobFilter, JobRecord, NewJob
from services.mesh.jobs.states import JobState
from services.mesh.wire.payloads import payload_from_proto, payload_to_proto
from services.mesh.wire.progress import fill_progress
from services.mesh.wire.retries import (
    failure_to_proto,
    retry_from_proto,
    retry_to_proto,
    timeouts_from_proto,
    timeouts_to_proto,
)
from services.mesh.wire.ties import fill_ties
from services.mesh.wire.values import (
    optional_datetime,
    optional_timedelta,
    set_time,
    timestamp,
)

_OUTCOMES = {
    Outcome.OPEN: job_pb2.ATTEMPT_OUTCOME_UNSPECIFIED,
    Outcome.SUCCEEDED: job_pb2.ATTEMPT_OUTCOME_SUCCEEDED,
    Outcome.FAILED: job_pb2.ATTEMPT_OUTCOME_FAILED,
    Outcome.TIMED_OUT: job_pb2.ATTEMPT_OUTCOME_TIMED_OUT,
    Outcome.HANDED_BACK: job_pb2.ATTEMPT_OUTCOME_HANDED_BACK,
    Outcome.SNOOZED: job_pb2.ATTEMPT_OUTCOME_HANDED_BACK,
    Outcome.SWEPT: job_pb2.ATTEMPT_OUTCOME_LOST,
    Outcome.LOST: job_pb2.ATTEMPT_OUTCOME_LOST,
    Outcome.CANCELLED: job_pb2.ATTEMPT_OUTCOME_CANCELLED,
}


def new_job_from_proto(message: orchestrator_service_pb2.NewJob, job_id: UUID) -> NewJob:
    """The record to write, under the id that was minted for it."""
    spec = message.spec
    return NewJob(
        id=job_id,
        namespace=message.namespace,
        type=spec.type,
        input=payload_from_proto(spec.input),
        priority=spec.priority,
        due_time=optional_datetime(spec, "schedule_time"),
        delay=optional_timedelta(spec, "delay"),
        expire_time=optional_datetime(spec, "expire_time"),
        timeouts=timeouts_from_proto(spec),
        retry=retry_from_proto(spec.retry_policy) if spec.HasField("retry_policy") else None,
        labels=dict(spec.labels) if spec.labels else NO_LABELS,
        idempotency_key=message.idempotency_key or None,
        request_hash=message.request_hash or None,
        traceparent=message.traceparent or None,
        concurrency_key=spec.concurrency_key or None,
    )


def job_to_proto(
    record: JobRecord, shard: str, *, data: bool = False, history: History = NO_HISTORY
) -> job_pb2.Job:
    """The row as callers see it; `data` includes the bytes of input and output."""
    job = job_pb2.Job()
    fill_job(job, record, shard, data=data, history=history)
    return job


def fill_job(
    job: job_pb2.Job,
    record: JobRecord,
    shard: str,
    *,
    data: bool = False,
    history: History = NO_HISTORY,
    id_text: str = "",
) -> None:
    """As `job_to_proto`, in place; whoever has the id as text may give it.

    Messages within messages are filled in place: made first and put in, each would be copied, and
    lists and watches make a thousand of these at a time.
    """
    job.id, job.namespace, job.shard = id_text or str(record.id), record.namespace, shard
    job.state, job.version = record.state, record.version  # type: ignore[assignment]
    _fill_spec(job.spec, record, data=data)
    set_time(job.create_time, record.create_time)
    set_time(job.due_time, record.due_time)
    if record.fence or record.failure is not None:
        _fill_outcome(job, record, data=data)
    if record.schedule:
        job.schedule = record.schedule
    if record.traceparent:
        job.traceparent = record.traceparent
    if record.nominal_time is not None:
        set_time(job.nominal_time, record.nominal_time)
    if record.end_time is not None:
        set_time(job.end_time, record.end_time)
    if record.origin_id is not None:
        job.origin_job_id = str(record.origin_id)
    if history is not NO_HISTORY:
        job.attempts.extend(attempt_to_proto(attempt) for attempt in history.attempts)
        job.end_note = history.end_note


def _fill_outcome(job: job_pb2.Job, record: JobRecord, *, data: bool) -> None:
    """What only a job has that was dispatched, or ended because of a parent."""
    job.attempt, job.dispatch_no, job.losses = record.attempt, record.fence, record.losses
    if record.worker_id:
        job.worker_id = record.worker_id
    if record.start_time is not None:
        set_time(job.start_time, record.start_time)
    if (output := payload_to_proto(record.output, data=data)) is not None:
        job.output.CopyFrom(output)
    if (failure := failure_to_proto(record.failure)) is not None:
        job.failure.CopyFrom(failure)
    if record.progress is not None:
        fill_progress(job.progress, record.progress)


def _fill_spec(spec: job_pb2.JobSpec, record: JobRecord, *, data: bool) -> None:
    spec.type = record.type
    if record.priority:
        spec.priority = record.priority
    set_time(spec.schedule_time, record.first_due_time)
    if (content := payload_to_proto(record.input, data=data)) is not None:
        spec.input.CopyFrom(content)
    if (policy := retry_to_proto(record.retry)) is not None:
        spec.retry_policy.CopyFrom(policy)
    if record.labels:
        spec.labels.update(record.labels)
    if record.concurrency_key is not None:
        spec.concurrency_key = record.concurrency_key
    if record.expire_time is not None:
        set_time(spec.expire_time, record.expire_time)
    if (timeouts := timeouts_to_proto(record.timeouts)) is not None:
        spec.timeouts.CopyFrom(timeouts)
    if record.unique_key or record.dependencies:
        fill_ties(spec, record)


def attempt_to_proto(attempt: Attempt) -> job_pb2.Attempt:
    return job_pb2.Attempt(
        attempt=attempt.number,
        dispatch_no=attempt.fence,
        worker_id=attempt.worker_id or "",
        dispatch_time=timestamp(attempt.dispatch_time),
        start_time=timestamp(attempt.start_time),
        end_time=timestamp(attempt.end_time),
        outcome=_OUTCOMES[attempt.outcome],
        failure=failure_to_proto(attempt.failure),
    )


def filter_from_proto(
    message: job_pb2.JobFilter, namespace: str, schedule_id: UUID | None = None
) -> JobFilter:
    """The filter; rows know schedules by id, so the caller looks up the name it may hold."""
    return JobFilter(
        namespace=namespace,
        states=frozenset(JobState(state) for state in message.states),
        types=frozenset(message.types),
        labels=dict(message.labels),
        created_after=optional_datetime(message, "create_time_from", "filter."),
        created_before=optional_datetime(message, "create_time_until", "filter."),
        schedule_id=schedule_id,
    )
