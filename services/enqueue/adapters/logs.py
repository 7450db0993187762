"""Log lines: kept ones from the object store, live ones from the worker that runs the attempt."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from google.protobuf.message import DecodeError
from jobmesh.v1 import job_pb2, worker_service_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1.worker_service_pb2_grpc import WorkerServiceStub

from services.enqueue.ports import Tried
from services.mesh.blob import BlobStore, output_key
from services.mesh.errors import MeshError, NotFound
from services.mesh.jobs.logs import LOG_NAME, LOG_SO_FAR_NAME, LogLine, log_from_bytes
from services.mesh.lease import Keys, Registry
from services.mesh.rpc import Channel, TlsFiles, open_channel
from services.mesh.rpc.items import from_item_error
from services.mesh.telemetry.tracing import Tracing
from services.mesh.wire.events import TERMINAL
from services.mesh.wire.logs import log_line_from_proto

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

log = logging.getLogger(__name__)

#: More than a worker keeps of an attempt, whatever its settings.
MAX_LOG_BYTES = 256 * 1024 * 1024


class Workers:
    """The workers as the registry knows them."""

    def __init__(
        self, registry: Registry, keys: Keys, tracing: Tracing, tls: TlsFiles | None
    ) -> None:
        self._registry, self._keys = registry, keys
        self._tracing, self._tls = tracing, tls

    async def channel(self, worker_id: str) -> Channel | None:
        """A channel of its own to a worker; None if it is not registered."""
        entry = await self._registry.get(self._keys.worker(worker_id))
        if entry is None:
            return None
        try:
            address = worker_service_pb2.WorkerInfo.FromString(entry.value).address
        except DecodeError:
            return None
        if not address:
            return None
        return open_channel(address, peer="worker", tracing=self._tracing, tls=self._tls)


class MeshLogs:
    """Implements `ports.LogSource`."""

    def __init__(
        self, orchestrator: OrchestratorServiceAsyncStub, outputs: BlobStore, workers: Workers
    ) -> None:
        self._orchestrator, self._outputs, self._workers = orchestrator, outputs, workers

    async def dispatches(self, namespace: str, job_id: str) -> tuple[Sequence[Tried], bool]:
        answer = await self._orchestrator.GetJobs(
            pb.GetJobsRequest(job_ids=[job_id], namespace=namespace, view=job_pb2.JOB_VIEW_FULL)
        )
        result = answer.results[0]
        if result.HasField("error"):
            raise from_item_error(result.error)
        job = result.job
        tries = [
            Tried(each.attempt, each.dispatch_no, each.worker_id, each.HasField("end_time"))
            for each in job.attempts
        ]
        return tries, job.state in TERMINAL

    async def kept(self, namespace: str, job_id: str, fence: int) -> Sequence[LogLine]:
        # Of a worker that was killed there is what it kept while the attempt ran.
        for name in (LOG_NAME, LOG_SO_FAR_NAME):
            key = output_key(namespace, UUID(job_id), fence, name)
            with suppress(NotFound):
                data = await self._outputs.get_bytes(key, max_size=MAX_LOG_BYTES)
                return list(log_from_bytes(data))
        return ()

    async def live(
        self, job_id: str, tried: Tried, after: int, *, once: bool
    ) -> AsyncGenerator[Sequence[LogLine], None]:
        request = worker_service_pb2.WatchAttemptRequest(
            job_id=job_id, dispatch_no=tried.fence, after_number=after, once=once
        )
        try:
            channel = await self._workers.channel(tried.worker_id)
            if channel is None:
                return
            async with channel:
                stub: Any = WorkerServiceStub(channel)
                async for news in stub.WatchAttempt(request):
                    if news.lines:
                        yield [log_line_from_proto(line) for line in news.lines]
        except MeshError as error:
            # It has ended, or is out of reach: what it kept is read when it has ended.
            extra = {"action": "live_log_away", "job_id": job_id, "worker_id": tried.worker_id}
            log.debug("no live log: %s", error, extra=extra)
