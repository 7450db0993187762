"""Messages to values and back, both directions side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from jobmesh.model import (
    Attempt,
    Failure,
    Job,
    JobEvent,
    JobState,
    LogLine,
    Progress,
    Schedule,
)
from jobmesh.v1 import job_pb2, schedule_pb2
from jobmesh.v1.enqueue_service_pb2 import LogLine as LogLineMessage
from jobmesh.v1.enqueue_service_pb2 import WatchJobsResponse

STATE_PREFIX = "JOB_STATE_"
SNAPSHOT = "SNAPSHOT"
PROGRESS = "PROGRESS"

_STATES: Mapping[int, JobState] = {
    number: JobState(name.removeprefix(STATE_PREFIX))
    for name, number in job_pb2.JobState.items()
    if name.removeprefix(STATE_PREFIX) in JobState.__members__
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}


# --- times and states


def to_datetime(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)


def to_timestamp(time: datetime, field: str) -> Timestamp:
    """The instant; ValueError if it has no time zone and so names none."""
    if time.tzinfo is None:
        raise ValueError(f"{field}: give a time with a time zone, {time!r} has none")
    message = Timestamp()
    message.FromDatetime(time)
    return message


def to_state(number: int) -> JobState:
    return _STATES.get(number, JobState.UNKNOWN)


def to_state_number(state: JobState | str) -> job_pb2.JobState.ValueType:
    """The wire's number of a state; ValueError names the choices."""
    try:
        return job_pb2.JobState.Value(STATE_PREFIX + JobState(state.upper()))
    except ValueError:
        known = ", ".join(state.lower() for state in _STATE_NUMBERS)
        raise ValueError(f"{state!r} is not a state: use one of {known}") from None


def _names(values: Iterable[tuple[str, int]], prefix: str) -> Mapping[int, str]:
    return {number: name.removeprefix(prefix) for name, number in values if number}


_REASONS = _names(job_pb2.EventReason.items(), "EVENT_REASON_")
_OUTCOMES = _names(job_pb2.AttemptOutcome.items(), "ATTEMPT_OUTCOME_")


# --- jobs


def to_failure(message: job_pb2.Failure) -> Failure:
    return Failure(
        message.type,
        message.message,
        message.traceback,
        message.permanent,
        message.exit_code if message.HasField("exit_code") else None,
    )


def to_attempt(message: job_pb2.Attempt) -> Attempt:
    return Attempt(
        attempt=message.attempt,
        dispatch_no=message.dispatch_no,
        worker_id=message.worker_id,
        dispatch_time=_time(message, "dispatch_time"),
        start_time=_time(message, "start_time"),
        end_time=_time(message, "end_time"),
        outcome=_OUTCOMES.get(message.outcome, ""),
        failure=to_failure(message.failure) if message.HasField("failure") else None,
    )


def to_progress(message: job_pb2.Progress) -> Progress:
    return Progress(message.done, message.total, message.message)


def to_log_line(message: LogLineMessage) -> LogLine:
    return LogLine(
        attempt=message.attempt,
        time=to_datetime(message.time) if message.HasField("time") else None,
        text=message.text,
        dispatch_no=message.dispatch_no,
        number=message.number,
        message=message,
    )


def to_job(message: job_pb2.Job) -> Job:
    return Job(
        id=message.id,
        namespace=message.namespace,
        type=message.spec.type,
        state=to_state(message.state),
        version=message.version,
        attempt=message.attempt,
        priority=message.spec.priority,
        labels=dict(message.spec.labels),
        create_time=_time(message, "create_time"),
        due_time=_time(message, "due_time"),
        start_time=_time(message, "start_time"),
        end_time=_time(message, "end_time"),
        worker_id=message.worker_id,
        schedule=message.schedule,
        nominal_time=_time(message, "nominal_time"),
        shard=message.shard,
        failure=to_failure(message.failure) if message.HasField("failure") else None,
        progress=to_progress(message.progress) if message.HasField("progress") else None,
        attempts=tuple(map(to_attempt, message.attempts)),
        message=message,
        end_note=message.end_note,
    )


def _time(message: job_pb2.Job | job_pb2.Attempt | job_pb2.JobEvent, field: str) -> datetime | None:
    return to_datetime(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]


def to_event(response: WatchJobsResponse) -> JobEvent:
    """A snapshot or a transition of a watch, or progress."""
    if response.HasField("snapshot"):
        return _from_snapshot(response)
    if response.HasField("progress"):
        return _from_progress(response)
    event = response.event
    return JobEvent(
        job_id=event.job_id,
        namespace=event.namespace,
        type=event.type,
        version=event.version,
        state=to_state(event.state),
        reason=_REASONS.get(event.reason, ""),
        time=_time(event, "time"),
        attempt=event.attempt,
        worker_id=event.worker_id,
        failure=to_failure(event.failure) if event.HasField("failure") else None,
        due_time=_time(event, "due_time"),
        job=None,
        message=response,
        note=event.note,
    )


def _from_snapshot(response: WatchJobsResponse) -> JobEvent:
    job = to_job(response.snapshot)
    return JobEvent(
        job_id=job.id,
        namespace=job.namespace,
        type=job.type,
        version=job.version,
        state=job.state,
        reason=SNAPSHOT,
        time=_snapshot_time(job),
        attempt=job.attempt,
        worker_id=job.worker_id,
        failure=job.failure,
        due_time=job.due_time,
        job=job,
        message=response,
    )


def _from_progress(response: WatchJobsResponse) -> JobEvent:
    said = response.progress
    return JobEvent(
        job_id=said.job_id,
        namespace=said.namespace,
        type=said.type,
        version=0,
        state=JobState.RUNNING,
        reason=PROGRESS,
        time=to_datetime(said.progress.update_time),
        attempt=said.attempt,
        worker_id="",
        failure=None,
        due_time=None,
        job=None,
        message=response,
        progress=to_progress(said.progress),
    )


def _snapshot_time(job: Job) -> datetime | None:
    """When the job came into the state it is in, as far as a job says."""
    if job.version == 1:
        return job.create_time
    return job.end_time or (job.start_time if job.state is JobState.RUNNING else None)


def to_filter(
    states: Iterable[JobState | str] = (),
    types: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    schedule: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> job_pb2.JobFilter:
    """Jobs that meet every condition; `since` and `until` bound when they were stored."""
    return job_pb2.JobFilter(
        states=[to_state_number(state) for state in states],
        types=list(types),
        labels=dict(labels or {}),
        schedule=schedule,
        create_time_from=None if since is None else to_timestamp(since, "since"),
        create_time_until=None if until is None else to_timestamp(until, "until"),
    )


# --- schedules


def to_schedule(message: schedule_pb2.Schedule) -> Schedule:
    return Schedule(
        name=message.name,
        namespace=message.namespace,
        type=message.template.type,
        rules=tuple(map(_rule, message.recurrences)),
        paused=message.paused,
        pause_note=message.pause_note,
        next_time=to_datetime(message.next_time) if message.HasField("next_time") else None,
        last_time=to_datetime(message.last_time) if message.HasField("last_time") else None,
        last_job_id=message.last_job_id,
        runs=message.runs,
        etag=message.etag,
        message=message,
    )


def _rule(recurrence: schedule_pb2.Recurrence) -> str:
    if recurrence.HasField("cron"):
        return f"cron {recurrence.cron.expression} {recurrence.cron.time_zone}".rstrip()
    every = recurrence.interval.every.ToNanoseconds() / 1e9
    phase = recurrence.interval.phase.ToNanoseconds() / 1e9
    return f"every {every:g}s" + (f" +{phase:g}s" if phase else "")
