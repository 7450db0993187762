"""Workers' grabs as an Orchestrator has them on loan, over the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from services.mesh.bus import Bus, Message, Subjects, Subscription
from services.mesh.errors import DependencyUnavailable, PayloadTooLarge
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed
from services.mesh.wire.dispatches import (
    Sender,
    dispatch_batches,
    empty_batch,
    grab_to_bytes,
    loan_from_bytes,
    withdrawal_from_bytes,
)
from services.orchestrator.app.loans import Loans

log = logging.getLogger(__name__)

#: Below the broker's limit.
MESSAGE_BYTES = 900_000


class BusHands:
    """The port `Hands` over the mesh's bus."""

    def __init__(self, bus: Bus, subjects: Subjects, orchestrator_id: str) -> None:
        self._bus, self._subjects, self._id = bus, subjects, orchestrator_id
        self.here = subjects.grab_at(orchestrator_id)

    @property
    def connected(self) -> bool:
        return self._bus.connected

    async def dispatch(
        self, grab: Grab, jobs: Sequence[Claimed], *, stay: bool, more: bool = False
    ) -> None:
        sender = Sender(self._id, MESSAGE_BYTES, grab_at=self.here if stay else "", more=more)
        for batch in dispatch_batches(grab, jobs, sender):
            try:
                await self._bus.publish(grab.inbox, batch)
            except PayloadTooLarge as error:
                extra = {"action": "dispatch_too_large", "type": grab.type}
                log.error("a job does not fit the broker: %s", error, extra=extra)
        # The driver writes in a task of its own: it has its turn before the answer is made.
        await asyncio.sleep(0)

    async def answer_empty(self, grab: Grab, *, stay: bool = False) -> None:
        batch = empty_batch(grab, self._id, draining=False, grab_at=self.here if stay else "")
        with suppress(DependencyUnavailable):  # the worker's own patience repairs this
            await self._bus.publish(grab.inbox, batch)

    async def pass_on(self, grab: Grab, to: str = "", *, back: bool = False) -> None:
        with suppress(DependencyUnavailable):
            subject = to or self._subjects.grab(grab.type)
            payload = grab_to_bytes(replace(grab, lend_at=self.here if back else ""))
            await self._bus.publish(subject, payload, reply=grab.inbox)


class LoanDesk:
    """What comes in: loans of schedulers and grabs of workers, recalls and withdrawals.

    A component. On drain all grabs go back to the schedulers.
    """

    name = "loan desk"

    def __init__(self, bus: Bus, subjects: Subjects, hands: BusHands, loans: Loans) -> None:
        self._bus, self._subjects = bus, subjects
        self._hands, self._loans = hands, loans
        self._subscriptions: list[Subscription] = []
        self._taking = False

    @property
    def lend_at(self) -> str:
        """Where grabs are lent to us; empty while we take none."""
        return self._hands.here if self._taking else ""

    async def start(self) -> None:
        subscribe, subjects = self._bus.subscribe, self._subjects
        self._subscriptions = [
            await subscribe(self._hands.here, self._on_grab),
            await subscribe(subjects.all_recalls, self._on_recall),
            await subscribe(subjects.all_withdrawals, self._on_withdrawal),
        ]
        self._taking = True

    async def stop_taking(self) -> None:
        """Grabs that still come are passed on."""
        self._taking = False
        self._loans.close()

    async def stop(self) -> None:
        await self.stop_taking()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.drain()

    def _on_grab(self, message: Message) -> None:
        try:
            grab, seconds = loan_from_bytes(message.payload, message.reply)
        except ValueError as error:
            message.dropped(error)
        else:
            self._loans.grabbed(grab, seconds if self._taking else 0.0)

    def _on_recall(self, message: Message) -> None:
        self._loans.recalled(self._subjects.tail(message.subject), message.reply)

    def _on_withdrawal(self, message: Message) -> None:
        try:
            self._loans.withdrawn(withdrawal_from_bytes(message.payload))
        except ValueError as error:
            message.dropped(error)
