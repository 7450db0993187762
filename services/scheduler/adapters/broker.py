"""The broker as schedulers use it: grabs, nudges in; dispatches, nudges, calls and hints out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from services.mesh.bus import SCHEDULERS, Bus, Message, Subjects, Subscription
from services.mesh.errors import PayloadTooLarge
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, JobEvent
from services.mesh.wire.dispatches import (
    Sender,
    dispatch_batches,
    empty_batch,
    grab_from_bytes,
    grab_to_bytes,
    withdrawal_from_bytes,
)
from services.mesh.wire.events import hints
from services.scheduler.convert import (
    claims_to_hint,
    nudge_from_bytes,
    nudge_to_bytes,
    served_from_bytes,
    served_to_bytes,
    stop_to_bytes,
)
from services.scheduler.domain.times import Shown
from services.scheduler.domain.word import Served, Word

log = logging.getLogger(__name__)


class BusBroker:
    """The port `Broker` over the mesh's bus."""

    def __init__(self, bus: Bus, subjects: Subjects, scheduler_id: str, message_bytes: int) -> None:
        self._bus, self._subjects = bus, subjects
        self._scheduler_id, self._message_bytes = scheduler_id, message_bytes

    @property
    def connected(self) -> bool:
        return self._bus.connected

    async def dispatch(self, grab: Grab, jobs: Sequence[Claimed], now: Shown) -> int:
        size = 0
        sender = Sender(self._scheduler_id, self._message_bytes, now.us, now.clock)
        for batch in dispatch_batches(grab, jobs, sender):
            size += len(batch)
            try:
                await self._bus.publish(grab.inbox, batch)
            except PayloadTooLarge as error:
                # One job alone is too large. Taking it back would only bring it round again at
                # once; the sweep does so slowly, and this line says why it never starts.
                extra = {"action": "dispatch_too_large", "type": grab.type}
                log.error("a job does not fit the broker: %s", error, extra=extra)
        return size

    async def answer_empty(self, grab: Grab, *, draining: bool = False) -> None:
        batch = empty_batch(grab, self._scheduler_id, draining=draining)
        await self._bus.publish(grab.inbox, batch)

    async def nudge(
        self,
        shard: str,
        types: Sequence[str],
        first: datetime | None = None,
        *,
        long_due: bool = False,
    ) -> None:
        nudge = nudge_to_bytes(shard, types, first, long_due=long_due)
        await self._bus.publish(self._subjects.due(types[0]), nudge)

    async def served(self, scheduler_ids: Iterable[str], served: Served) -> None:
        word = served_to_bytes(served)
        for scheduler_id in scheduler_ids:
            await self._bus.publish(self._subjects.served_at(scheduler_id), word)

    async def call(self, type_: str) -> None:
        here = self._subjects.grab_at(self._scheduler_id)
        await self._bus.publish(self._subjects.call(type_), b"", reply=here)

    async def lend(self, grab: Grab, at: str, seconds: float) -> None:
        await self._bus.publish(at, grab_to_bytes(grab, seconds), reply=grab.inbox)

    async def recall(self, type_: str) -> None:
        here = self._subjects.grab_at(self._scheduler_id)
        await self._bus.publish(self._subjects.recall(type_), b"", reply=here)

    async def hint_claims(self, shard: str, worker_id: str, jobs: Sequence[Claimed]) -> None:
        await self._bus.publish(self._subjects.hint(shard), claims_to_hint(shard, worker_id, jobs))

    async def hint(self, shard: str, events: Sequence[JobEvent]) -> None:
        for payload in hints(shard, events, self._message_bytes):
            await self._bus.publish(self._subjects.hint(shard), payload)
        if any(event.awaited for event in events):
            await self._bus.publish(self._subjects.ended(shard), b"")

    async def stop(self, worker_id: str, job_id: UUID, fence: int) -> None:
        await self._bus.publish(self._subjects.cancel(worker_id), stop_to_bytes(job_id, fence))


class Intake:
    """What comes in: nudges, word of ends and withdrawals to every scheduler, what others have
    served, grabs to one of them, or to the one whose call they answer.

    A component. On drain it ceases to take grabs, then has those that wait sent elsewhere.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        scheduler_id: str,
        grabbed: Callable[[Grab], None],
        heard: Callable[[Word], None],
        ended: Callable[[str], None],
        closing: Callable[[], Awaitable[None]],
        withdrawn: Callable[[Grab], None],
        served: Callable[[Served], None],
    ) -> None:
        self.name = "intake"
        self._bus, self._subjects, self._scheduler_id = bus, subjects, scheduler_id
        self._grabbed, self._heard, self._closing = grabbed, heard, closing
        self._ended, self._withdrawn, self._served = ended, withdrawn, served
        self._grabs: list[Subscription] = []
        self._withdrawals: Subscription | None = None
        self._nudges: Subscription | None = None
        self._ends: Subscription | None = None
        self._others: Subscription | None = None

    async def start(self) -> None:
        self._nudges = await self._bus.subscribe(self._subjects.all_due, self._on_nudge)
        self._ends = await self._bus.subscribe(self._subjects.all_ended, self._on_end)
        self._withdrawals = await self._bus.subscribe(
            self._subjects.all_withdrawals, self._on_withdrawal
        )
        served = self._subjects.served_at(self._scheduler_id)
        self._others = await self._bus.subscribe(served, self._on_served)
        here = self._subjects.grab_at(self._scheduler_id)
        self._grabs = [
            await self._bus.subscribe(here, self._on_grab),
            await self._bus.subscribe(self._subjects.all_grabs, self._on_grab, queue=SCHEDULERS),
        ]

    async def stop_taking(self) -> None:
        """The broker gives grabs to other schedulers from now on, and so do we with those that it
        has sent here by then: who waited for one that got lost would wait for long.
        """
        grabs, self._grabs = self._grabs, []
        for subscription in grabs:
            await subscription.drain()
        if grabs:
            await self._closing()

    async def stop(self) -> None:
        await self.stop_taking()
        nudges, self._nudges = self._nudges, None
        ends, self._ends = self._ends, None
        withdrawals, self._withdrawals = self._withdrawals, None
        others, self._others = self._others, None
        for subscription in (nudges, ends, withdrawals, others):
            if subscription is not None:
                await subscription.unsubscribe()

    def _on_grab(self, message: Message) -> None:
        if message.no_responders:
            return  # we called, and nobody serves the type; or recalled, and nobody has a loan
        try:
            self._grabbed(grab_from_bytes(message.payload, message.reply))
        except ValueError as error:
            message.dropped(error)

    def _on_withdrawal(self, message: Message) -> None:
        try:
            self._withdrawn(withdrawal_from_bytes(message.payload))
        except ValueError as error:
            message.dropped(error)

    def _on_nudge(self, message: Message) -> None:
        try:
            type_ = self._subjects.tail(message.subject)
            self._heard(nudge_from_bytes(message.payload, type_))
        except ValueError as error:
            message.dropped(error)

    def _on_served(self, message: Message) -> None:
        try:
            self._served(served_from_bytes(message.payload))
        except ValueError as error:
            message.dropped(error)

    def _on_end(self, message: Message) -> None:
        self._ended(self._subjects.tail(message.subject))
