"""Runs statements on one shard, and says precisely what is known when one does not come back.

When is it certain that nothing was committed?

* No connection was had: nothing was sent.
* The server answered with an SQLSTATE: it rolled the statement back and said so. Not so a PANIC,
  which may strike between the commit's record and its flush.
* The connection was already dead before the statement was sent: found by looking at the socket.

In every other case (the connection broke, or the deadline passed and we cut it) the statement may
have been committed: the outcome of a write is unknown. Nothing is ever sent again then, least of
all the commit; a caller that wants to know asks for the job.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import AdaptersMap

from services.mesh.errors import OutcomeUnknown, ShardBusy, ShardUnavailable
from services.mesh.store import arrays
from services.mesh.store.pool import Pool
from services.mesh.store.queries import Query
from services.mesh.store.session import Params, Row, Session
from services.mesh.store.settings import StoreSettings, connection_options

__all__ = ["BUSY", "Params", "Row", "Session", "ShardConnections", "is_fault_of_data"]

#: A statement that has been under way for so long is slow: a healthy shard answers in milliseconds.
SLOW_SECONDS = 0.2
_TRIES = 3
_CONFLICTS = frozenset({"40001", "40P01"})
# Classes of SQLSTATE that speak of the server, not of the statement: connection, resources, objects
# in the wrong state, operator intervention, system errors, corruption; and read-only transactions.
_AWAY_CLASSES = frozenset({"08", "53", "55", "57", "58", "XX"})
# Those that speak of the values: what cannot be held, what breaks a constraint, what is too large.
_DATA_CLASSES = frozenset({"22", "23", "54"})
_READ_ONLY = "25006"
# A transaction that stood still, as that of a frozen process: the server has rolled it back.
_STOOD_STILL = "25P03"
_LOCKED, _CANCELLED = "55P03", "57014"
_BEGIN, _COMMIT, _ROLLBACK = (
    Query(word.lower(), word, writes=word == "COMMIT") for word in ("BEGIN", "COMMIT", "ROLLBACK")
)
BUSY = "is busy: others were changing the same job for too long; nothing was changed, try again"
TOO_LONG = "gave up a statement that took too long; nothing was changed"


def is_fault_of_data(error: psycopg.Error) -> bool:
    """Whether a statement failed, and was rolled back, because of the values it was given."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError)  # found before anything was sent
    return error.sqlstate[:2] in _DATA_CLASSES


def is_answer(error: psycopg.Error) -> bool:
    """Whether the server said so, and is there for the next statement. After a FATAL it is not."""
    return error.diag.severity_nonlocalized == "ERROR"


class ShardConnections:
    """Statements and transactions on one shard."""

    def __init__(self, shard: str, dsn: str, settings: StoreSettings) -> None:
        self.shard = shard
        self._dsn = dsn
        self._settings = settings
        self._adapters = AdaptersMap(psycopg.adapters)
        arrays.register(self._adapters)
        self._pool: Pool | None = None
        #: Statements under way, each with what ends the patience with it.
        self._asking: dict[Session, asyncio.TimerHandle] = {}
        self.answers = 0
        """Statements that were answered so far, be it with an error."""
        self.tell_slow: Callable[[], None] | None = None
        """Is told when a statement is slow, while it is still under way."""

    async def open(self) -> None:
        """Begin to connect in the background."""
        if self._pool is None:
            self._pool = Pool(self.shard, self.session, self._settings)

    async def close(self) -> None:
        """Give all connections back."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def abandon(self) -> None:
        """Cut the statements under way, and the waits for one, before their time is up."""
        for session in self._asking:
            session.cut()
        if self._pool is not None:
            self._pool.end_waits()

    async def connect(self) -> AsyncConnection[Row]:
        """A connection outside the pool, with the same settings."""
        try:
            return await AsyncConnection.connect(self._dsn, **self._connect_arguments())
        except (psycopg.Error, OSError, asyncio.CancelledError) as error:
            # What is half connected lies in the driver's frames, and these in a circle: it would
            # keep its socket, and its place among the server's, until some collection of garbage.
            traceback.clear_frames(error.__traceback__)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ShardUnavailable(self.shard) from error

    async def session(self) -> Session:
        """The same, for `run`."""
        return Session(await self.connect())

    async def fetch(self, query: Query, params: Params | None = None) -> list[Row]:
        """Run one statement, alone in its transaction."""
        for last in (False,) * (_TRIES - 1) + (True,):
            pool = self._opened()
            session = await pool.take()
            try:
                return await self.run(session, query, params)
            except psycopg.Error as error:
                if last or error.sqlstate not in _CONFLICTS:
                    raise self._judged(error, query.writes) from error
            finally:
                pool.give_back(session)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Several statements as one; use `run` inside. Only its commit can have an unknown end."""
        pool = self._opened()
        session = await pool.take()
        committing = False
        try:
            await self.run(session, _BEGIN)
            try:
                yield session
            except Exception:
                await self._roll_back(session)
                raise
            committing = True
            await self.run(session, _COMMIT)
        except psycopg.Error as error:
            raise self._judged(error, committing) from error
        finally:
            pool.give_back(session)

    async def run(
        self,
        session: Session,
        query: Query,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> list[Row]:
        """Run one statement in `session`; after `timeout` (`call_timeout`) it is cut."""
        loop = asyncio.get_running_loop()
        if timeout is None and self.tell_slow is not None:
            alarm = loop.call_later(SLOW_SECONDS, self._is_slow, session)
        else:
            alarm = loop.call_later(timeout or self._settings.call_timeout, session.cut)
        self._asking[session] = alarm
        try:
            rows = await session.run(query, params)
        except psycopg.Error as error:
            self.answers += is_answer(error)
            raise
        finally:
            self._asking.pop(session).cancel()
        self.answers += 1
        return rows

    def _is_slow(self, session: Session) -> None:
        rest = max(0.0, self._settings.call_timeout - SLOW_SECONDS)
        self._asking[session] = asyncio.get_running_loop().call_later(rest, session.cut)
        if self.tell_slow is not None:
            self.tell_slow()

    async def _roll_back(self, session: Session) -> None:
        # One that cannot be rolled back is not at rest, and closed when it is given back.
        if session.in_transaction:
            with suppress(psycopg.Error):
                await self.run(session, _ROLLBACK)

    def _opened(self) -> Pool:
        if self._pool is None:
            raise ShardUnavailable(self.shard)
        return self._pool

    def _judged(self, error: psycopg.Error, writes: bool) -> Exception:
        if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
            return OutcomeUnknown(self.shard) if writes else ShardUnavailable(self.shard)
        if error.diag.severity_nonlocalized == "PANIC":
            return OutcomeUnknown(self.shard) if writes else ShardUnavailable(self.shard)
        state = error.sqlstate or ""
        if state == _LOCKED or state in _CONFLICTS:
            return ShardBusy(self.shard, why=BUSY)
        if state == _CANCELLED:
            return ShardBusy(self.shard, why=TOO_LONG)
        if state[:2] in _AWAY_CLASSES or state in (_READ_ONLY, _STOOD_STILL):
            return ShardUnavailable(self.shard)
        return error

    def _connect_arguments(self) -> dict[str, Any]:
        return {
            **connection_options(self._settings),
            "autocommit": True,
            "context": self._adapters,
        }
