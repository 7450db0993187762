"""Events: the public form, and the columns that travel as a hint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jobmesh.v1 import bus_pb2, job_pb2

from services.mesh.jobs.model import EventColumns, JobEvent
from services.mesh.wire.retries import failure_to_proto
from services.mesh.wire.values import micros_of, set_micros, timestamp

ID_BYTES = 16
#: States of the wire that nothing follows.
TERMINAL = frozenset(
    {
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_STATE_CANCELLED,
        job_pb2.JOB_STATE_EXPIRED,
    }
)


def event_to_proto(event: JobEvent) -> job_pb2.JobEvent:
    return job_pb2.JobEvent(
        job_id=str(event.job_id),
        namespace=event.namespace,
        type=event.type,
        version=event.version,
        state=job_pb2.JobState.ValueType(event.state),
        reason=job_pb2.EventReason.ValueType(event.cause),
        time=timestamp(event.time),
        attempt=event.attempt,
        dispatch_no=event.fence,
        worker_id=event.worker_id or "",
        failure=failure_to_proto(event.failure),
        due_time=timestamp(event.due_time),
        labels=event.labels,
        note=event.note or "",
    )


def hint(shard: str, events: Sequence[JobEvent]) -> bytes:
    """The payload of one hint message."""
    return event_batch(shard, events).SerializeToString()


def hints(shard: str, events: Sequence[JobEvent], most_bytes: int) -> Iterator[bytes]:
    """The payloads of as many hint messages as it takes, none larger than that but for one event
    that is."""
    payload, half = hint(shard, events), len(events) // 2
    if len(payload) <= most_bytes or not half:
        yield payload
        return
    yield from hints(shard, events[:half], most_bytes)
    yield from hints(shard, events[half:], most_bytes)


def event_batch(shard: str, events: Sequence[JobEvent]) -> bus_pb2.EventBatch:
    """Transitions of one shard, in columns."""
    names: dict[str, int] = {"": 0}
    batch = bus_pb2.EventBatch(
        shard=shard,
        job_ids=b"".join([event.job_id.bytes for event in events]),
        versions=[event.version for event in events],
        states=[event.state for event in events],  # type: ignore[misc]  # the numbers are the wire's
        reasons=[event.cause for event in events],  # type: ignore[misc]
        times_us=[micros_of(event.time) for event in events],
        attempts=[event.attempt for event in events],
        dispatch_nos=[event.fence for event in events],
        namespaces=[names.setdefault(event.namespace, len(names)) for event in events],
        types=[names.setdefault(event.type, len(names)) for event in events],
        workers=[names.setdefault(event.worker_id or "", len(names)) for event in events],
        details=[
            bus_pb2.EventDetail(
                event=number,
                failure=failure_to_proto(event.failure),
                due_time_us=micros_of(event.due_time),
                note=event.note or "",
            )
            for number, event in enumerate(events)
            if event.failure is not None or event.due_time is not None or event.note
        ],
    )
    batch.names.extend(names)
    return batch


def hint_of_columns(shard: str, events: EventColumns) -> bytes:
    """As `hint`."""
    names: dict[str, int] = {"": 0}
    batch = bus_pb2.EventBatch(
        shard=shard,
        job_ids=b"".join(events.keys),
        versions=events.versions,
        states=events.states,  # type: ignore[arg-type]  # the numbers are the wire's
        reasons=events.causes,  # type: ignore[arg-type]
        times_us=events.times_us,
        attempts=events.attempts,
        dispatch_nos=events.fences,
        namespaces=_places(events.namespaces, names),
        types=_places(events.types, names),
        workers=_places(events.workers, names),
    )
    batch.names.extend(names)
    return batch.SerializeToString()


def _places(column: list[str], names: dict[str, int]) -> list[int]:
    """The place of each among the names, to which new ones are added."""
    if column.count(column[0]) == len(column):
        return [names.setdefault(column[0], len(names))] * len(column)
    return [names.setdefault(name, len(names)) for name in column]


class HintedEvent(NamedTuple):
    """One transition of a hint. It becomes a message only when it is delivered, in its place."""

    job_id: str
    namespace: str
    type: str
    version: int
    state: job_pb2.JobState.ValueType
    reason: job_pb2.EventReason.ValueType
    attempt: int
    dispatch_no: int
    worker_id: str
    time_us: int
    detail: bus_pb2.EventDetail | None

    def fill(self, event: job_pb2.JobEvent) -> None:
        """Write it into a message that is empty."""
        (
            event.job_id,
            event.namespace,
            event.type,
            event.version,
            event.state,
            event.reason,
            event.attempt,
            event.dispatch_no,
            event.worker_id,
            micros,
            detail,
        ) = self
        set_micros(event.time, micros)
        if detail is not None:
            _add_detail(event, detail)


def read_hint(
    payload: bytes, wanted: Mapping[bytes, str], *, ends_only: bool = False
) -> list[HintedEvent]:
    """The events of a hint whose job is wanted: its id as 16 bytes, and as text; or only those that
    ended jobs. DecodeError, or IndexError or ValueError where its columns do not fit, if it is no
    hint.
    """
    return read_event_batch(bus_pb2.EventBatch.FromString(payload), wanted, ends_only=ends_only)


def read_event_batch(
    batch: bus_pb2.EventBatch, wanted: Mapping[bytes, str], *, ends_only: bool = False
) -> list[HintedEvent]:
    """As `read_hint`, of a batch that came otherwise."""
    ids = batch.job_ids
    starts = range(0, len(batch.versions) * ID_BYTES, ID_BYTES)
    if ends_only:
        jobs = [
            wanted.get(ids[at : at + ID_BYTES]) if state in TERMINAL else None
            for at, state in zip(starts, batch.states, strict=True)
        ]
    else:
        jobs = [wanted.get(ids[at : at + ID_BYTES]) for at in starts]
    if not any(jobs):
        return []
    names = list(batch.names)
    rows = zip(
        jobs,
        [names[place] for place in batch.namespaces],
        [names[place] for place in batch.types],
        batch.versions,
        batch.states,
        batch.reasons,
        batch.attempts,
        batch.dispatch_nos,
        [names[place] for place in batch.workers],
        batch.times_us,
        _details(batch, jobs),
        strict=True,
    )
    make = HintedEvent._make
    return [make(row) for row in rows if row[0] is not None]


def _details(
    batch: bus_pb2.EventBatch, jobs: Sequence[str | None]
) -> list[bus_pb2.EventDetail | None]:
    details: list[bus_pb2.EventDetail | None] = [None] * len(jobs)
    for detail in batch.details:
        if jobs[detail.event] is not None:
            # A copy: as a part of the batch it would keep all of that in memory.
            details[detail.event] = copy = bus_pb2.EventDetail()
            copy.CopyFrom(detail)
    return details


def _add_detail(event: job_pb2.JobEvent, detail: bus_pb2.EventDetail) -> None:
    if detail.HasField("failure"):
        event.failure.CopyFrom(detail.failure)
    if detail.due_time_us:
        set_micros(event.due_time, detail.due_time_us)
    event.note = detail.note
