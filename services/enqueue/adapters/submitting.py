"""Handing jobs to an Orchestrator, and being honest about calls that break."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.company import count_of, namespace_of
from services.enqueue.adapters.packing import packed, unpacked
from services.enqueue.adapters.put_line import PutLine
from services.enqueue.app.turnstile import Turnstile
from services.enqueue.convert import Single, Submitted, spell_out
from services.mesh.errors import Code, InvalidArgument, MeshError, OutcomeUnknown, Overloaded
from services.mesh.wire.values import id_texts

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

#: How gRPC says that a call was never sent, or never taken in, by code.
NEVER_SERVED = {
    Code.UNAVAILABLE: ("failed to connect to all addresses", "connections to all backends failing"),
    Code.RESOURCE_EXHAUSTED: ("SERVER: Received message larger than max",),
}
#: What an Orchestrator says, as an error of a whole put, only before it writes anything.
REFUSALS = (Overloaded, InvalidArgument)
#: The same for codes, whoever says it: a put like this is not served at all.
REFUSING_CODES = (Code.UNIMPLEMENTED, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)


class Submitter:
    """Puts jobs. A call that was not refused may have been carried out, whatever its error says:
    that is OutcomeUnknown.
    """

    def __init__(
        self,
        orchestrator: OrchestratorServiceAsyncStub,
        turnstile: Turnstile,
        line: PutLine | None = None,
    ) -> None:
        self._orchestrator, self._turnstile, self._line = orchestrator, turnstile, line

    async def put(self, namespace: str, singles: Sequence[Single]) -> Sequence[pb.PutJobResult]:
        """One result per job, in order. They came one by one; if they may be of many namespaces,
        that is empty.
        """
        request, places = packed(singles)
        async with self._turnstile.passing(namespace, len(singles)):
            return unpacked(await self._sent(request, self._send_by_line), places)

    async def put_brief(self, request: pb.PutJobsRequest) -> list[Submitted]:
        """An id or an error per job, in order. All are of one namespace."""
        request.brief = request.columns = True
        count = count_of(request)
        async with self._turnstile.passing(namespace_of(request), count):
            return submitted(await self._sent(request, self._orchestrator.PutJobs), count)

    async def _sent(
        self,
        request: pb.PutJobsRequest,
        send: Callable[[pb.PutJobsRequest], Awaitable[pb.PutJobsResponse]],
    ) -> pb.PutJobsResponse:
        answer = await self._answered(send(request))
        if request.keyed and not (answer.stored or answer.results):
            # By an Orchestrator of the version before: it sees no job there, and stored none.
            spell_out(request)
            answer = await self._answered(send(request))
        return answer

    def _send_by_line(self, request: pb.PutJobsRequest) -> Awaitable[pb.PutJobsResponse]:
        line = self._line.taken(request.ByteSize()) if self._line is not None else None
        return self._orchestrator.PutJobs(request) if line is None else line.put(request)

    async def _answered(self, call: Awaitable[pb.PutJobsResponse]) -> pb.PutJobsResponse:
        try:
            return await call
        except MeshError as error:
            if isinstance(error, OutcomeUnknown) or is_refusal(error):
                raise
            raise OutcomeUnknown("unknown") from error


def is_refusal(error: MeshError) -> bool:
    """Whether a put that ended with this error has certainly stored nothing.

    Everything else may come after the write: a defect, a deadline, the end of the process (which is
    how Draining comes about) or of the connection, in whatever words.
    """
    if isinstance(error, REFUSALS) or error.code in REFUSING_CODES:
        return True
    return any(words in error.message for words in NEVER_SERVED.get(error.code, ()))


def submitted(answer: pb.PutJobsResponse, count: int) -> list[Submitted]:
    """What became of each job of the request, in order."""
    if not answer.stored:
        return list(answer.results)
    outcomes: list[Submitted | None] = [None] * count
    for group in answer.stored:
        ids = id_texts(group.job_ids)
        for place, job_id in zip(list(group.places) or range(count), ids, strict=True):
            outcomes[place] = job_id
    rest = iter(answer.results)
    return [next(rest) if outcome is None else outcome for outcome in outcomes]
