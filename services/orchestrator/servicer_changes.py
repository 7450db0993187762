"""Transport of the calls about many jobs, and about one that exists already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import grpc.aio
from google.protobuf.field_mask_pb2 import FieldMask
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField, MeshError, OutcomeUnknown, ShardUnavailable
from services.mesh.jobs.ids import bucket_of
from services.mesh.jobs.model import JobFilter
from services.mesh.rpc.interceptors.errors import is_repeated
from services.mesh.rpc.items import to_item_error
from services.mesh.store.answers import JobChange
from services.mesh.wire.jobs import filter_from_proto
from services.mesh.wire.values import optional_datetime, timestamp
from services.orchestrator import convert
from services.orchestrator.app.changes import Changes, Redriven
from services.orchestrator.app.schedules import Schedules

Context = grpc.aio.ServicerContext[Any, Any]


class ChangeCalls:
    """The RPCs that count, cancel and redrive by filter, update and locate."""

    _changes: Changes
    _schedules: Schedules

    async def CountJobs(
        self, request: pb.OrchestratorServiceCountJobsRequest, context: Context
    ) -> pb.OrchestratorServiceCountJobsResponse:
        counts = await self._changes.count(await self._filter(request.namespace, request.filter))
        return pb.OrchestratorServiceCountJobsResponse(
            counts=[
                pb.JobCount(state=job_pb2.JobState.ValueType(state), count=count)
                for state, count in sorted(counts.by_state.items())
            ],
            missing_shards=counts.missing,
        )

    async def CancelMatchingJobs(
        self, request: pb.CancelMatchingJobsRequest, context: Context
    ) -> pb.CancelMatchingJobsResponse:
        done = await self._changes.cancel(
            await self._filter(request.namespace, request.filter),
            _before(request.before_job_id),
            request.reason,
            dry_run=request.dry_run,
        )
        return pb.CancelMatchingJobsResponse(
            count=done.count,
            next_before_job_id=str(done.next_before or ""),
            missing_shards=done.missing,
        )

    async def RedriveJobs(
        self, request: pb.RedriveJobsRequest, context: Context
    ) -> pb.RedriveJobsResponse:
        ids = [convert.job_id_from(text, f"job_ids[{n}]") for n, text in enumerate(request.job_ids)]
        wishes = _wishes(ids, request.new_job_ids)
        results = await self._changes.redrive(ids, request.namespace, request.traceparent, wishes)
        if is_repeated(context):
            results = [_left_open(result) for result in results]
        return pb.RedriveJobsResponse(results=[_redrive_result(result) for result in results])

    async def RedriveMatchingJobs(
        self, request: pb.RedriveMatchingJobsRequest, context: Context
    ) -> pb.RedriveMatchingJobsResponse:
        done = await self._changes.redrive_matching(
            await self._filter(request.namespace, request.filter),
            _before(request.before_job_id),
            request.traceparent,
            dry_run=request.dry_run,
        )
        return pb.RedriveMatchingJobsResponse(
            count=done.count,
            next_before_job_id=str(done.next_before or ""),
            missing_shards=done.missing,
        )

    async def UpdateJob(
        self, request: pb.OrchestratorServiceUpdateJobRequest, context: Context
    ) -> pb.OrchestratorServiceUpdateJobResponse:
        job_id = convert.job_id_from(request.job_id, "job_id")
        change = change_from_proto(request.job, request.update_mask, request.version)
        found = await self._changes.update(job_id, request.namespace, change)
        return pb.OrchestratorServiceUpdateJobResponse(
            job=convert.found_to_proto(found, full=False)
        )

    async def LocateJob(
        self, request: pb.LocateJobRequest, context: Context
    ) -> pb.LocateJobResponse:
        job_id = convert.job_id_from(request.job_id, "job_id")
        try:
            located = await self._changes.locate(job_id, request.namespace)
        except ShardUnavailable as error:
            # An answer, not an error: nobody should ask again and again to hear the same.
            return pb.LocateJobResponse(away_shard=error.metadata.get("shard", ""))
        return pb.LocateJobResponse(
            job=convert.found_to_proto(located.found, full=False),
            ahead=located.ahead,
            ahead_capped=located.capped,
            starts_per_second=located.starts_per_second,
            time=timestamp(located.now),
            missing_shards=located.missing,
            waits_for=[convert.awaited_to_proto(one) for one in located.waits_for],
        )

    async def _filter(self, namespace: str, given: job_pb2.JobFilter) -> JobFilter:
        made_by = await self._schedules.id_of(namespace, given.schedule) if given.schedule else None
        return filter_from_proto(given, namespace, made_by)


def _before(given: str) -> UUID | None:
    return convert.job_id_from(given, "before_job_id") if given else None


def _left_open(result: Redriven | MeshError) -> Redriven | MeshError:
    """That this try stored nothing does not say that an earlier one did not."""
    if not isinstance(result, ShardUnavailable):
        return result
    return OutcomeUnknown(result.metadata["shard"])


def _wishes(ids: Sequence[UUID], given: Sequence[str]) -> dict[UUID, UUID]:
    """Which ids the new jobs shall have; none where the caller does not say."""
    if not given:
        return {}
    new = [convert.job_id_from(text, f"new_job_ids[{n}]") for n, text in enumerate(given)]
    if list(map(bucket_of, new)) != list(map(bucket_of, ids)):
        raise InvalidField("new_job_ids", "expected one id for each job, in the same bucket")
    return dict(zip(ids, new, strict=True))


def _redrive_result(result: Redriven | MeshError) -> pb.RedriveJobResult:
    if isinstance(result, MeshError):
        return pb.RedriveJobResult(error=to_item_error(result))
    job = convert.found_to_proto(result.found, full=False)
    return pb.RedriveJobResult(job=job, existing=result.existing)


def change_from_proto(spec: job_pb2.JobSpec, mask: FieldMask, version: int) -> JobChange:
    """What the mask names; a path that cannot be changed is refused."""
    for path in mask.paths:
        if path not in ("schedule_time", "priority", "labels"):
            raise InvalidField("update_mask", f"cannot change {path!r} of a job")
    return JobChange(
        move="schedule_time" in mask.paths,
        due_time=optional_datetime(spec, "schedule_time", "job."),
        priority=spec.priority if "priority" in mask.paths else None,
        labels=dict(spec.labels) if "labels" in mask.paths else None,
        version=version,
    )
