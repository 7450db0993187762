"""Jobs that came one by one, as one request: those that are alike in columns.

Callers of single calls mostly send the same again with other bytes. As one group they cost less
than as a message each (docs/performance.md). A group is a statement of its own, though, and so are
the jobs beside it: with a few others among them, all go as messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.convert import Single, fill_like
from services.mesh.wire.values import id_texts, set_micros

#: Fewer gain nothing.
FEW = 4
#: So many that are alike save more than the statement costs that is needed for the others.
WORTH = 50


def packed(singles: Sequence[Single]) -> tuple[pb.PutJobsRequest, Sequence[int]]:
    """A request with all of them; and, in the order in which it is answered, their places."""
    alike = _most_alike(singles)
    others = len(singles) - len(alike)
    keyed = bool(alike) and bool(singles[alike[0]].job.idempotency_key)
    # Jobs with keys are in columns alone or not at all: see PutJobsRequest.
    if len(alike) < (WORTH if others else FEW) or (keyed and others):
        return pb.PutJobsRequest(jobs=[one.job for one in singles]), range(len(singles))
    chosen = set(alike)
    rest = [at for at in range(len(singles)) if at not in chosen] if others else []
    request = pb.PutJobsRequest(jobs=[singles[at].job for at in rest], columns=True)
    group = (request.keyed if keyed else request.groups).add()
    _fill(group, [singles[at].job for at in alike], keyed=keyed)
    return request, [*rest, *alike]


def _fill(group: pb.AlikeJobs, jobs: Sequence[pb.NewJob], *, keyed: bool) -> None:
    fill_like(group.like, jobs[0].namespace, jobs[0].spec, jobs[0].traceparent)
    group.inputs.extend([job.spec.input.data for job in jobs])
    if keyed:
        group.idempotency_keys.extend([job.idempotency_key for job in jobs])
        group.request_hashes = b"".join([job.request_hash for job in jobs])


def _most_alike(singles: Sequence[Single]) -> list[int]:
    """The places of the most jobs that are alike."""
    groups: dict[tuple[bytes, str, bool], list[int]] = {}
    for at, (job, shape) in enumerate(singles):
        if shape is not None and not job.spec.input.HasField("object"):
            place = shape, job.traceparent, bool(job.idempotency_key)
            groups.setdefault(place, []).append(at)
    return max(groups.values(), key=len, default=[])


def unpacked(answer: pb.PutJobsResponse, places: Sequence[int]) -> Sequence[pb.PutJobResult]:
    """What became of each job, in the order of the calls."""
    if not answer.stored and isinstance(places, range):
        return answer.results
    found: dict[int, pb.PutJobResult] = {}
    for group in answer.stored:
        ids = id_texts(group.job_ids)
        for place, job_id in zip(group.places or range(len(places)), ids, strict=True):
            found[place] = _result(group, job_id)
    rest = iter(answer.results)
    results = {
        place: found[number] if number in found else next(rest)
        for number, place in enumerate(places)
    }
    return [results[at] for at in range(len(places))]


def _result(group: pb.StoredJobs, job_id: str) -> pb.PutJobResult:
    result = pb.PutJobResult()
    job = result.job
    job.id, job.shard = job_id, group.shard
    job.state = job_pb2.JOB_STATE_DISPATCHED if group.handed else job_pb2.JOB_STATE_SCHEDULED
    job.version = 2 if group.handed else 1
    set_micros(job.create_time, group.create_time_us)
    set_micros(job.due_time, group.create_time_us)
    return result
