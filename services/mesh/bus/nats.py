"""The NATS adapter of the bus.

nats-py makes and runs one connection; keeping a connection is done here (`allow_reconnect` is off).
Its own reconnecting gives up for good when the server answers with an error, and carries unsent
messages over into the next connection, where they arrive late.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle
from types import MappingProxyType

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

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
from services.mesh.errors import DependencyUnavailable, PayloadTooLarge
from services.mesh.runtime import Backoff, Dependency, until_beat
from services.mesh.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.1, ceiling=2.0)
CONNECT_SECONDS = 2
#: A server that answered none of three pings in a row, sent at this interval, is gone.
PING_SECONDS = 2
UNANSWERED_PINGS = 2
DRAIN_SECONDS = 3
FLUSH_SECONDS = 2
#: How often a connection is looked at whose end the driver may have failed to tell.
LOOK_SECONDS = 2.0
#: Unsent bytes beyond which `publish` waits, and how long it does.
MAX_UNSENT_BYTES = 8 * 1024 * 1024
CONGESTION_SECONDS = 1.0
#: Messages and bytes one subscription may have waiting for its callback. The driver hands over a
#: whole network buffer before the first callback runs, so the number must exceed the small messages
#: that fit in one, or quick callbacks lose messages as well.
PENDING_MESSAGES = 16_384
PENDING_BYTES = 16 * 1024 * 1024
#: Dropped messages are counted one by one and logged at most this often.
DROP_LOG_SECONDS = 5.0

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_FAILURES = (nats_errors.Error, OSError, TimeoutError)


class NatsBus(Bus):
    """One connection to NATS, kept for as long as the process lives. A Component.

    With `echo` its own subscriptions hear what it publishes, as those of others do.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "jobmesh",
        echo: bool = True,
        dependency: Dependency | None = None,
        metrics: Metrics | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = "nats"
        self._urls = [part.strip() for part in url.split(",") if part.strip()]
        self._client_name, self._echo = name, echo
        self._dependency = dependency
        self._tls = tls
        metrics = metrics or Metrics()
        self._errors = metrics.counter("bus_errors", "What went wrong on the bus.", ("kind",))
        self._connects = metrics.counter("bus_connects", "Connections made to the broker.")
        self._dropped = metrics.counter("bus_dropped", "Messages dropped: callback too slow.")
        self._drop_logged = 0.0
        self._subscriptions: dict[_Subscription, None] = {}
        self._client: Client | None = None
        self._is_connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- life ---

    async def start(self) -> None:
        """Begin to connect. Returns at once: `wait_connected` and the dependency tell the rest."""
        if not self._urls:
            raise ValueError("NATS url: expected nats://host:port[,…], got nothing")
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected(), name="bus-connection")

    async def stop(self) -> None:
        """Deliver what has arrived, send what was published, close."""
        if self._task is None:
            return
        client, task = self._client, self._task
        self._task = None
        self._is_connected.clear()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if client is not None:
            await _drain(client)

    @property
    def connected(self) -> bool:
        # The client knows first: it may take it a while to end a connection that it has given up.
        client = self._client
        return self._is_connected.is_set() and client is not None and client.is_connected

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Return once connected; TimeoutError if that takes too long."""
        async with asyncio.timeout(timeout):
            await self._is_connected.wait()

    # --- messages ---

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        client = self._client
        if client is None or not client.is_connected:
            raise DependencyUnavailable(DEPENDENCY, "the broker is not connected")
        if client.pending_data_size > MAX_UNSENT_BYTES:
            await self._relieved(client)
        try:
            await client.publish(subject, payload, reply, dict(headers) if headers else None)
        except nats_errors.BadSubjectError as error:
            raise ValueError(f"{subject!r} or {reply!r} is no subject") from error
        except nats_errors.MaxPayloadError as error:
            limit = client.max_payload
            raise PayloadTooLarge(len(payload), limit, "the bus message") from error
        except _FAILURES as error:
            raise DependencyUnavailable(DEPENDENCY, f"cannot publish: {_said(error)}") from error

    async def subscribe(self, subject: str, callback: Callback, *, queue: str = "") -> Subscription:
        # Before it is kept: a connection that cannot be given all of them is no connection.
        check_pattern(subject)
        subscription = _Subscription(self, subject, queue, callback)
        self._subscriptions[subscription] = None
        client = self._client
        if client is None:
            return subscription
        try:
            await subscription.attach(client)
            await _settled(client)
        except _FAILURES as error:
            # The connection breaks at this moment; the next one gets the subscription.
            log.debug("not subscribed yet", extra={"action": "bus_error", "error": _said(error)})
        except asyncio.CancelledError:
            await subscription.unsubscribe()  # nobody has it who could
            raise
        return subscription

    async def open_inbox(self, callback: InboxCallback) -> Inbox:
        inbox = NatsInbox(f"_INBOX.{uuid.uuid4().hex}")
        await self.subscribe(
            f"{inbox.prefix}.>", lambda message: callback(inbox.token(message.subject), message)
        )
        return inbox

    def forget(self, subscription: _Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def handler_failed(self, subject: str) -> None:
        self._errors.labels("callback").inc()
        extra = {"action": "bus_callback_failed", "subject": subject}
        log.exception("message callback failed", extra=extra)

    async def _relieved(self, client: Client) -> None:
        """Wait until the connection has sent something; a server that takes nothing is away."""
        try:
            async with asyncio.timeout(CONGESTION_SECONDS):
                while client.pending_data_size > MAX_UNSENT_BYTES:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            self._errors.labels("congestion").inc()
            raise DependencyUnavailable(DEPENDENCY, "the broker does not keep up") from error

    # --- the connection ---

    async def _stay_connected(self) -> None:
        failures = 0
        for url in cycle(self._urls):
            failures = 0 if await self._one_connection(url) else failures + 1
            await asyncio.sleep(BACKOFF.delay(failures))

    async def _one_connection(self, url: str) -> bool:
        """Make a connection and stay until it ends; whether it was made at all."""
        client, ended = Client(), asyncio.Event()
        try:
            await self._connect(client, url, ended)
        except BaseException as error:
            self._client = None
            await _close(client)
            if not isinstance(error, Exception):
                raise
            # Whatever it was: this task must not die, or the process would never connect again.
            self._down(_said(error))
            return False
        try:
            await _closed(client, ended)
        finally:
            self._is_connected.clear()
            self._client = None
        self._down(_said(client.last_error or "the connection was closed"))
        return True

    async def _connect(self, client: Client, url: str, ended: asyncio.Event) -> None:
        async def on_closed() -> None:
            ended.set()

        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await client.connect(
                [url],
                name=self._client_name,
                no_echo=not self._echo,
                error_cb=self._on_error,
                closed_cb=on_closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=UNANSWERED_PINGS,
                drain_timeout=DRAIN_SECONDS,
                pending_size=-1,
                tls=self._tls,
            )
        self._client = client
        for subscription in tuple(self._subscriptions):
            await subscription.attach(client)
        await _settled(client)
        self._connects.inc()
        self._is_connected.set()
        if self._dependency is not None:
            self._dependency.up()

    def _down(self, reason: str) -> None:
        if self._dependency is not None:
            self._dependency.down(reason)
        log.warning("broker is away", extra={"action": "bus_disconnected", "reason": reason})

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            self._on_drop(error)
            return
        self._errors.labels(type(error).__name__).inc()
        if "permissions violation" in str(error).lower():
            # The connection lives, but a part of our work does not get through: say so aloud.
            self._down(_said(error))
            return
        log.debug("bus error", extra={"action": "bus_error", "error": _said(error)})

    def _on_drop(self, error: nats_errors.SlowConsumerError) -> None:
        self._dropped.inc()
        if time.monotonic() - self._drop_logged > DROP_LOG_SECONDS:
            self._drop_logged = time.monotonic()
            extra = {"action": "bus_dropped", "subject": error.subject}
            log.warning("dropping messages: the callback is too slow", extra=extra)


class NatsInbox(Inbox):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def address(self, token: str) -> str:
        return f"{self.prefix}.{token}"

    def token(self, subject: str) -> str:
        return subject[len(self.prefix) + 1 :]


class _Subscription(Subscription):
    """A subscription of ours, and what stands for it on the present connection."""

    def __init__(self, bus: NatsBus, subject: str, queue: str, callback: Callback) -> None:
        self._bus = bus
        self._subject = subject
        self._queue = queue
        self._callback = callback
        self._client: Client | None = None
        self._attached: NatsSubscription | None = None

    async def attach(self, client: Client) -> None:
        if self._client is client:
            return
        self._client = client
        self._attached = await client.subscribe(
            self._subject,
            self._queue,
            self._deliver,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )

    async def unsubscribe(self) -> None:
        self._bus.forget(self)
        attached, self._attached = self._attached, None
        if attached is not None:
            with suppress(*_FAILURES):
                await attached.unsubscribe()

    async def drain(self) -> None:
        self._bus.forget(self)
        attached, self._attached = self._attached, None
        if attached is not None:
            # A broker that stands still has nothing more for us, as far as anybody can tell.
            with suppress(*_FAILURES):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await attached.drain()  # type: ignore[no-untyped-call]

    async def _deliver(self, raw: Msg) -> None:
        headers = raw.headers or NO_HEADERS
        nobody = bool(headers) and not raw.data and headers.get("Status") == "503"
        try:
            done = self._callback(Message(raw.subject, raw.data, raw.reply, headers, nobody))
            if done is not None:
                await done
        except Exception:
            self._bus.handler_failed(raw.subject)


async def _settled(client: Client) -> None:
    """Return once the server has read everything that was sent to it."""
    async with asyncio.timeout(FLUSH_SECONDS):
        # A flush sends its ping past what still waits to be sent, so that has to go first.
        while client.pending_data_size and client.is_connected:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        await client.flush(FLUSH_SECONDS)


async def _closed(client: Client, ended: asyncio.Event) -> None:
    """Return when the connection has ended.

    The driver tells so, unless closing fails on its way there: when the server has reset the
    connection while something was unsent, as it does to a process that was frozen, an exception
    keeps the driver from telling anybody. Its state says closed all the same.
    """
    while not client.is_closed:
        with suppress(TimeoutError):
            async with asyncio.timeout(until_beat(LOOK_SECONDS)):
                await ended.wait()
                return


async def _drain(client: Client) -> None:
    try:
        await client.drain()
    except _FAILURES:
        await _close(client)


async def _close(client: Client) -> None:
    """Close what may have been opened only half way."""
    with suppress(*_FAILURES, AssertionError):
        await client.close()


def _said(error: object) -> str:
    return str(error) or type(error).__name__
