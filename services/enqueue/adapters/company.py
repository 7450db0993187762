"""Small batches of a namespace travel together, as single calls do.

What a put costs the mesh depends little on how many jobs it has: thirty callers with ten jobs each
cost it thirty times what one with three hundred does. So the batches that come while others of
their namespace are under way become one put (see `app.coalescing`). Namespaces stay apart, for they
take turns at the turnstile; and a large batch goes as it is.

Single calls of all namespaces are one company, but for those of a namespace that sends more than
its rate: it has a pace of its own (see `domain.quotas`), for which nobody else shall wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from functools import partial

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.app.coalescing import MOST_JOBS, Coalescer
from services.enqueue.app.lanes import Lanes, Pace
from services.enqueue.convert import Single, Submitted
from services.mesh.runtime import Tasks

Put = Callable[[pb.PutJobsRequest], Awaitable[list[Submitted]]]
#: The namespace whose jobs these are, if they all are of one.
PutSingles = Callable[[str, Sequence[Single]], Awaitable[Sequence[pb.PutJobResult]]]

#: A batch of so many jobs gains little by company.
LARGE = MOST_JOBS // 2


class Company:
    """One per process: puts batches, each of one namespace."""

    def __init__(self, put: Put, tasks: Tasks, pace: Pace) -> None:
        self._put = put
        #: Those of jobs with keys in columns travel apart: see PutJobsRequest.
        self._keyed, self._others = (
            Lanes[pb.PutJobsRequest, list[Submitted]](
                self._send, tasks, pace, size=pb.PutJobsRequest.ByteSize, jobs=count_of
            )
            for _ in range(2)
        )

    async def put(self, request: pb.PutJobsRequest) -> list[Submitted]:
        """An id or an error per job, in order. All are of one namespace."""
        if count_of(request) >= LARGE:
            return await self._put(request)
        lanes = self._keyed if request.keyed else self._others
        return await lanes.submit(namespace_of(request), request)

    async def _send(
        self, namespace: str, requests: Sequence[pb.PutJobsRequest]
    ) -> list[list[Submitted]]:
        if len(requests) == 1:
            return [await self._put(requests[0])]
        request, places = joined(requests)
        outcomes = await self._put(request)
        return [[outcomes[place] for place in own] for own in places]


class Singles:
    """One per process: puts jobs that come one by one."""

    def __init__(self, put: PutSingles, tasks: Tasks, pace: Pace) -> None:
        self._pace = pace
        self._together: Coalescer[Single, pb.PutJobResult] = Coalescer(
            partial(put, ""), tasks, size=_size_of
        )
        self._apart: Lanes[Single, pb.PutJobResult] = Lanes(put, tasks, pace, size=_size_of)

    async def put(self, single: Single) -> pb.PutJobResult:
        """What became of the job."""
        namespace = single.job.namespace
        if self._pace.is_spent(namespace):
            return await self._apart.submit(namespace, single)
        return await self._together.submit(single)


def _size_of(single: Single) -> int:
    return single.job.ByteSize()


def count_of(request: pb.PutJobsRequest) -> int:
    """How many jobs a put has."""
    return len(request.jobs) + sum(len(group.inputs) for group in alike_in(request))


def namespace_of(request: pb.PutJobsRequest) -> str:
    """The namespace that all of its jobs have."""
    first = request.jobs[0] if request.jobs else alike_in(request)[0].like
    return first.namespace


def alike_in(request: pb.PutJobsRequest) -> MutableSequence[pb.AlikeJobs]:
    """Its jobs in columns, which all have keys, or none has."""
    return request.keyed or request.groups


def joined(requests: Sequence[pb.PutJobsRequest]) -> tuple[pb.PutJobsRequest, list[list[int]]]:
    """One put of all these, and the place of each one's jobs among its outcomes. Either all have
    jobs in `keyed`, or none has.

    Groups that are alike become one, or each would still be a statement of its own.
    """
    whole = pb.PutJobsRequest()
    for request in requests:
        whole.jobs.extend(request.jobs)
    alike = whole.keyed if requests[0].keyed else whole.groups
    groups: dict[bytes, pb.AlikeJobs] = {}
    #: Of each group of each request: the group it went into, and where it begins there.
    shares: list[list[tuple[bytes, int, int]]] = []
    for request in requests:
        shares.append([])
        for group in alike_in(request):
            like = group.like.SerializeToString(deterministic=True)
            if like not in groups:
                groups[like] = alike.add(like=group.like)
            shares[-1].append((like, len(groups[like].inputs), len(group.inputs)))
            _add(groups[like], group)
    begins = _begins(groups, len(whole.jobs))
    places: list[list[int]] = []
    at = 0
    for request, share in zip(requests, shares, strict=True):
        own = list(range(at, at + len(request.jobs)))
        at += len(request.jobs)
        for like, first, count in share:
            own += range(begins[like] + first, begins[like] + first + count)
        places.append(own)
    return whole, places


def _add(whole: pb.AlikeJobs, group: pb.AlikeJobs) -> None:
    whole.inputs.extend(group.inputs)
    whole.idempotency_keys.extend(group.idempotency_keys)
    whole.request_hashes += group.request_hashes


def _begins(groups: dict[bytes, pb.AlikeJobs], at: int) -> dict[bytes, int]:
    """Where the outcomes of each group begin: they come after those of the jobs, in order."""
    begins: dict[bytes, int] = {}
    for like, group in groups.items():
        begins[like] = at
        at += len(group.inputs)
    return begins
