"""Many jobs, or one that exists already: count, cancel by filter, retry, update."""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb

from services.enqueue import convert
from services.enqueue.domain.tokens import page_token, read_job_page_token
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.errors import InvalidField
from services.mesh.rpc.items import from_item_error


class ChangeCalls:
    """The RPCs that change what exists."""

    _desk: Desk

    async def CountJobs(
        self, request: pb.CountJobsRequest, context: Context
    ) -> pb.CountJobsResponse:
        convert.check_filter(request.filter)
        answer = await self._desk.orchestrator.CountJobs(
            orchestrator_pb.OrchestratorServiceCountJobsRequest(
                namespace=convert.namespace_of(request.namespace), filter=request.filter
            )
        )
        return pb.CountJobsResponse(
            counts=[pb.StateCount(state=one.state, count=one.count) for one in answer.counts],
            partial=bool(answer.missing_shards),
        )

    async def CancelJobs(
        self, request: pb.CancelJobsRequest, context: Context
    ) -> pb.CancelJobsResponse:
        convert.check_choice(request.filter)
        query = convert.bulk_query("cancel", request.namespace, request.filter)
        answer = await self._desk.orchestrator.CancelMatchingJobs(
            orchestrator_pb.CancelMatchingJobsRequest(
                namespace=convert.namespace_of(request.namespace),
                filter=request.filter,
                dry_run=request.dry_run,
                reason=request.reason,
                before_job_id=read_job_page_token(request.page_token, query),
            )
        )
        stopped = answer.next_before_job_id
        return pb.CancelJobsResponse(
            count=answer.count,
            partial=bool(answer.missing_shards),
            next_page_token=page_token(stopped, query) if stopped else "",
        )

    async def RetryJob(self, request: pb.RetryJobRequest, context: Context) -> pb.RetryJobResponse:
        job_id = convert.job_id_of(request.job_id)
        answer = await self._desk.orchestrator.RedriveJobs(
            orchestrator_pb.RedriveJobsRequest(
                namespace=convert.namespace_of(request.namespace),
                job_ids=[job_id],
                # Sent again by the channel, it is the same wish: no second job comes of it.
                new_job_ids=[convert.id_beside(job_id, self._desk.clock.now())],
                traceparent=self._desk.tracing.current_traceparent(),
            )
        )
        result = answer.results[0]
        if result.HasField("error"):
            raise from_item_error(result.error)
        return pb.RetryJobResponse(job=result.job, existing=result.existing)

    async def RetryJobs(
        self, request: pb.RetryJobsRequest, context: Context
    ) -> pb.RetryJobsResponse:
        convert.check_choice(request.filter)
        query = convert.bulk_query("retry", request.namespace, request.filter)
        answer = await self._desk.orchestrator.RedriveMatchingJobs(
            orchestrator_pb.RedriveMatchingJobsRequest(
                namespace=convert.namespace_of(request.namespace),
                filter=request.filter,
                dry_run=request.dry_run,
                before_job_id=read_job_page_token(request.page_token, query),
                traceparent=self._desk.tracing.current_traceparent(),
            )
        )
        stopped = answer.next_before_job_id
        return pb.RetryJobsResponse(
            count=answer.count,
            partial=bool(answer.missing_shards),
            next_page_token=page_token(stopped, query) if stopped else "",
        )

    async def UpdateJob(
        self, request: pb.UpdateJobRequest, context: Context
    ) -> pb.UpdateJobResponse:
        changed = convert.changed_spec(request.job, request.update_mask)
        if violations := self._desk.rules.violations(changed, "job"):
            raise InvalidField.of(violations)
        convert.check_move(changed, self._desk.clock.now())
        answer = await self._desk.orchestrator.UpdateJob(
            orchestrator_pb.OrchestratorServiceUpdateJobRequest(
                namespace=convert.namespace_of(request.namespace),
                job_id=convert.job_id_of(request.job_id),
                job=changed,
                update_mask=request.update_mask,
                version=request.version,
            )
        )
        return pb.UpdateJobResponse(job=answer.job)
