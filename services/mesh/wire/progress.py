"""Progress: what running handlers say about their advance."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from uuid import UUID

from jobmesh.v1 import bus_pb2, job_pb2

from services.mesh.jobs.model import JobProgress, Progress
from services.mesh.wire.values import datetime_of, set_time, storable

#: The contract's bound.
MAX_MESSAGE = 1000


def progress_from_proto(message: job_pb2.Progress) -> Progress | None:
    """None for what makes no sense."""
    try:
        time = datetime_of(message.update_time)
    except ValueError:
        return None
    if not math.isfinite(message.done) or not math.isfinite(message.total):
        return None
    return Progress(message.done, message.total, storable(message.message)[:MAX_MESSAGE], time)


def fill_progress(message: job_pb2.Progress, progress: Progress) -> None:
    message.done, message.total = progress.done, progress.total
    message.message = progress.message
    set_time(message.update_time, progress.time)


def progress_batch(said: Sequence[JobProgress]) -> bytes:
    """The payload of one message on the broker."""
    batch = bus_pb2.ProgressBatch()
    for one in said:
        message = batch.progress.add(
            job_id=str(one.job_id), namespace=one.namespace, type=one.type, attempt=one.attempt
        )
        fill_progress(message.progress, one.progress)
    return batch.SerializeToString()


def read_progress(payload: bytes, wanted: Container[bytes]) -> Iterator[job_pb2.JobProgress]:
    """The progress of jobs whose id (as 16 bytes) is wanted. DecodeError if it is no batch."""
    for said in bus_pb2.ProgressBatch.FromString(payload).progress:
        if UUID(said.job_id).bytes in wanted:
            yield said
