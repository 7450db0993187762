"""The broker as a worker uses it: grabs go out; dispatches, calls and cancel hints come in."""

from __future__ import annotations

from collections.abc import Callable

from services.mesh.bus import Bus, Message, Subjects, Subscription
from services.mesh.bus import Inbox as BusInbox
from services.mesh.runtime import Dependency
from services.worker.convert import batch_from_bytes, cancels_from_bytes, grab_to_bytes
from services.worker.ports import Broker, Inbox, WorkSource


class BusBroker(Broker):
    """The port over the mesh's bus. One inbox for the process; identities share it by token."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus, self._subjects = bus, subjects
        self._inbox: BusInbox | None = None
        self._sources: dict[str, BusSource] = {}

    async def join(self, worker_id: str, inbox: Inbox) -> WorkSource:
        if self._inbox is None:
            self._inbox = await self._bus.open_inbox(self._answered)
        source = BusSource(self, self._bus, self._subjects, worker_id, inbox, self._inbox)
        self._sources[worker_id] = source
        await source.listen()
        return source

    def leave(self, worker_id: str) -> None:
        self._sources.pop(worker_id, None)

    def _answered(self, token: str, message: Message) -> None:
        """An answer to a grab; its token is worker id, grab number and type."""
        worker_id, _, rest = token.partition(".")
        source = self._sources.get(worker_id)
        if source is not None:
            source.answered(rest, message)


class BusSource(WorkSource):
    """One identity's way to the schedulers."""

    def __init__(
        self,
        broker: BusBroker,
        bus: Bus,
        subjects: Subjects,
        worker_id: str,
        inbox: Inbox,
        address: BusInbox,
    ) -> None:
        self._broker, self._bus, self._subjects = broker, bus, subjects
        self._worker_id, self._inbox, self._address = worker_id, inbox, address
        self._heard: list[Subscription] = []

    async def listen(self) -> None:
        subject = self._subjects.cancel(self._worker_id)
        self._heard.append(await self._bus.subscribe(subject, self._hinted))

    async def listen_for_calls(self, type_: str) -> None:
        subject = self._subjects.call(type_)
        self._heard.append(await self._bus.subscribe(subject, self._called))

    async def grab(
        self, type_: str, credit: int, grab_no: int, at: str = "", *, waits: bool = True
    ) -> None:
        await self._bus.publish(
            at or self._subjects.grab(type_),
            grab_to_bytes(self._worker_id, type_, credit, grab_no, waits=waits),
            reply=self._address.address(f"{self._worker_id}.{grab_no}.{type_}"),
        )

    async def withdraw(self, type_: str, grab_no: int) -> None:
        withdrawal = grab_to_bytes(self._worker_id, type_, 0, grab_no)
        await self._bus.publish(self._subjects.withdraw(type_), withdrawal)

    async def close(self) -> None:
        self._broker.leave(self._worker_id)
        heard, self._heard = self._heard, []
        for subscription in heard:
            await subscription.unsubscribe()

    def answered(self, token: str, message: Message) -> None:
        number, _, type_ = token.partition(".")
        try:
            if message.no_responders:
                self._inbox.refused(type_, int(number))
            else:
                self._inbox.received(batch_from_bytes(message.payload))
        except ValueError as error:
            message.dropped(error)

    def _called(self, message: Message) -> None:
        if message.reply:
            self._inbox.called(self._subjects.tail(message.subject), message.reply)

    def _hinted(self, message: Message) -> None:
        try:
            for key, fence in cancels_from_bytes(message.payload):
                self._inbox.cancelled(key, fence)
        except ValueError as error:
            message.dropped(error)


class RegrabOnReconnect(Dependency):
    """Stands for the broker in the process's readiness, and has lost grabs sent again.

    A grab that was under way when the connection broke is lost, and nobody else knows of it.
    """

    def __init__(self, broker: Dependency, regrab: Callable[[], None]) -> None:
        super().__init__(broker.name, lambda: None)
        self._broker, self._regrab = broker, regrab

    def up(self) -> None:
        self._broker.up()
        self._regrab()

    def down(self, reason: object = "") -> None:
        self._broker.down(reason)
