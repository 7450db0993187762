"""Wire to use cases and back, for the Orchestrator's own messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

from google.protobuf.message import Message
from jobmesh.v1 import bus_pb2, job_pb2, topology_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField, MeshError, OutcomeUnknown, ShardUnavailable
from services.mesh.jobs import ids
from services.mesh.jobs.alike import Keyed
from services.mesh.jobs.health import Health
from services.mesh.jobs.model import JobEvent, NewJob, Position
from services.mesh.jobs.states import JobState
from services.mesh.jobs.topology import BucketMap, ShardState
from services.mesh.rpc.items import to_item_error
from services.mesh.store.answers import (
    CancelOutcome,
    CancelResult,
    EventPage,
    PutOutcome,
    PutResult,
)
from services.mesh.wire.events import ID_BYTES, event_batch, event_to_proto
from services.mesh.wire.jobs import fill_job, job_to_proto, new_job_from_proto
from services.mesh.wire.ties import ties_from_proto
from services.mesh.wire.values import duration, micros_of, set_time, timestamp
from services.orchestrator.app.alike import AlikeOutcome
from services.orchestrator.app.lookup import Found
from services.orchestrator.app.parents import Wish
from services.orchestrator.app.shards import ShardView
from services.orchestrator.app.stats import Load, TypeLoad
from services.orchestrator.app.storing import Outcome, Stored
from services.orchestrator.app.submission import Draft

M = TypeVar("M", bound=Message)

#: What became of the jobs of one group, by parts.
AlikeGroup = Sequence[AlikeOutcome]

FULL = job_pb2.JOB_VIEW_FULL
NO_ID = UUID(int=0)
HASH_BYTES = 32
#: Of what may be told in several answers, one holds so many bytes: a page of failures with long
#: tracebacks is larger than a message may be.
MOST_BYTES = 8 * 1024**2

_HEALTH = {
    Health.HEALTHY: topology_pb2.SHARD_HEALTH_HEALTHY,
    Health.SUSPECT: topology_pb2.SHARD_HEALTH_SUSPECT,
    Health.AWAY: topology_pb2.SHARD_HEALTH_AWAY,
}
_STATES = {
    ShardState.ACTIVE: topology_pb2.SHARD_STATE_ACTIVE,
    ShardState.DRAINING: topology_pb2.SHARD_STATE_DRAINING,
}


def job_id_from(text: str, field: str) -> UUID:
    """A job id, or InvalidField: an id that this mesh cannot have made is refused here."""
    try:
        return ids.parse(text)
    except ValueError as error:
        raise InvalidField(field, "expected a job id as this service returned it") from error


def draft_from_proto(message: pb.NewJob) -> Draft:
    key = (message.namespace, message.idempotency_key) if message.idempotency_key else None
    build, spec = partial(new_job_from_proto, message), message.spec
    if not (spec.dependencies or spec.unique_key):
        return Draft(message.namespace, key, spec.type, build)
    if spec.unique_key:
        # One shard must decide who holds it; a repeated call finds its job there, too.
        key = (message.namespace, spec.unique_key)
    return Draft(
        message.namespace, key, spec.type, build, Wish(message.namespace, ties_from_proto(spec))
    )


def count_of(request: pb.PutJobsRequest) -> int:
    """How many jobs a put has."""
    groups = (*request.groups, *request.keyed)
    return len(request.jobs) + sum(len(group.inputs) for group in groups)


#: Jobs that are alike: what they have in common (their ids are minted later), their inputs, and
#: their keys if they have any.
Alike = tuple[NewJob, Sequence[bytes], Keyed | None]


def alike_from_proto(group: pb.AlikeJobs) -> Alike:
    return new_job_from_proto(group.like, NO_ID), group.inputs, None


def keyed_from_proto(group: pb.AlikeJobs) -> Alike:
    """As `alike_from_proto`, with keys; InvalidField if they do not fit."""
    keys, hashes = group.idempotency_keys, group.request_hashes
    if not len(group.inputs) == len(keys) == len(hashes) / HASH_BYTES:
        raise InvalidField("keyed", "expected an input, a key and a hash for each job")
    starts = range(0, len(hashes), HASH_BYTES)
    keyed = Keyed(list(keys), [hashes[at : at + HASH_BYTES] for at in starts])
    return new_job_from_proto(group.like, NO_ID), group.inputs, keyed


def put_answer_to_proto(
    outcomes: Sequence[Outcome], request: pb.PutJobsRequest, alike: Sequence[AlikeGroup] = ()
) -> pb.PutJobsResponse:
    """Columns for jobs that were stored as most are, where the caller reads them."""
    response = _some_answered(outcomes, request)
    first = len(outcomes)
    is_all = len(alike) == 1 and len(alike[0]) == 1 and not outcomes
    for group in alike:
        told: dict[int, Outcome] = {}
        for part in group:
            if isinstance(part.stored, list):
                told |= zip(part.places, part.stored, strict=True)
                continue
            response.stored.add(
                shard=part.stored.shard,
                create_time_us=micros_of(part.stored.time),
                job_ids=b"".join(part.stored.keys),
                handed=part.stored.handed,
                places=() if is_all else [first + at for at in part.places],
            )
        for place in sorted(told):
            fill_put_result(response.results.add(), told[place], brief=request.brief)
        first += sum(len(part.places) for part in group)
    return response


def _some_answered(outcomes: Sequence[Outcome], request: pb.PutJobsRequest) -> pb.PutJobsResponse:
    response = pb.PutJobsResponse()
    is_all = not (request.groups or request.keyed)
    groups: dict[tuple[str, datetime], list[int]] = {}
    for place, outcome in enumerate(outcomes):
        if request.columns and isinstance(outcome, Stored) and _is_plain(outcome.result):
            key = outcome.shard, outcome.result.create_time
            groups.setdefault(key, []).append(place)
        else:
            fill_put_result(response.results.add(), outcome, brief=request.brief)
    for (shard, time), places in groups.items():
        response.stored.add(
            shard=shard,
            create_time_us=micros_of(time),
            job_ids=b"".join([outcomes[at].result.job_id.bytes for at in places]),  # type: ignore[union-attr]
            places=() if is_all and len(places) == len(outcomes) else places,
        )
    return response


def _is_plain(result: PutResult) -> bool:
    return (
        result.outcome is PutOutcome.CREATED
        and result.state is JobState.SCHEDULED
        and result.due_time == result.create_time
    )


def fill_put_result(into: pb.PutJobResult, outcome: Outcome, *, brief: bool) -> None:
    """In place: a message made first and put into its field is copied."""
    if not isinstance(outcome, Stored):
        into.error.CopyFrom(to_item_error(outcome))
        return
    result, job = outcome.result, into.job
    job.id = str(result.job_id)
    into.existing = result.outcome is not PutOutcome.CREATED
    if not brief:
        job.state = job_pb2.JobState.ValueType(result.state)
        job.version = result.version
        set_time(job.create_time, result.create_time)
        set_time(job.due_time, result.due_time)
        job.shard = outcome.shard


def found_to_proto(found: Found, *, full: bool) -> job_pb2.Job:
    return job_to_proto(found.record, found.shard, data=full, history=found.history)


def awaited_to_proto(found: Found | UUID) -> job_pb2.Job:
    """A job that another one waits for; of one whose shard is away, the id."""
    if isinstance(found, UUID):
        return job_pb2.Job(id=str(found))
    return found_to_proto(found, full=False)


def job_ids_from(texts: Iterable[str]) -> list[UUID]:
    """As `job_id_from`, for the field `job_ids`."""
    try:
        return [ids.parse(text) for text in texts]
    except ValueError:
        return [job_id_from(text, f"job_ids[{n}]") for n, text in enumerate(texts)]


def job_keys_from(data: bytes) -> list[bytes]:
    """Ids of 16 bytes each, one after the other."""
    if len(data) % ID_BYTES:
        raise InvalidField("job_ids", f"expected {ID_BYTES} bytes for each job")
    return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


def fill_get_result(
    result: pb.GetJobResult, id_text: str, found: Found | MeshError, *, full: bool
) -> None:
    if isinstance(found, MeshError):
        result.error.CopyFrom(to_item_error(found))
    else:
        record, shard, history = found.record, found.shard, found.history
        fill_job(result.job, record, shard, data=full, history=history, id_text=id_text)


def cancel_result_to_proto(
    result: CancelResult | MeshError, found: Found | MeshError
) -> pb.CancelJobResult:
    if isinstance(result, MeshError):
        return pb.CancelJobResult(error=to_item_error(result))
    cancelled = result.outcome is CancelOutcome.CANCELLED
    if cancelled and isinstance(found, ShardUnavailable):
        found = OutcomeUnknown(found.metadata["shard"])  # it is cancelled: not to be denied
    if isinstance(found, MeshError):
        return pb.CancelJobResult(error=to_item_error(found))
    return pb.CancelJobResult(job=found_to_proto(found, full=False), cancelled=cancelled)


def position_from(request: pb.ListShardEventsRequest) -> Position | None:
    after = request.after
    return Position(after.xid, after.number) if request.HasField("after") else None


def position_to_proto(position: Position) -> pb.EventPosition:
    return pb.EventPosition(xid=position.xid, number=position.number)


def first_of(messages: Iterable[M]) -> list[M]:
    """As many as one answer holds, and at least one."""
    first: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize()
        if first and size > MOST_BYTES:
            break
        first.append(message)
    return first


def ends_to_proto(by_shard: Mapping[str, Sequence[JobEvent]]) -> list[bus_pb2.EventBatch]:
    """As many as one answer holds: who misses an end asks for it again."""
    batches: list[bus_pb2.EventBatch] = []
    size = 0
    for shard, events in by_shard.items():
        batch = event_batch(shard, events)
        while size + batch.ByteSize() > MOST_BYTES and len(events) > 1:
            events = events[: len(events) // 2]
            batch = event_batch(shard, events)
        size += batch.ByteSize()
        if batches and size > MOST_BYTES:
            break
        batches.append(batch)
    return batches


def event_page_to_proto(page: EventPage) -> pb.ListShardEventsResponse:
    placed = [(event, place) for event in page.events if (place := event.position) is not None]
    events = first_of(
        pb.ShardEvent(event=event_to_proto(event), position=position_to_proto(place))
        for event, place in placed
    )
    cut = len(events) < len(placed)
    last = events[-1].position if cut else None
    return pb.ListShardEventsResponse(
        events=events,
        next=last or position_to_proto(page.next),
        more=page.more or cut,
        truncated=page.truncated,
        next_xid=page.next_xid,
        lasting=last or position_to_proto(page.lasting),
    )


def load_to_proto(load: Load) -> pb.StatsResponse:
    return pb.StatsResponse(
        types=[_type_to_proto(stat) for stat in load.types],
        time=timestamp(load.time),
        missing_shards=load.missing,
    )


def _type_to_proto(stat: TypeLoad) -> pb.TypeStats:
    return pb.TypeStats(
        type=stat.type,
        backlog=stat.backlog,
        in_flight=stat.in_flight,
        oldest_age=duration(stat.oldest_age),
        next_due_time=timestamp(stat.next_due_time),
        capped=stat.capped,
    )


def topology_to_proto(
    bucket_map: BucketMap, views: Mapping[str, ShardView]
) -> topology_pb2.Topology:
    return topology_pb2.Topology(
        epoch=bucket_map.epoch,
        shards=[
            _shard_to_proto(bucket_map, shard.name, shard.state, views.get(shard.name))
            for shard in bucket_map.shards
        ],
    )


def _shard_to_proto(
    bucket_map: BucketMap, name: str, state: ShardState, view: ShardView | None
) -> topology_pb2.Shard:
    buckets = bucket_map.buckets_of(name)
    shard = topology_pb2.Shard(
        name=name, state=_STATES[state], bucket_count=len(buckets), buckets=_ranges(buckets)
    )
    if view is None:
        shard.health = topology_pb2.SHARD_HEALTH_AWAY
        shard.last_error = "this Orchestrator is not configured with the shard"
        return shard
    shard.health = _HEALTH[view.health]
    shard.last_error, shard.probe_ms = view.last_error, view.probe_ms
    shard.incarnation = view.incarnation
    shard.health_change_time.FromDatetime(view.change_time)
    return shard


def _ranges(buckets: tuple[int, ...]) -> list[topology_pb2.BucketRange]:
    ranges: list[topology_pb2.BucketRange] = []
    for bucket in buckets:
        if ranges and ranges[-1].until == bucket:
            ranges[-1].until = bucket + 1
        else:
            ranges.append(topology_pb2.BucketRange(until=bucket + 1, **{"from": bucket}))
    return ranges
