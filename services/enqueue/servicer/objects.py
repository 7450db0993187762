"""Bytes: uploads, downloads and pre-signed URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, payload_pb2

from services.enqueue import convert
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.errors import ForbiddenTransition, InvalidField
from services.mesh.rpc.items import from_item_error
from services.mesh.wire.payloads import object_to_proto, payload_from_proto
from services.mesh.wire.values import timedelta_of, timestamp

DEFAULT_VALIDITY = timedelta(minutes=15)
CHUNK = 512 * 1024


class ObjectCalls:
    """The RPCs about bytes."""

    _desk: Desk

    async def UploadInput(
        self, request_iterator: AsyncIterator[pb.UploadInputRequest], context: Context
    ) -> pb.UploadInputResponse:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("message") != "start":
            raise InvalidField("start", "the first message must say what comes")
        start = first.start
        ref = await self._desk.inputs.upload(
            convert.namespace_of(start.namespace),
            _chunks(request_iterator),
            start.content_type,
            start.size_bytes,
        )
        payload = payload_pb2.Payload(object=object_to_proto(ref), content_type=start.content_type)
        return pb.UploadInputResponse(payload=payload)

    async def DownloadOutput(
        self, request: pb.DownloadOutputRequest, context: Context
    ) -> AsyncIterator[pb.DownloadOutputResponse]:
        job = await self._succeeded(request.namespace, request.job_id)
        output = payload_from_proto(job.output)
        yield pb.DownloadOutputResponse(
            info=pb.OutputInfo(
                content_type=output.content_type,
                size_bytes=output.size,
                sha256=output.ref.sha256 if output.ref else b"",
            )
        )
        async for chunk in self._desk.outputs.chunks(output):
            for start in range(0, len(chunk), CHUNK):
                yield pb.DownloadOutputResponse(chunk=chunk[start : start + CHUNK])

    async def CreateUploadUrl(
        self, request: pb.CreateUploadUrlRequest, context: Context
    ) -> pb.CreateUploadUrlResponse:
        validity = timedelta_of(request.valid_for) or DEFAULT_VALIDITY
        upload, ref = await self._desk.inputs.upload_url(
            convert.namespace_of(request.namespace),
            request.content_type,
            int(validity.total_seconds()),
        )
        return pb.CreateUploadUrlResponse(
            url=upload.url,
            headers=upload.headers,
            payload=payload_pb2.Payload(
                object=object_to_proto(ref), content_type=request.content_type
            ),
            expire_time=timestamp(self._desk.clock.now() + validity),
        )

    async def CreateDownloadUrl(
        self, request: pb.CreateDownloadUrlRequest, context: Context
    ) -> pb.CreateDownloadUrlResponse:
        job = await self._succeeded(request.namespace, request.job_id)
        validity = timedelta_of(request.valid_for) or DEFAULT_VALIDITY
        url = await self._desk.outputs.download_url(
            job.id, payload_from_proto(job.output), int(validity.total_seconds())
        )
        return pb.CreateDownloadUrlResponse(
            url=url,
            payload=job.output,
            expire_time=timestamp(self._desk.clock.now() + validity),
        )

    async def _succeeded(self, namespace: str, job_id: str) -> job_pb2.Job:
        answer = await self._desk.orchestrator.GetJobs(
            orchestrator_service_pb2.GetJobsRequest(
                job_ids=[convert.job_id_of(job_id)],
                namespace=convert.namespace_of(namespace),
                view=job_pb2.JOB_VIEW_FULL,
            )
        )
        result = answer.results[0]
        if result.HasField("error"):
            raise from_item_error(result.error)
        if result.job.state != job_pb2.JOB_STATE_SUCCEEDED:
            state = job_pb2.JobState.Name(result.job.state).removeprefix("JOB_STATE_")
            raise ForbiddenTransition(result.job.id, state, "read the output of")
        return result.job


async def _chunks(requests: AsyncIterator[pb.UploadInputRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("message") != "chunk":
            raise InvalidField("start", "only the first message may be a start")
        yield request.chunk
