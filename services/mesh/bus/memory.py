"""The bus within one process, for tests: the same behaviour, no broker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from services.mesh.bus.port import (
    DEPENDENCY,
    Bus,
    Callback,
    Inbox,
    InboxCallback,
    Message,
    Subscription,
)
from services.mesh.bus.subjects import check_pattern
from services.mesh.errors import DependencyUnavailable

log = logging.getLogger(__name__)


class MemoryBroker:
    """Carries messages between the buses that share it; `connected` may be set to False."""

    def __init__(self) -> None:
        self.connected = True
        self.subscriptions: list[MemorySubscription] = []
        self.inboxes = itertools.count(1)
        self._turn = itertools.count()

    def route(self, message: Message) -> None:
        """To every plain subscription that matches, and to one of each queue group."""
        matching = [s for s in self.subscriptions if s.matches(message.subject)]
        groups: dict[str, list[MemorySubscription]] = {}
        for subscription in matching:
            if subscription.queue:
                groups.setdefault(subscription.queue, []).append(subscription)
            else:
                subscription.deliver(message)
        turn = next(self._turn)
        for members in groups.values():
            members[turn % len(members)].deliver(message)
        if not matching and message.reply:
            self.route(Message(message.reply, b"", "", {"Status": "503"}, no_responders=True))


class MemoryBus(Bus):
    """One process's end of a broker."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self._subscriptions: list[MemorySubscription] = []

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    @property
    def connected(self) -> bool:
        return self.broker.connected

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not self.broker.connected:
            raise DependencyUnavailable(DEPENDENCY, "the broker is not connected")
        self.broker.route(Message(subject, payload, reply, dict(headers or {})))

    async def subscribe(self, subject: str, callback: Callback, *, queue: str = "") -> Subscription:
        check_pattern(subject)
        subscription = MemorySubscription(self.broker, subject, callback, queue)
        self._subscriptions.append(subscription)
        return subscription

    async def open_inbox(self, callback: InboxCallback) -> Inbox:
        inbox = MemoryInbox(f"_INBOX.{next(self.broker.inboxes)}")
        await self.subscribe(
            f"{inbox.prefix}.>", lambda message: callback(inbox.token(message.subject), message)
        )
        return inbox


class MemoryInbox(Inbox):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def address(self, token: str) -> str:
        return f"{self.prefix}.{token}"

    def token(self, subject: str) -> str:
        return subject[len(self.prefix) + 1 :]


class MemorySubscription(Subscription):
    def __init__(self, broker: MemoryBroker, subject: str, callback: Callback, queue: str) -> None:
        self._broker = broker
        self._pattern = subject.split(".")
        self.queue = queue
        self._callback = callback
        self._waiting: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.create_task(self._pump(), name=f"memory-bus-{subject}")
        broker.subscriptions.append(self)

    def matches(self, subject: str) -> bool:
        return _matches(self._pattern, subject.split("."))

    def deliver(self, message: Message) -> None:
        self._waiting.put_nowait(message)

    async def unsubscribe(self) -> None:
        with suppress(ValueError):
            self._broker.subscriptions.remove(self)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def drain(self) -> None:
        with suppress(ValueError):
            self._broker.subscriptions.remove(self)
        if not self._task.done():
            await self._waiting.join()
        await self.unsubscribe()

    async def _pump(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                done = self._callback(message)
                if done is not None:
                    await done
            except Exception:
                extra = {"action": "bus_callback_failed", "subject": message.subject}
                log.exception("message callback failed", extra=extra)
            finally:
                self._waiting.task_done()


def _matches(pattern: Iterable[str], tokens: Iterable[str]) -> bool:
    for wanted, token in itertools.zip_longest(pattern, tokens):
        if wanted == ">" and token is not None:
            return True
        if wanted is None or token is None or wanted not in ("*", token):
            return False
    return True
