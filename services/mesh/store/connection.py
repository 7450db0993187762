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
import logging
import os
import select
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.store import arrays
from services.mesh.store.queries import Query
from services.mesh.store.settings import StoreSettings, connection_options

Row = tuple[Any, ...]
Params = Mapping[str, object]

_TRIES = 3
#: How long the pool goes on by itself after it could not connect. Its pauses double, so one that
#: goes on for as long as the shard is away would let a shard that is back after a minute wait for
#: another. It gives up instead: the next call begins at once, and the gate or breaker that a probe
#: opens says when there is a next call.
_RECONNECT_SECONDS = 0.2
_CONFLICTS = frozenset({"40001", "40P01"})
# Classes of SQLSTATE that speak of the server, not of the statement: connection, resources, objects
# in the wrong state, operator intervention, system errors, corruption; and read-only transactions.
_AWAY_CLASSES = frozenset({"08", "53", "55", "57", "58", "XX"})
_READ_ONLY = "25006"
_LOCKED = "55P03"
BUSY = "is busy: others were changing the same job for too long; nothing was changed, try again"


class ShardConnections:
    """The pool of one shard."""

    def __init__(self, shard: str, dsn: str, settings: StoreSettings) -> None:
        self.shard = shard
        self._dsn = dsn
        self._settings = settings
        self._adapters = AdaptersMap(psycopg.adapters)
        arrays.register(self._adapters)
        self._pool: AsyncConnectionPool[AsyncConnection[Row]] | None = None
        self._asking: set[AsyncConnection[Row]] = set()
        #: Of those who wait for a connection.
        self._patience: set[asyncio.Timeout] = set()

    async def open(self) -> None:
        """Begin to connect in the background."""
        if self._pool is not None:
            return
        # The pool tells of every statement at INFO.
        logging.getLogger("psycopg.pool").setLevel(logging.WARNING)
        self._pool = AsyncConnectionPool(
            self._dsn,
            kwargs=self._connect_arguments(),
            min_size=self._settings.min_connections,
            max_size=self._settings.max_connections,
            max_waiting=self._settings.max_waiting,
            timeout=self._settings.acquire_timeout,
            reconnect_timeout=_RECONNECT_SECONDS,
            reconnect_failed=self._could_not_connect,
            name=f"shard-{self.shard}",
            open=False,
        )
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Give all connections back."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(timeout=self._settings.call_timeout)

    def abandon(self) -> None:
        """Cut the statements under way, and the waits for one, before their time is up."""
        for connection in self._asking:
            _cut(connection)
        self._end_waits()

    def _could_not_connect(self, pool: AsyncConnectionPool[AsyncConnection[Row]]) -> None:
        # With a connection left there is hope: it may only be that there are too many.
        if not pool.get_stats()["pool_size"]:
            self._end_waits()

    def _end_waits(self) -> None:
        # Each once: a wait that is already ending cannot be ended again.
        ending, self._patience = self._patience, set()
        now = asyncio.get_running_loop().time()
        for patience in ending:
            patience.reschedule(now)

    async def connect(self) -> AsyncConnection[Row]:
        """A connection outside the pool, with the same settings."""
        try:
            return await AsyncConnection.connect(self._dsn, **self._connect_arguments())
        except (psycopg.Error, OSError) as error:
            raise ShardUnavailable(self.shard) from error

    async def fetch(self, query: Query, params: Params | None = None) -> list[Row]:
        """Run one statement, alone in its transaction."""
        for last in (False,) * (_TRIES - 1) + (True,):
            async with self._connection() as connection:
                try:
                    return await self.run(connection, query, params)
                except psycopg.Error as error:
                    if last or error.sqlstate not in _CONFLICTS:
                        raise self._judged(error, query.writes) from error
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Row]]:
        """Several statements as one; use `run` inside. Only its commit can have an unknown end."""
        async with self._connection() as connection:
            committing = False
            try:
                async with connection.transaction():
                    yield connection
                    committing = True
            except psycopg.Error as error:
                raise self._judged(error, committing) from error

    async def run(
        self,
        connection: AsyncConnection[Row],
        query: Query,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> list[Row]:
        """Run one statement on `connection`; after `timeout` (`call_timeout`) it is cut."""
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(timeout or self._settings.call_timeout, _cut, connection)
        self._asking.add(connection)
        try:
            cursor = connection.cursor(binary=True)
            await cursor.execute(query.sql, params, prepare=query.prepared)
            # Not `description`: that builds an object for each column.
            result = cursor.pgresult
            return await cursor.fetchall() if result is not None and result.nfields else []
        finally:
            self._asking.discard(connection)
            alarm.cancel()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Row]]:
        pool = self._pool
        if pool is None:
            raise ShardUnavailable(self.shard)
        connection = await self._live_connection(pool)
        try:
            yield connection
        finally:
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                await connection.close()
            await pool.putconn(connection)

    async def _live_connection(
        self, pool: AsyncConnectionPool[AsyncConnection[Row]]
    ) -> AsyncConnection[Row]:
        # After a restart of the server every idle connection is dead. Found before anything is
        # sent, that costs a reconnect; found afterwards, an unknown outcome.
        while True:
            try:
                connection = await self._pooled(pool)
            except (TimeoutError, PoolTimeout, PoolClosed, TooManyRequests) as error:
                raise ShardUnavailable(self.shard) from error
            if not _hung_up(connection):
                return connection
            await connection.close()
            await pool.putconn(connection)

    async def _pooled(
        self, pool: AsyncConnectionPool[AsyncConnection[Row]]
    ) -> AsyncConnection[Row]:
        async with asyncio.timeout(None) as patience:
            self._patience.add(patience)
            try:
                return await pool.getconn()
            finally:
                self._patience.discard(patience)

    def _judged(self, error: psycopg.Error, writes: bool) -> Exception:
        if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
            return OutcomeUnknown(self.shard) if writes else ShardUnavailable(self.shard)
        if error.diag.severity_nonlocalized == "PANIC":
            return OutcomeUnknown(self.shard) if writes else ShardUnavailable(self.shard)
        state = error.sqlstate or ""
        if state == _LOCKED or state in _CONFLICTS:
            return ShardUnavailable(self.shard, why=BUSY)
        if state[:2] in _AWAY_CLASSES or state == _READ_ONLY:
            return ShardUnavailable(self.shard)
        return error

    def _connect_arguments(self) -> dict[str, Any]:
        return {
            **connection_options(self._settings),
            "autocommit": True,
            "prepare_threshold": 0,
            "context": self._adapters,
        }


def _hung_up(connection: AsyncConnection[Row]) -> bool:
    # Nothing is expected on an idle connection: readable means closed, or about to be.
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _cut(connection: AsyncConnection[Row]) -> None:
    # Shutting the socket down ends the driver's wait at once, as if the server had hung up.
    # Cancelling the task instead would make the driver ask a server that hangs to cancel the
    # statement, and wait for its answer.
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
