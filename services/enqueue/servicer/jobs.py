"""Jobs: submit, query, cancel, watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2

from services.enqueue import convert
from services.enqueue.app.watch import Delivery
from services.enqueue.domain.tokens import page_token, read_job_page_token
from services.enqueue.servicer.chains import Settled, is_chained, store_chained
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.errors import MeshError
from services.mesh.rpc.items import from_item_error
from services.mesh.wire.values import timedelta_of

#: Snapshots and events in one batch of a watch: well below the size of a message.
WATCH_BATCH = 500


class JobCalls:
    """The RPCs about jobs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Enqueue(self, request: pb.EnqueueRequest, context: Context) -> pb.EnqueueResponse:
        shape = self._desk.check(request)
        namespace = convert.namespace_of(request.namespace)
        with self._desk.gate.admitted(namespace, 1, request.ByteSize):
            submitted = await self._desk.admit(namespace, request.job, request.idempotency_key)
            result = await self._desk.put_one(convert.Single(submitted, shape))
        job = convert.stored_job(submitted, result)
        # Whoever holds the key was not necessarily submitted like this.
        other = result.existing and bool(submitted.spec.unique_key)
        if other or request.HasField("wait"):
            job = await self._looked_at(job, request, other=other)
        return pb.EnqueueResponse(job=job, existing=result.existing)

    async def EnqueueBatch(
        self, request: pb.EnqueueBatchRequest, context: Context
    ) -> pb.EnqueueBatchResponse:
        namespace = convert.namespace_of(request.namespace)
        with self._desk.gate.admitted(namespace, len(request.items), request.ByteSize):
            if is_chained(request.items):
                settled = await store_chained(self._desk, self._desk.put, namespace, request.items)
            else:
                admitted = await self._desk.admit_all(namespace, request.items)
                stored = await self._desk.put(admitted.request) if admitted.order else ()
                settled = Settled(stored, admitted.order, admitted.errors)
        response = pb.EnqueueBatchResponse()
        convert.fill_results(response.results, len(request.items), *settled)
        return response

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        namespace = convert.namespace_of(request.namespace)
        job_id = convert.job_id_of(request.job_id)
        return pb.GetJobResponse(job=await self._get(namespace, job_id, request.view))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        convert.check_filter(request.filter)
        query = convert.list_query(request)
        page = await self._desk.orchestrator.ListJobs(
            orchestrator_service_pb2.OrchestratorServiceListJobsRequest(
                namespace=convert.namespace_of(request.namespace),
                filter=request.filter,
                page_size=convert.page_size_of(request.page_size),
                before_job_id=read_job_page_token(request.page_token, query),
                view=request.view,
            )
        )
        return pb.ListJobsResponse(
            jobs=page.jobs,
            next_page_token=page_token(page.jobs[-1].id, query) if page.more else "",
            partial=bool(page.missing_shards),
            missing_shards=page.missing_shards,
        )

    async def CancelJob(
        self, request: pb.CancelJobRequest, context: Context
    ) -> pb.CancelJobResponse:
        answer = await self._desk.orchestrator.CancelJobs(
            orchestrator_service_pb2.OrchestratorServiceCancelJobsRequest(
                namespace=convert.namespace_of(request.namespace),
                job_ids=[convert.job_id_of(request.job_id)],
                reason=request.reason,
            )
        )
        result = answer.results[0]
        if result.HasField("error"):
            raise from_item_error(result.error)
        return pb.CancelJobResponse(job=result.job, cancelled=result.cancelled)

    async def WatchJobs(
        self, request: pb.WatchJobsRequest, context: Context
    ) -> AsyncIterator[pb.WatchJobsResponse]:
        async with aclosing(self._watch(request)) as deliveries:
            async for delivery in deliveries:
                yield convert.watch_response(delivery, self._desk.clock.now())

    def _watch(self, request: pb.WatchJobsRequest) -> AsyncGenerator[Delivery, None]:
        most = WATCH_BATCH if request.batches else 1
        if request.HasField("filter"):
            wanted = convert.watch_filter(request)
            return self._desk.filter_watches.watch(
                wanted, request.filter, request.resume_token, most=most
            )
        ids = [convert.job_id_of(given, f"job_ids[{n}]") for n, given in enumerate(request.job_ids)]
        namespace = convert.namespace_of(request.namespace)
        return self._desk.watches.watch(
            namespace,
            ids,
            request.resume_token,
            most=most,
            progress=request.progress,
            ends_only=request.ends_only,
        )

    async def _looked_at(
        self, job: job_pb2.Job, request: pb.EnqueueRequest, *, other: bool
    ) -> job_pb2.Job:
        """A stored job as it is, after the wait that the request asks for.

        Where that cannot be said, what is known: it is stored, and an error would deny that.
        """
        view = job_pb2.JOB_VIEW_BASIC
        try:
            if request.HasField("wait"):
                view = job_pb2.JOB_VIEW_FULL
                await self._wait(job.namespace, job.id, timedelta_of(request.wait).total_seconds())
            return await self._get(job.namespace, job.id, view)
        except MeshError:
            if other:
                job.ClearField("spec")
            return job

    async def _get(
        self, namespace: str, job_id: str, view: job_pb2.JobView.ValueType
    ) -> job_pb2.Job:
        answer = await self._desk.orchestrator.GetJobs(
            orchestrator_service_pb2.GetJobsRequest(
                job_ids=[job_id], namespace=namespace, view=view
            )
        )
        result = answer.results[0]
        if result.HasField("error"):
            raise from_item_error(result.error)
        return result.job

    async def _wait(self, namespace: str, job_id: str, seconds: float) -> None:
        """Return when the job has ended, or the time is over."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                aclosing(
                    self._desk.watches.watch(namespace, [job_id], "", ends_only=True)
                ) as deliveries,
            ):
                async for _ in deliveries:
                    pass
