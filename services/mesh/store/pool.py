"""The connections of one shard, and those who wait for one.

Taking one that is idle, and giving it back, is a list's pop and append. The one that was used last
is taken first: its statements are prepared, its server process is warm, and those that nobody needs
are known by where they lie.

Nothing is tried for ever. A pool that cannot connect tries once more and gives up: whoever asks
next begins anew at once, and the gate or breaker that a probe opens says when somebody asks. Were
it to go on with growing pauses, a shard that is back after a minute would wait for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import random

import psycopg

from services.mesh.errors import ShardUnavailable
from services.mesh.runtime.tasks import Tasks
from services.mesh.store.session import Session
from services.mesh.store.settings import StoreSettings

_AGAIN_SECONDS = 0.2
#: Connections beyond the least number that nobody needed for so long are closed.
_IDLE_SECONDS = 600.0
#: A connection's time, less up to a tenth so that not all go together: what a server process
#: gathers in memory does not stay, and a shard that moved to another address is found there.
_LIFE_SECONDS = 3600.0

log = logging.getLogger(__name__)


class Pool:
    """Made in a running loop, it begins to connect in the background."""

    def __init__(
        self, shard: str, connect: Callable[[], Awaitable[Session]], settings: StoreSettings
    ) -> None:
        self._shard = shard
        self._connect = connect
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._idle: list[Session] = []
        self._leaving: set[Session] = set()
        """Of those who went away before the answer."""
        self._waiting: deque[asyncio.Future[Session]] = deque()
        self._size = 0
        """Connections that are idle, in use, or about to be closed."""
        self._unneeded = 0
        """So many lay idle all the time since the last look."""
        self._growing = False
        self._closed = False
        self._tasks = Tasks()
        self._next_look = self._loop.call_later(_IDLE_SECONDS, self._look)
        self._grow()

    async def take(self) -> Session:
        """A live connection, to be given back; ShardUnavailable if there is none in time."""
        while True:
            session = self._idle.pop() if self._idle else await self._turn()
            if len(self._idle) < self._unneeded:
                self._unneeded = len(self._idle)
            # After a restart of the server every idle connection is dead. Found before anything is
            # sent, that costs a reconnect; found afterwards, an unknown outcome.
            if not session.hung_up():
                return session
            self._discard(session)

    def give_back(self, session: Session) -> None:
        """It is for others now."""
        if self._closed or not session.at_rest or self._loop.time() > session.expires:
            self._discard(session)
        else:
            self._hand_on(session)

    def end_waits(self) -> None:
        """Nobody waits any longer: there will be no connection."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            self._refuse(turn)

    async def close(self) -> None:
        """Hang up. What is in use is closed when it is given back."""
        self._closed = True
        self._next_look.cancel()
        self.end_waits()
        await self._tasks.stop()
        for session in (*self._leaving, *self._idle):
            session.close()
        self._leaving.clear()
        self._idle.clear()

    # --- waiting

    async def _turn(self) -> Session:
        if self._closed or len(self._waiting) >= self._settings.max_waiting:
            raise ShardUnavailable(self._shard)
        turn: asyncio.Future[Session] = self._loop.create_future()
        alarm = self._loop.call_later(self._settings.acquire_timeout, self._refuse, turn)
        self._waiting.append(turn)
        self._grow()
        try:
            return await turn
        except (asyncio.CancelledError, ShardUnavailable):
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(turn.result())
            self._leave(turn)
            raise
        finally:
            alarm.cancel()

    def _leave(self, turn: asyncio.Future[Session]) -> None:
        with suppress(ValueError):
            self._waiting.remove(turn)

    def _refuse(self, turn: asyncio.Future[Session]) -> None:
        if not turn.done():
            turn.set_exception(ShardUnavailable(self._shard))

    def _hand_on(self, session: Session) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(session)
                return
        self._idle.append(session)

    # --- growing and shrinking

    def _grow(self) -> None:
        # One at a time: most who wait are served by what is given back meanwhile.
        if not (self._growing or self._closed) and self._too_few():
            self._growing = True
            name = f"connecting to {self._shard}"
            self._tasks.spawn(self._grow_as_needed(), name, vital=False)

    def _too_few(self) -> bool:
        most = self._settings.max_connections
        wanted = most if self._waiting else self._settings.min_connections
        return self._size < min(wanted, most)

    async def _grow_as_needed(self) -> None:
        try:
            while self._too_few():
                asked = tuple(self._waiting)
                try:
                    session = await self._connected()
                except ShardUnavailable as error:
                    self._give_up(asked, error)
                    if self._size or not self._waiting:
                        return
                else:
                    self._size += 1
                    self._hand_on(session)
        finally:
            self._growing = False

    def _give_up(self, asked: Iterable[asyncio.Future[Session]], error: ShardUnavailable) -> None:
        extra = {"action": "connect_failed", "shard": self._shard}
        log.warning("cannot connect: %s", error.__cause__, extra=extra)
        # With a connection left there is hope: it may only be that there are too many. And who came
        # after it was tried may be luckier.
        if not self._size:
            for turn in asked:
                self._refuse(turn)
                self._leave(turn)

    async def _connected(self) -> Session:
        try:
            session = await self._connect()
        except ShardUnavailable:
            await asyncio.sleep(_AGAIN_SECONDS)
            session = await self._connect()
        session.expires = self._loop.time() + _LIFE_SECONDS * (1 - random() / 10)
        return session

    def _discard(self, session: Session) -> None:
        if session.answer_pending and not self._closed:
            self._leaving.add(session)
            name = f"cancelling on {self._shard}"
            self._tasks.spawn(self._cancel_and_close(session), name, vital=False)
        else:
            self._forget(session)

    async def _cancel_and_close(self, session: Session) -> None:
        """Nobody waits for its answer. Closed only, it would go on, and keep what it has locked."""
        try:
            with suppress(psycopg.Error, OSError):
                await session.connection.cancel_safe(timeout=self._settings.connect_timeout)
        finally:
            self._leaving.discard(session)
            self._forget(session)

    def _forget(self, session: Session) -> None:
        session.close()
        self._size -= 1
        self._grow()

    def _look(self) -> None:
        """Close what nobody needed since the last look: it lies at the bottom."""
        self._next_look = self._loop.call_later(_IDLE_SECONDS, self._look)
        surplus = min(self._unneeded, self._size - self._settings.min_connections)
        for session in self._idle[: max(0, surplus)]:
            self._idle.remove(session)
            self._forget(session)
        self._unneeded = len(self._idle)
