"""Grabs and what answers them: a worker's room, and the jobs that are handed to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError
from jobmesh.v1 import bus_pb2

from services.mesh.jobs.alike import AlikeClaimed
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import NO_TIMEOUTS, Claimed
from services.mesh.wire.payloads import payload_to_proto
from services.mesh.wire.values import duration, micros_of

#: So few jobs are written as messages, whether they are alike or not.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Sender:
    """Who hands jobs out, and by which clock some of them wait."""

    id: str
    most_bytes: int
    """What the broker takes in one message."""
    now_us: int = 0
    clock: int = 0
    grab_at: str = ""
    """Where the worker should send its next grab; empty: to any scheduler."""
    more: bool = False
    """The grab is not answered by this: it may bring more."""


def grab_from_bytes(payload: bytes, inbox: str) -> Grab:
    """Read a worker's grab; anything that is not one is a ValueError."""
    return loan_from_bytes(payload, inbox)[0]


def loan_from_bytes(payload: bytes, inbox: str) -> tuple[Grab, float]:
    """A grab as an Orchestrator gets it, and for how long it may keep grabs of the type; 0 if the
    worker sent it itself.
    """
    try:
        message = bus_pb2.Grab.FromString(payload)
    except DecodeError as error:
        raise ValueError(f"not a grab: {error}") from error
    if not message.worker_id or not message.type or not inbox:
        raise ValueError("a grab names its worker, its type and where to answer")
    grab = Grab(
        message.worker_id,
        message.type,
        message.credit,
        message.grab_no,
        inbox,
        message.waits,
        message.columns,
        message.lend_at,
    )
    return grab, message.loan_ms / 1000


def grab_to_bytes(grab: Grab, loan_seconds: float = 0.0) -> bytes:
    """A grab as its worker sent it, to be passed on."""
    return bus_pb2.Grab(
        worker_id=grab.worker_id,
        type=grab.type,
        credit=grab.credit,
        grab_no=grab.number,
        waits=grab.waits,
        columns=grab.columns,
        lend_at=grab.lend_at,
        loan_ms=round(loan_seconds * 1000),
    ).SerializeToString()


def withdrawal_from_bytes(payload: bytes) -> Grab:
    """A grab that is taken back: it offers nothing, and there is nothing to answer."""
    return replace(grab_from_bytes(payload, inbox="none"), credit=0)


def empty_batch(grab: Grab, sender_id: str, *, draining: bool, grab_at: str = "") -> bytes:
    """Nothing became due: the worker grabs anew, there if a place is named."""
    return bus_pb2.DispatchBatch(
        type=grab.type,
        grab_no=grab.number,
        scheduler_id=sender_id,
        draining=draining,
        grab_at=grab_at,
    ).SerializeToString()


def dispatch_batches(grab: Grab, jobs: Sequence[Claimed], sender: Sender) -> Iterator[bytes]:
    """The jobs as one message, or as a few where one would be larger than the broker takes."""
    batch = bus_pb2.DispatchBatch(
        type=grab.type,
        grab_no=grab.number,
        scheduler_id=sender.id,
        now_us=sender.now_us,
        clock=sender.clock,
        grab_at=sender.grab_at,
        more=sender.more,
    )
    if not (grab.columns and _add_columns(batch, jobs)):
        for job in jobs:
            # Filled in place: a message made first and put into the list is copied, which doubles
            # the cost.
            _fill(batch.dispatches.add(), job)
    encoded = batch.SerializeToString()
    if len(encoded) <= sender.most_bytes or len(jobs) == 1:
        yield encoded
        return
    half = len(jobs) // 2
    # Only the last one may answer the grab: its worker grabs anew when it has heard of all.
    yield from dispatch_batches(grab, jobs[:half], replace(sender, more=True))
    yield from dispatch_batches(grab, jobs[half:], sender)


def _add_columns(batch: bus_pb2.DispatchBatch, jobs: Sequence[Claimed]) -> bool:
    """Write what the jobs have in common once; False if they differ in too much."""
    if isinstance(jobs, AlikeClaimed):
        _fill_columns(batch.alike, jobs.like, jobs.keys, jobs.inputs)
        return True
    if len(jobs) < _FEW or not _are_alike(jobs):
        return False
    keys = [job.id.bytes for job in jobs]
    inputs = [job.input.data or b"" for job in jobs]
    _fill_columns(batch.alike, jobs[0], keys, inputs)
    if any(job.due_time != jobs[0].due_time for job in jobs):
        batch.alike.due_times_us.extend(micros_of(job.due_time) for job in jobs)
    return True


def _are_alike(jobs: Sequence[Claimed]) -> bool:
    """Whether they differ in their ids, due times and the bytes of their inputs only."""
    first = jobs[0]
    if first.checkpoint is not None or first.input.ref is not None:
        return False
    common = _common(first)
    return all(_common(job) == common for job in jobs)


def _common(job: Claimed) -> tuple[object, ...]:
    given = job.input
    return (
        job.namespace,
        job.fence,
        job.attempt,
        job.max_attempts,
        job.timeouts,
        job.traceparent,
        job.total_left,
        job.checkpoint,
        job.limits,
        given.content_type,
        given.ref,
        given.data is None,
    )


def _fill_columns(
    columns: bus_pb2.DispatchColumns, like: Claimed, keys: Sequence[bytes], inputs: Sequence[bytes]
) -> None:
    _fill(columns.like, like)
    columns.like.ClearField("job_id")
    columns.job_ids = b"".join(keys)
    if like.input.data is not None:
        columns.like.input.ClearField("data")
        columns.inputs.extend(inputs)


def _fill(message: bus_pb2.Dispatch, job: Claimed) -> None:
    # Field by field, for keywords cost more.
    message.job_id = job.id.bytes
    message.namespace = job.namespace
    message.dispatch_no = job.fence
    message.attempt = job.attempt
    message.due_time_us = micros_of(job.due_time)
    message.max_attempts = job.max_attempts
    if job.traceparent:
        message.traceparent = job.traceparent
    if job.timeouts is not NO_TIMEOUTS:
        _add_timeouts(message, job)
    if job.checkpoint is not None:
        message.checkpoint.data = job.checkpoint.data or b""
        message.checkpoint.content_type = job.checkpoint.content_type
    given = job.input
    if given.ref is None and given.data is not None:
        content = message.input
        content.data = given.data
        content.content_type = given.content_type
    elif (stored := payload_to_proto(given)) is not None:
        message.input.CopyFrom(stored)
    for limit in job.limits:
        message.limits.add(name=limit.name, places=limit.places)


def _add_timeouts(message: bus_pb2.Dispatch, job: Claimed) -> None:
    if (run := duration(job.timeouts.run)) is not None:
        message.run_timeout.CopyFrom(run)
    if (silence := duration(job.timeouts.progress)) is not None:
        message.progress_timeout.CopyFrom(silence)
    if (left := duration(job.total_left)) is not None:
        message.total_left.CopyFrom(left)
