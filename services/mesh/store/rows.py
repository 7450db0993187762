"""Rows to records. The order of the columns is that of the fragments in `queries.sql`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.mesh.jobs.model import (
    NO_LABELS,
    NO_PAYLOAD,
    NO_TIMEOUTS,
    JobEvent,
    JobRecord,
    ObjectRef,
    Payload,
    Position,
    Progress,
    Timeouts,
)
from services.mesh.jobs.retry import Failure, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, UniquePolicy
from services.mesh.store.connection import Row

# Tables are faster than calling the enum, and these run once per event.
STATES: tuple[JobState, ...] = tuple(JobState(number) for number in range(len(JobState)))
CAUSES: tuple[Cause, ...] = tuple(Cause(number) for number in range(len(Cause)))


def to_json(value: Any) -> str | None:
    """A record as JSON text, None for None and for what is empty."""
    return json.dumps(value.to_json(), separators=(",", ":")) if value else None


def labels_to_json(labels: Mapping[str, str]) -> str | None:
    """Labels as JSON text, None for none."""
    return json.dumps(dict(labels), separators=(",", ":")) if labels else None


def dependencies_to_json(dependencies: Sequence[Dependency]) -> str | None:
    """Dependencies as JSON text, None for none."""
    if not dependencies:
        return None
    return json.dumps([one.to_json() for one in dependencies], separators=(",", ":"))


def payload(
    content_type: str | None, ref: Mapping[str, Any] | None, size: int | None, data: bytes | None
) -> Payload:
    """A payload from its columns."""
    if ref is not None:
        return Payload.stored(ObjectRef.from_json(ref), content_type or "")
    if size is None:
        return Payload(content_type) if content_type else NO_PAYLOAD
    return Payload(content_type or "", data, None, size)


def job_record(row: Row) -> JobRecord:
    """The fragment `job_columns`, then the bytes of input and output, then perhaps the progress."""
    job_id, namespace, type_, state, version, priority, attempt, losses, fence = row[:9]
    worker_id, due_time, first_due_time, create_time, dispatch_time, start_time = row[9:15]
    end_time, expire_time, timeouts, retry, labels, failure, key, traceparent = row[15:23]
    schedule_id, nominal_time, origin_id, in_type, in_ref, in_size, out_type, out_ref = row[23:31]
    out_size, schedule, concurrency_key, unique_key, unique_policy, dependencies = row[31:37]
    input_, output = row[37:39]
    # By place, in the order of the record: thirty keywords cost as much as all the rest.
    return JobRecord(
        job_id,
        namespace,
        type_,
        STATES[state],
        version,
        priority,
        attempt,
        losses,
        fence,
        worker_id,
        due_time,
        first_due_time,
        create_time,
        dispatch_time,
        start_time,
        end_time,
        expire_time,
        NO_TIMEOUTS if timeouts is None else Timeouts.from_json(timeouts),
        None if retry is None else RetryPolicy.from_json(retry),
        labels or NO_LABELS,
        payload(in_type, in_ref, in_size, input_),
        payload(out_type, out_ref, out_size, output),
        failure_of(failure),
        key,
        traceparent,
        schedule_id,
        nominal_time,
        origin_id,
        schedule or "",
        Progress(*row[39:]) if len(row) > 39 and row[39] is not None else None,
        concurrency_key,
        unique_key or "",
        None if unique_policy is None else UniquePolicy(unique_policy),
        tuple(map(Dependency.from_json, dependencies)) if dependencies else (),
    )


def job_event(row: Row, position: Position | None = None) -> JobEvent:
    """The fragment `event_columns`."""
    job_id, version, state, cause, time, attempt, fence, worker_id, due_time = row[:9]
    failure, note, namespace, type_, labels = row[9:]
    return JobEvent(
        job_id=job_id,
        version=version,
        state=STATES[state],
        cause=CAUSES[cause],
        time=time,
        attempt=attempt,
        fence=fence,
        worker_id=worker_id,
        due_time=due_time,
        failure=failure_of(failure),
        note=note,
        namespace=namespace,
        type=type_,
        labels=labels or NO_LABELS,
        position=position,
    )


def failure_of(data: Mapping[str, Any] | None) -> Failure | None:
    """A failure from its column."""
    return None if data is None else Failure.from_json(data)
