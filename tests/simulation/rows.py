"""A job as the model of a shard has it, and as its statements tell of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from services.mesh.jobs.model import NO_PAYLOAD, Claimed, JobEvent, JobRecord, NewJob, Payload
from services.mesh.jobs.retry import Failure, RetryPolicy
from services.mesh.jobs.states import JobState


@dataclass(slots=True)
class Row:
    """A job as the shard has it."""

    new: NewJob
    due_time: datetime
    first_due_time: datetime
    create_time: datetime
    state: JobState = JobState.SCHEDULED
    version: int = 1
    fence: int = 0
    attempt: int = 0
    losses: int = 0
    worker_id: str | None = None
    dispatch_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    output: Payload = NO_PAYLOAD
    failure: Failure | None = None
    events: list[JobEvent] = field(default_factory=list)

    @property
    def policy(self) -> RetryPolicy | None:
        return self.new.retry


def in_line(row: Row) -> tuple[int, datetime, int]:
    """By which rows stand in the queue."""
    return -row.new.priority, row.due_time, row.new.id.int


def claimed(row: Row) -> Claimed:
    """What a claim returns of it."""
    new = row.new
    assert row.dispatch_time is not None
    return Claimed(
        id=new.id,
        namespace=new.namespace,
        type=new.type,
        fence=row.fence,
        attempt=row.attempt,
        max_attempts=new.retry.attempts if new.retry else 1,
        due_time=row.due_time,
        dispatch_time=row.dispatch_time,
        timeouts=new.timeouts,
        input=new.input,
        traceparent=None,
        version=row.version,
    )


def record(row: Row) -> JobRecord:
    """What a look at it returns."""
    new = row.new
    return JobRecord(
        id=new.id,
        namespace=new.namespace,
        type=new.type,
        state=row.state,
        version=row.version,
        priority=new.priority,
        attempt=row.attempt,
        losses=row.losses,
        fence=row.fence,
        worker_id=row.worker_id,
        due_time=row.due_time,
        first_due_time=row.first_due_time,
        create_time=row.create_time,
        dispatch_time=row.dispatch_time,
        start_time=row.start_time,
        end_time=row.end_time,
        expire_time=new.expire_time,
        timeouts=new.timeouts,
        retry=new.retry,
        labels=new.labels,
        input=new.input,
        output=replace(row.output),
        failure=row.failure,
        idempotency_key=new.idempotency_key,
        traceparent=None,
        schedule_id=None,
        nominal_time=None,
        origin_id=None,
    )
