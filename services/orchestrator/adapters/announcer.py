"""What was committed, told over the broker. Losing any of it costs time, never correctness."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from jobmesh.v1 import bus_pb2

from services.mesh.bus import Bus, Subjects
from services.mesh.errors import MeshError
from services.mesh.jobs.model import EventColumns, JobEvent, JobProgress
from services.mesh.telemetry.metrics import Metrics
from services.mesh.wire.events import hint_of_columns, hints
from services.mesh.wire.progress import progress_batch
from services.mesh.wire.values import micros_of
from services.orchestrator.domain.dueness import NOTHING_SOON, Soon

log = logging.getLogger(__name__)

#: Events per message, and bytes: below the broker's limit, of which long tracebacks need more.
HINT_EVENTS = 200
HINT_BYTES = 900_000


class BusAnnouncer:
    """Publishes hints, nudges, ends and cancels; tells `changed` that the load is another."""

    def __init__(
        self, bus: Bus, subjects: Subjects, metrics: Metrics, changed: Callable[[], None]
    ) -> None:
        self._bus, self._subjects, self._changed = bus, subjects, changed
        self._lost = metrics.counter("announcements_lost", "Messages that could not be published.")
        #: Where this Orchestrator takes grabs on loan; empty: nowhere.
        self.lend_at: Callable[[], str] = str
        #: Told of the types that schedulers were told of, and whether also where to lend to.
        self.on_nudged: Callable[[Collection[str], bool], None] = lambda types, lends: None

    async def committed(
        self, shard: str, events: Sequence[JobEvent], columns: Sequence[EventColumns] = ()
    ) -> None:
        if events or columns:
            self._changed()
        subject = self._subjects.hint(shard)
        for part in columns:
            await self._publish(subject, hint_of_columns(shard, part))
        for start in range(0, len(events), HINT_EVENTS):
            for payload in hints(shard, events[start : start + HINT_EVENTS], HINT_BYTES):
                await self._publish(subject, payload)
        if any(part.awaited for part in columns) or any(event.awaited for event in events):
            await self._publish(self._subjects.ended(shard), b"")

    async def progressed(self, shard: str, progress: Sequence[JobProgress]) -> None:
        subject = self._subjects.progress(shard)
        for start in range(0, len(progress), HINT_EVENTS):
            await self._publish(subject, progress_batch(progress[start : start + HINT_EVENTS]))

    async def stored(self, shard: str, names: Iterable[str]) -> None:
        """Says no more than the names: who follows a job by its id learned that id from us."""
        self._changed()
        bell = bus_pb2.EventBatch(shard=shard, names=["", *names])
        await self._publish(self._subjects.hint(shard), bell.SerializeToString())

    async def due(
        self,
        shard: str,
        types: Collection[str],
        soon: Mapping[str, Soon] = NOTHING_SOON,
        long: Collection[str] = (),
        *,
        new: bool = False,
    ) -> None:
        lend_at = self.lend_at() if new else ""
        for type_ in types:
            number = random.getrandbits(64)
            nudge = bus_pb2.Nudge(
                shard=shard, long_due=type_ in long, number=number, lend_at=lend_at
            )
            await self._publish(self._subjects.due(type_), nudge.SerializeToString())
        self.on_nudged(types, bool(lend_at))
        for type_, when in soon.items():
            later = bus_pb2.Nudge(shard=shard, due_time_us=micros_of(when.first), more=when.more)
            await self._publish(self._subjects.due(type_), later.SerializeToString())
        # The driver writes in a task of its own. Without its turn now, a nudge would wait until the
        # answer to whoever stored the jobs is made and sent, and the jobs with it.
        await asyncio.sleep(0)

    async def scheduled(self, shard: str, type_: str, next_time: datetime) -> None:
        nudge = bus_pb2.Nudge(shard=shard, due_time_us=micros_of(next_time), schedule=True)
        await self._publish(self._subjects.due(type_), nudge.SerializeToString())

    async def cancelled(self, worker_id: str, attempts: Sequence[tuple[UUID, int]]) -> None:
        message = bus_pb2.CancelHint(
            attempts=[
                bus_pb2.CancelledAttempt(job_id=job_id.bytes, dispatch_no=fence)
                for job_id, fence in attempts
            ]
        )
        await self._publish(self._subjects.cancel(worker_id), message.SerializeToString())

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self._bus.publish(subject, payload)
        except MeshError as error:
            self._lost.inc()
            extra = {"action": "announcement_lost", "subject": subject}
            log.debug("could not publish: %s", error, extra=extra)
