"""A caller that does not read its answers is not read on: they have a bound in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import pytest
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.jobs import ids
from services.mesh.telemetry.tracing import Tracing
from services.orchestrator.app.reports import Verdict
from services.orchestrator.conversation import Conversation
from services.orchestrator.servicer import REPORTS_UNDER_WAY, ReportStream
from services.orchestrator.servicer_puts import PUTS_UNDER_WAY, PutStream

JOB = ids.new_job_id(1, 1_700_000_000_000, Random(7)).bytes


class Rows:
    """Commits at once what is submitted."""

    def submit(self, reports: Any) -> Any:
        verdicts: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        verdicts.set_result([Verdict.COMMITTED] * len(reports))
        return [(reports, verdicts)] if reports else []


async def stored(request: pb.PutJobsRequest) -> pb.PutJobsResponse:
    return pb.PutJobsResponse()


async def refused(request: pb.PutJobsRequest) -> pb.PutJobsResponse:
    raise ValueError("no such job")


def report(job_id: bytes) -> Callable[[], pb.ReportAttemptsRequest]:
    def made() -> pb.ReportAttemptsRequest:
        return pb.ReportAttemptsRequest(
            hello=pb.ReportHello(worker_id="w-1"),
            reports=[pb.AttemptReport(job_id=job_id, dispatch_no=1, started=pb.AttemptStarted())],
        )

    return made


class Caller:
    """Has always one more request; counts those that were taken from it."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self._made, self.asked = made, 0

    async def requests(self) -> AsyncIterator[Any]:
        while True:
            self.asked += 1
            yield self._made()
            await asyncio.sleep(0)

    async def comes_to_rest(self) -> None:
        """Return when nothing more is taken; many turns of the loop, as each answer takes some."""
        before = -1
        while self.asked != before:
            before = self.asked
            for _ in range(200):
                await asyncio.sleep(0)
                if self.asked > 2_000:
                    return


STREAMS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "puts": (lambda: PutStream(stored, None), pb.PutJobsStreamRequest, PUTS_UNDER_WAY),
    "puts that fail": (lambda: PutStream(refused, None), pb.PutJobsStreamRequest, PUTS_UNDER_WAY),
    "reports": (lambda: ReportStream(Rows(), Tracing()), report(JOB), REPORTS_UNDER_WAY),  # type: ignore[arg-type]
    "reports that make no sense": (
        lambda: ReportStream(Rows(), Tracing()),  # type: ignore[arg-type]
        report(b"short"),
        REPORTS_UNDER_WAY,
    ),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_who_does_not_read_its_answers_is_not_read_on(kind: str) -> None:
    make, made, places = STREAMS[kind]
    stream: Conversation[Any, Any] = make()
    caller = Caller(made)
    reader = asyncio.create_task(stream.read(caller.requests()))
    await caller.comes_to_rest()
    assert caller.asked == places + 1, "one more waits for a place"

    # An answer that is read gives its place to the next request.
    async with asyncio.timeout(5), aclosing(stream.responses()) as responses:  # type: ignore[type-var]
        while caller.asked < 3 * places:
            await anext(responses)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
