"""The order of events of each shard, from the Orchestrators; and the bell that hints ring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from jobmesh.v1 import bus_pb2, job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.ports import Change, LivePage, OrderPage, Placed
from services.mesh.bus import Bus, Message, Subjects, Subscription
from services.mesh.jobs.model import Position
from services.mesh.wire.events import TERMINAL

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

#: Jobs per page of a snapshot.
LIST_PAGE = 500
LIVE = (
    job_pb2.JOB_STATE_SCHEDULED,
    job_pb2.JOB_STATE_DISPATCHED,
    job_pb2.JOB_STATE_RUNNING,
    job_pb2.JOB_STATE_BLOCKED,
)


class OrchestratorOrder:
    """Implements `ports.OrderSource`."""

    def __init__(self, orchestrator: OrchestratorServiceAsyncStub) -> None:
        self._orchestrator = orchestrator

    async def shards(self) -> Sequence[str]:
        answer = await self._orchestrator.ListShards(pb.ListShardsRequest())
        return [shard.name for shard in answer.topology.shards]

    async def page(
        self,
        shard: str,
        after: Position | None,
        namespaces: Iterable[str] = (),
        types: Iterable[str] = (),
    ) -> OrderPage:
        request = pb.ListShardEventsRequest(shard=shard, namespaces=namespaces, types=types)
        if after is not None:
            request.after.xid, request.after.number = after.xid, after.number
            request.after.SetInParent()
        answer = await self._orchestrator.ListShardEvents(request)
        lasting = answer.lasting if answer.HasField("lasting") else answer.next
        return OrderPage(
            [placed(shard, found) for found in answer.events],
            Position(answer.next.xid, answer.next.number),
            answer.more,
            answer.truncated,
            answer.next_xid,
            Position(lasting.xid, lasting.number),
        )

    async def live_jobs(self, namespace: str, matching: job_pb2.JobFilter, before: str) -> LivePage:
        live = [state for state in LIVE if not matching.states or state in matching.states]
        if not live:
            return LivePage([], more=False, missing=[])
        wanted = job_pb2.JobFilter(types=matching.types, labels=matching.labels, states=live)
        answer = await self._orchestrator.ListJobs(
            pb.OrchestratorServiceListJobsRequest(
                namespace=namespace, filter=wanted, page_size=LIST_PAGE, before_job_id=before
            )
        )
        jobs = [
            (job.shard, Change(job.id, job.version, job.state in TERMINAL, job))
            for job in answer.jobs
        ]
        return LivePage(jobs, answer.more, list(answer.missing_shards))


def placed(shard: str, found: pb.ShardEvent) -> Placed:
    event = found.event
    return Placed(
        shard,
        Position(found.position.xid, found.position.number),
        event.job_id,
        event.version,
        event.namespace,
        event.type,
        event.state,
        event.labels,
        event,
    )


class BusBell:
    """Implements `ports.HintBell`."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus, self._subjects = bus, subjects
        self._subscription: Subscription | None = None

    async def open(self, ring: Callable[[str, Collection[str]], None]) -> None:
        def received(message: Message) -> None:
            try:
                batch = bus_pb2.EventBatch.FromString(message.payload)
            except DecodeError:
                return  # not from us; the next reading does not depend on it
            ring(batch.shard, batch.names)

        self._subscription = await self._bus.subscribe(self._subjects.all_hints, received)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()
