"""Jobs and their transitions, from the Orchestrators and from the broker."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.ports import Change
from services.mesh.bus import Bus, Message, Subjects, Subscription
from services.mesh.errors import JobNotFound
from services.mesh.rpc.items import from_item_error
from services.mesh.wire.events import TERMINAL, HintedEvent, read_event_batch, read_hint
from services.mesh.wire.progress import read_progress
from services.mesh.wire.values import id_texts

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub


class OrchestratorSource:
    """Implements `ports.JobSource`."""

    def __init__(self, orchestrator: OrchestratorServiceAsyncStub) -> None:
        self._orchestrator = orchestrator

    async def snapshots(self, namespace: str, job_ids: Sequence[str]) -> list[Change]:
        answer = await self._orchestrator.GetJobs(
            pb.GetJobsRequest(job_ids=job_ids, namespace=namespace)
        )
        for result in answer.results:
            if result.HasField("error"):
                raise from_item_error(result.error)
        jobs = [result.job for result in answer.results]
        return [Change(job.id, job.version, job.state in TERMINAL, job) for job in jobs]

    async def changes_after(self, seen: Mapping[str, int]) -> tuple[list[Change], list[str]]:
        if not seen:
            return [], []
        answer = await self._orchestrator.ListEvents(
            pb.ListEventsRequest(
                cursors=[
                    pb.EventCursor(job_id=job_id, after_version=version)
                    for job_id, version in seen.items()
                ]
            )
        )
        return [change_of(event) for event in answer.events], list(answer.missing_shards)

    async def ends(
        self, namespace: str, jobs: Mapping[bytes, str]
    ) -> tuple[list[Change], list[str]]:
        answer = await self._orchestrator.ListEnds(
            pb.ListEndsRequest(job_ids=b"".join(jobs), namespace=namespace)
        )
        if answer.unknown_job_ids:
            raise JobNotFound(id_texts(answer.unknown_job_ids)[0])
        ended = [event for batch in answer.ends for event in read_event_batch(batch, jobs)]
        return [change_of(event) for event in ended], list(answer.missing_shards)


def change_of(event: job_pb2.JobEvent | HintedEvent) -> Change:
    return Change(event.job_id, event.version, event.state in TERMINAL, event)


class BusHints:
    """Implements `ports.HintFeed`."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus, self._subjects = bus, subjects
        self._subscription: Subscription | None = None

    async def open(
        self,
        wanted: Mapping[bytes, str],
        sink: Callable[[Sequence[Change]], None],
        ends_only: Callable[[], bool],
    ) -> None:
        def received(message: Message) -> None:
            try:
                events = read_hint(message.payload, wanted, ends_only=ends_only())
                changes = [change_of(event) for event in events]
            except (DecodeError, IndexError, ValueError):
                return  # not from us; the re-read does not depend on it
            if changes:
                sink(changes)

        self._subscription = await self._bus.subscribe(self._subjects.all_hints, received)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()


class BusProgress:
    """Implements `ports.ProgressFeed`."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus, self._subjects = bus, subjects
        self._subscription: Subscription | None = None

    async def open(
        self, wanted: Container[bytes], sink: Callable[[Sequence[tuple[str, Any]]], None]
    ) -> None:
        def received(message: Message) -> None:
            try:
                said = [(one.job_id, one) for one in read_progress(message.payload, wanted)]
            except (DecodeError, ValueError):
                return  # not from us
            if said:
                sink(said)

        self._subscription = await self._bus.subscribe(self._subjects.all_progress, received)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()
