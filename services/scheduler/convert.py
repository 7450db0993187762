"""Between the wire and the scheduler's own records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from google.protobuf.message import DecodeError
from jobmesh.v1 import bus_pb2, scheduler_service_pb2

from services.mesh.jobs.model import Claimed, EventColumns
from services.mesh.jobs.states import Cause, JobState
from services.mesh.wire.events import hint_of_columns
from services.mesh.wire.values import duration, micros_of, timestamp
from services.scheduler.domain.views import TickReport, View
from services.scheduler.domain.word import Served, Word

# --- the broker


def nudge_from_bytes(payload: bytes, type_: str) -> Word:
    """Read a nudge that came on the subject of `type_`."""
    try:
        message = bus_pb2.Nudge.FromString(payload)
    except DecodeError as error:
        raise ValueError(f"not a nudge: {error}") from error
    types = list(message.types) or [type_]
    return Word(
        message.shard,
        types,
        message.due_time_us,
        message.more,
        message.schedule,
        message.long_due,
        message.number,
        message.lend_at,
    )


def nudge_to_bytes(
    shard: str, types: Sequence[str], first: datetime | None = None, *, long_due: bool = False
) -> bytes:
    """Work that is due, some of it for long; or, with `first`, soon: from then on, at times that
    are not named.
    """
    nudge = bus_pb2.Nudge(shard=shard, types=types, long_due=long_due)
    if first is not None:
        nudge.due_time_us, nudge.more = micros_of(first), True
    return nudge.SerializeToString()


def served_from_bytes(payload: bytes) -> Served:
    """Read another scheduler's word that work was taken."""
    try:
        message = bus_pb2.Served.FromString(payload)
    except DecodeError as error:
        raise ValueError(f"no word of work that was taken: {error}") from error
    return Served(message.type, message.shard, frozenset(message.nudges))


def served_to_bytes(served: Served) -> bytes:
    return bus_pb2.Served(
        type=served.type, shard=served.shard, nudges=served.nudges
    ).SerializeToString()


def stop_to_bytes(job_id: UUID, fence: int) -> bytes:
    attempt = bus_pb2.CancelledAttempt(job_id=job_id.bytes, dispatch_no=fence)
    return bus_pb2.CancelHint(attempts=[attempt]).SerializeToString()


def claims_to_hint(shard: str, worker_id: str, jobs: Sequence[Claimed]) -> bytes:
    """What was committed with the claims, for whoever watches."""
    count = len(jobs)
    events = EventColumns(
        keys=[job.id.bytes for job in jobs],
        versions=[job.version for job in jobs],
        states=[JobState.DISPATCHED] * count,
        causes=[Cause.CLAIMED] * count,
        times_us=[micros_of(job.dispatch_time) for job in jobs],
        attempts=[job.attempt for job in jobs],
        fences=[job.fence for job in jobs],
        namespaces=[job.namespace for job in jobs],
        types=[job.type for job in jobs],
        workers=[worker_id] * count,
    )
    return hint_of_columns(shard, events)


# --- SchedulerService


def view_to_proto(view: View) -> scheduler_service_pb2.SchedulerServiceDescribeResponse:
    return scheduler_service_pb2.SchedulerServiceDescribeResponse(
        scheduler_id=view.scheduler_id,
        members=view.members,
        shards=[
            scheduler_service_pb2.ShardDuty(
                shard=shard.shard,
                slot_end_time=timestamp(shard.slot_end),
                waiting=shard.waiting,
                slot_lag=duration(timedelta(seconds=shard.lag)),
                last_error=shard.error,
            )
            for shard in view.shards
        ],
        parked=[
            scheduler_service_pb2.ParkedCredit(
                worker_id=grab.worker_id, type=grab.type, credit=grab.credit
            )
            for grab in view.parked
        ],
        paused_types=view.paused,
    )


def tick_to_proto(report: TickReport) -> scheduler_service_pb2.TickResponse:
    counts = report.counts
    return scheduler_service_pb2.TickResponse(
        grabbed=counts.get("grabbed", 0),
        due_types=sorted(report.due_types),
        fired=counts.get("fired", 0),
        swept=counts.get("swept", 0),
        rescued=counts.get("rescued", 0),
        expired=counts.get("expired", 0),
        released=counts.get("released", 0),
    )
