"""What services ask of the broker. No driver."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

DEPENDENCY = "nats"


class Message(NamedTuple):
    """One message as it arrived."""

    subject: str
    payload: bytes
    # Where an answer is wanted; empty if none is.
    reply: str
    headers: Mapping[str, str]
    # Not from a peer: the server says that nobody listens where the request went.
    no_responders: bool = False

    def dropped(self, error: ValueError) -> None:
        """Say that nobody could read it, and why."""
        extra = {"action": "message_malformed", "subject": self.subject, "error": str(error)}
        log.warning("dropped a malformed message", extra=extra)


#: Called with each message, in order. An awaitable it returns is awaited before the next one.
Callback = Callable[[Message], Awaitable[None] | None]
#: The same, with the token of the address that was answered.
InboxCallback = Callable[[str, Message], Awaitable[None] | None]


class Subscription(Protocol):
    async def unsubscribe(self) -> None:
        """Receive nothing more. May be called twice, and without a connection."""
        ...

    async def drain(self) -> None:
        """As `unsubscribe`, but what the broker has sent until now is received first."""
        ...


class Inbox(Protocol):
    """Where answers to this process arrive."""

    def address(self, token: str) -> str:
        """A `reply` that brings the answer here, with the token. The token may contain dots."""
        ...


class Bus(Protocol):
    @property
    def connected(self) -> bool: ...

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand a message to the broker.

        Raises DependencyUnavailable if it is not connected or does not keep up, PayloadTooLarge if
        the broker would not take a message of that size.
        """
        ...

    async def subscribe(self, subject: str, callback: Callback, *, queue: str = "") -> Subscription:
        """Have messages delivered; with `queue`, each to one member of the group only.

        Works without a connection: it then takes effect with the next one. On return with a
        connection, the broker knows of the subscription.
        """
        ...

    async def open_inbox(self, callback: InboxCallback) -> Inbox:
        """Open an inbox that lasts as long as the bus."""
        ...
