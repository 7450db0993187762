"""Events: the public form, and the columns that travel as a hint."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from jobmesh.v1 import bus_pb2, job_pb2

from services.mesh.jobs.model import JobEvent
from services.mesh.wire.retries import failure_to_proto
from services.mesh.wire.values import micros_of, set_micros, timestamp

ID_BYTES = 16


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
    )


def hint(shard: str, events: Sequence[JobEvent]) -> bytes:
    """The payload of one hint message."""
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
            )
            for number, event in enumerate(events)
            if event.failure is not None or event.due_time is not None
        ],
    )
    batch.names.extend(names)
    return batch.SerializeToString()


def read_hint(payload: bytes, wanted: Container[bytes]) -> Iterator[job_pb2.JobEvent]:
    """The events of a hint whose job (as 16 bytes) is wanted. DecodeError if it is no hint."""
    batch = bus_pb2.EventBatch.FromString(payload)
    ids = batch.job_ids
    starts = range(0, len(batch.versions) * ID_BYTES, ID_BYTES)
    numbers = [at // ID_BYTES for at in starts if ids[at : at + ID_BYTES] in wanted]
    if not numbers:
        return
    columns = _Columns(batch)
    for number in numbers:
        yield columns.event(number)


class _Columns:
    """The columns of a batch as lists: looking into a repeated field costs ten times as much."""

    def __init__(self, batch: bus_pb2.EventBatch) -> None:
        names = list(batch.names)
        self._ids = batch.job_ids
        self._rows = list(
            zip(
                [names[place] for place in batch.namespaces],
                [names[place] for place in batch.types],
                batch.versions,
                batch.states,
                batch.reasons,
                batch.attempts,
                batch.dispatch_nos,
                [names[place] for place in batch.workers],
                batch.times_us,
                strict=True,
            )
        )
        self._details = {detail.event: detail for detail in batch.details}

    def event(self, number: int) -> job_pb2.JobEvent:
        event = job_pb2.JobEvent()
        event.job_id = _uuid_text(self._ids[number * ID_BYTES : (number + 1) * ID_BYTES])
        (
            event.namespace,
            event.type,
            event.version,
            event.state,
            event.reason,
            event.attempt,
            event.dispatch_no,
            event.worker_id,
            micros,
        ) = self._rows[number]
        set_micros(event.time, micros)
        if number in self._details:
            self._add_detail(event, self._details[number])
        return event

    def _add_detail(self, event: job_pb2.JobEvent, detail: bus_pb2.EventDetail) -> None:
        if detail.HasField("failure"):
            event.failure.CopyFrom(detail.failure)
        if detail.due_time_us:
            set_micros(event.due_time, detail.due_time_us)


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
