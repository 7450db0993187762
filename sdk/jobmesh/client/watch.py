"""A watch that ends only when the jobs do.

The server's stream may break, be drained, or run into its deadline at any time. Every response
carries (or is followed by one that carries) a token to go on right after it, on any replica. We
remember the last token and, since not every response has one, the versions seen per job: what comes
again after a resume is dropped. Versions of a job are gapless, so nothing can be missed unnoticed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from jobmesh.client.caller import Caller, pauses
from jobmesh.client.convert import to_state
from jobmesh.client.status import UNREACHABLE, is_transient
from jobmesh.errors import CallError, Unavailable
from jobmesh.v1.enqueue_service_pb2 import WatchJobsRequest, WatchJobsResponse

if TYPE_CHECKING:
    from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceAsyncStub
    from jobmesh.v1.job_pb2 import Job, JobEvent

#: Even a stream has a deadline; at this one we resume.
STREAM_SECONDS = 1800.0
#: The server sends a heartbeat every 15 seconds: after three missed ones the connection is dead.
SILENCE_SECONDS = 50.0
#: How long a watch goes on trying while nothing answers.
PATIENCE_SECONDS = 60.0
#: Jobs whose versions are remembered when a filter is watched.
REMEMBERED_JOBS = 10_000

TOKEN_REASONS = frozenset({"RESUME_TOKEN_EXPIRED", "RESUME_TOKEN_INVALID"})


class SeenVersions:
    """The newest version seen of each job, of the jobs seen last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._versions: OrderedDict[str, int] = OrderedDict()

    def is_news(self, job_id: str, version: int) -> bool:
        """Whether this version was not seen before; from now on it was."""
        if version <= self._versions.get(job_id, 0):
            return False
        self._versions[job_id] = version
        self._versions.move_to_end(job_id)
        if len(self._versions) > self._limit:
            self._versions.popitem(last=False)
        return True


class Watch:
    """One watch over any number of streams. Iterate it once."""

    def __init__(
        self,
        caller: Caller,
        stub: EnqueueServiceAsyncStub,
        request: WatchJobsRequest,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._caller = caller
        self._stub = stub
        self._request = request
        self._patience = patience
        self._seen = SeenVersions(max(REMEMBERED_JOBS, len(request.job_ids)))
        # As responses spell them: ids may be given in capitals.
        self._open = {job_id.lower() for job_id in request.job_ids}
        self._pauses = pauses()
        self._failing_since: float | None = None

    async def responses(self) -> AsyncIterator[WatchJobsResponse]:
        """Snapshots and transitions, each once; and progress, if the request asks for it."""
        while True:
            stream = self._stub.WatchJobs(self._request, timeout=STREAM_SECONDS)
            try:
                while (response := await self._read(stream)) is not None:
                    if self._is_news(response):
                        yield response
            except grpc.aio.AioRpcError as failure:
                await self._pause(self._caller.explain(failure, STREAM_SECONDS))
            except TimeoutError:
                await self._pause(_silent(self._caller.address))
            finally:
                stream.cancel()
            if self._request.job_ids and not self._open:
                return

    async def _read(
        self, stream: grpc.aio.UnaryStreamCall[WatchJobsRequest, WatchJobsResponse]
    ) -> WatchJobsResponse | None:
        """The next response; None when the stream has politely ended."""
        # Not `wait_for`: Python 3.11's loses a cancellation that comes together with a response,
        # and with it the timeout of whoever waits.
        async with asyncio.timeout(SILENCE_SECONDS):
            response = await stream.read()
        if not isinstance(response, WatchJobsResponse):  # grpc.aio.EOF
            await self._after_end()
            return None
        self._failing_since, self._pauses = None, pauses()
        if response.resume_token:
            self._request.resume_token = response.resume_token
        if response.HasField("drain"):  # the end follows: leave now, another replica goes on
            await self._after_end()
            return None
        return response

    async def _after_end(self) -> None:
        """A filter's stream, or one with open jobs, ended well: resume, but never in a hot loop."""
        if self._open or not self._request.job_ids:
            await asyncio.sleep(next(self._pauses))

    def _is_news(self, response: WatchJobsResponse) -> bool:
        kind = response.WhichOneof("message")
        if kind == "snapshot":
            return self._observe(response.snapshot.id, response.snapshot)
        if kind == "event":
            return self._observe(response.event.job_id, response.event)
        return kind == "progress"

    def _observe(self, job_id: str, at: Job | JobEvent) -> bool:
        if to_state(at.state).terminal:
            self._open.discard(job_id)
        return self._seen.is_news(job_id, at.version)

    async def _pause(self, error: CallError) -> None:
        """Waits before the next stream, or raises what no further stream can mend."""
        now = asyncio.get_running_loop().time()
        self._failing_since = self._failing_since or now
        if error.reason in TOKEN_REASONS and self._request.resume_token:
            self._request.resume_token = ""
        elif error.status != "DEADLINE_EXCEEDED" and not is_transient(error):
            raise error from None
        if now - self._failing_since > self._patience:
            raise error from None
        await asyncio.sleep(max(next(self._pauses), error.retry_after or 0))


def _silent(address: str) -> CallError:
    return Unavailable(f"{address} fell silent during a watch", reason=UNREACHABLE)
