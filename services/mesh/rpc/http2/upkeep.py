"""What only time shows: connections that are silent, idle, old, or never said what they want."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from services.mesh.rpc.http2.connection import Connection
from services.mesh.rpc.http2.serving import Serving
from services.mesh.runtime import until_beat

#: Connections are looked at so often.
_LOOK_SECONDS: Final = 2.0
#: Beyond this the network takes nothing, and what waits are answers to frames that only cost.
_MOST_UNSENT: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may do what, in seconds."""

    #: Between its beginning and its first words.
    greeting: float = 10.0
    #: Without a call.
    idle: float = 300.0
    #: In all: so new replicas get their share, and certificates are checked again.
    age: float = 1800.0
    #: For calls under way on one that is too old.
    grace: float = 60.0
    #: Silent, until it is asked whether it is there; and for its answer.
    silence: float = 60.0
    answer: float = 20.0


class Upkeep:
    """Looks at all connections of a server, now and then."""

    def __init__(self, serving: Serving, patience: Patience = Patience()) -> None:  # noqa: B008
        self._serving, self._patience = serving, patience
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._serving.loop.call_later(until_beat(_LOOK_SECONDS), self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _look(self) -> None:
        self.start()
        now = self._serving.loop.time()
        for connection in list(self._serving.connections):
            self.look_at(connection, now)

    def look_at(self, connection: Connection, now: float) -> None:
        """Do what one connection needs, if anything."""
        connection.receiver.idle_talk = 0
        if connection.pinged is not None and connection.heard > connection.pinged:
            connection.pinged = None  # whatever it said, it is there
        if self._is_gone(connection, now):
            connection.sender.abort()
        elif connection.drained is not None:
            if now - connection.drained > self._patience.grace:
                connection.cut()
        elif self._is_over(connection, now):
            connection.drain()
        elif connection.pinged is None and now - connection.heard > self._patience.silence:
            connection.ping()

    def _is_gone(self, connection: Connection, now: float) -> bool:
        patience = self._patience
        if not connection.receiver.has_greeted:
            return now - connection.began > patience.greeting
        if connection.sender.unsent_bytes > _MOST_UNSENT:
            return True
        if connection.drained is not None and now - connection.drained > 2 * patience.grace:
            return True  # it was cut long ago, and takes our last words by the byte
        return connection.pinged is not None and now - connection.pinged > patience.answer

    def _is_over(self, connection: Connection, now: float) -> bool:
        patience = self._patience
        if not connection.streams and now - connection.idle_since > patience.idle:
            return True
        return now - connection.began > patience.age * connection.share_of_age
