"""The log of a job over any number of streams: what breaks goes on after the last line received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from jobmesh.client.caller import pauses
from jobmesh.client.convert import to_state
from jobmesh.client.session import Session
from jobmesh.client.status import is_transient
from jobmesh.client.watch import PATIENCE_SECONDS, STREAM_SECONDS
from jobmesh.errors import CallError
from jobmesh.v1 import enqueue_service_pb2 as pb


class LogStream:
    """One reading of a job's log. Iterate it once."""

    def __init__(
        self, session: Session, namespace: str, job_id: str, attempt: int, *, follow: bool
    ) -> None:
        self._session = session
        self._request = pb.WatchLogsRequest(
            namespace=namespace, job_id=job_id, attempt=attempt, once=not follow
        )
        self._pauses = pauses()
        self._failing_since: float | None = None

    async def lines(self) -> AsyncIterator[pb.LogLine]:
        """Each line once, in order."""
        while True:
            stream = self._session.stub.WatchLogs(self._request, timeout=STREAM_SECONDS)
            try:
                async for response in stream:
                    self._failing_since, self._pauses = None, pauses()
                    for line in response.lines:
                        self._request.after_dispatch_no = line.dispatch_no
                        self._request.after_number = line.number
                        yield line
                if self._request.once:
                    return
                if await self._is_over():
                    # It may have ended after the stream, which a replica that went cut short:
                    # what came between is kept by now.
                    self._request.once = True
                else:
                    await asyncio.sleep(next(self._pauses))
            except grpc.aio.AioRpcError as failure:
                await self._pause(self._session.caller.explain(failure, STREAM_SECONDS))
            finally:
                stream.cancel()

    async def _is_over(self) -> bool:
        request = pb.GetJobRequest(namespace=self._request.namespace, job_id=self._request.job_id)
        job = (await self._session.call(self._session.stub.GetJob, request)).job
        return to_state(job.state).terminal or 0 < self._request.attempt < job.attempt

    async def _pause(self, error: CallError) -> None:
        now = asyncio.get_running_loop().time()
        self._failing_since = self._failing_since or now
        if error.status != "DEADLINE_EXCEEDED" and not is_transient(error):
            raise error from None
        if now - self._failing_since > PATIENCE_SECONDS:
            raise error from None
        await asyncio.sleep(max(next(self._pauses), error.retry_after or 0))
