"""One connection: its prepared statements, and the statement that is under way.

The driver connects, adapts values and speaks the protocol (`generators.execute`: send, flush, read
until the last result). What it has around that for everybody's use, cursors, locks, a conversion of
the query for each call and a wait that registers with the event loop each time, costs more than all
the rest of a small statement. Here a statement is converted once, prepared once per connection, and
the socket stays registered for as long as the connection lives.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import Buffer, PQGen
from psycopg.abc import Transformer as Adapting
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from services.mesh.store.queries import Query

Row = tuple[Any, ...]
Params = Mapping[str, object]
#: Values, the types that they are sent as, and their formats.
_Dumped = tuple[Sequence[Buffer | None] | None, tuple[int, ...] | None, Sequence[Format] | None]

_PARAMETER = re.compile(r"%\((\w+)\)([sb])")
#: More than there are statements, each with the few sets of types that it is called with.
_MOST_PREPARED = 300
_BINARY, _FAILED = Format.BINARY, ExecStatus.FATAL_ERROR
_READ, _WRITE = Ready.R, Ready.W
_WANTS_WRITE = Wait.W


class _Prepared:
    """A statement that the server knows by name."""

    __slots__ = ("loader", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.loader: Adapting | None = None
        """Knows the columns from the first answer on: a prepared statement's do not change."""


class Session:
    """Runs one statement at a time. Who takes it from a pool is alone with it."""

    __slots__ = (
        "_answer",
        "_dumper",
        "_listening",
        "_loop",
        "_names",
        "_pgconn",
        "_poll",
        "_prepared",
        "_socket",
        "_work",
        "_writing",
        "connection",
        "expires",
    )

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self.connection = connection
        self.expires = float("inf")
        """By the loop's clock; who keeps it sets it."""
        self._pgconn = connection.pgconn
        self._socket = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._dumper = Transformer(connection)
        self._prepared: dict[tuple[str, tuple[int, ...] | None], _Prepared] = {}
        self._names = count()
        self._answer: asyncio.Future[list[PGresult]] | None = None
        self._work: PQGen[list[PGresult]] | None = None
        self._loop = asyncio.get_running_loop()
        self._listening = self._writing = False
        self._listen()

    @property
    def at_rest(self) -> bool:
        """No transaction is open and no answer is pending."""
        return self._pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def in_transaction(self) -> bool:
        """A transaction is open, perhaps a failed one, and no answer is pending."""
        status = self._pgconn.transaction_status
        return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    @property
    def answer_pending(self) -> bool:
        """Somebody asked, and went away before the answer."""
        return self._pgconn.transaction_status == TransactionStatus.ACTIVE

    def hung_up(self) -> bool:
        """The server has closed it. To be asked at rest: nothing is expected then, so that readable
        means closed, or about to be."""
        return bool(self._poll.poll(0))

    def cut(self) -> None:
        """End what is under way as if the server had hung up.

        Cancelling the task instead would leave the statement running, and a server that hangs does
        not answer who asks it to cancel.
        """
        if self.connection.closed:
            return
        with socket.socket(fileno=os.dup(self._socket)) as duplicate, suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)  # fails where the server was quicker

    def close(self) -> None:
        """Hang up."""
        self._turn_away()
        self._pgconn.finish()

    async def run(self, query: Query, params: Params | None) -> list[Row]:
        """Run one statement; errors are those of the driver."""
        if not query.prepared:
            return await self._run_once(query.sql, params)
        sql, names, wanted = _numbered(query.sql)
        values, types, formats = self._dumped(names, wanted, params)
        prepared = self._prepared.get((query.sql, types))
        if prepared is None:
            prepared = await self._prepare(sql, types)
            self._prepared[query.sql, types] = prepared
        self._pgconn.send_query_prepared(prepared.name, values, formats, _BINARY)
        result = await self._result()
        if not result.nfields:
            return []
        loader = prepared.loader
        if loader is None:
            loader = prepared.loader = Transformer(self.connection)
            loader.set_pgresult(result)
        else:
            loader.set_pgresult(result, set_loaders=False)
        return _loaded(loader, result)

    async def _run_once(self, text: str, params: Params | None) -> list[Row]:
        """Run a statement that is composed for this call."""
        sql, names, wanted = _numbered.__wrapped__(text)
        values, types, formats = self._dumped(names, wanted, params)
        self._pgconn.send_query_params(sql, values, types, formats, _BINARY)
        result = await self._result()
        loader = Transformer(self.connection)
        loader.set_pgresult(result)
        return _loaded(loader, result)

    def _dumped(
        self, names: Sequence[str], wanted: Sequence[PyFormat], params: Params | None
    ) -> _Dumped:
        if not names:
            return None, None, None
        assert params is not None, names
        values = self._dumper.dump_sequence([params[name] for name in names], wanted)
        return values, self._dumper.types, self._dumper.formats

    async def _prepare(self, sql: bytes, types: tuple[int, ...] | None) -> _Prepared:
        # Whoever goes away before the answer leaves no trace here, but one in the server: so what
        # may be gone is forgotten first, and no name is used twice.
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
            self._pgconn.send_query(b"DEALLOCATE ALL")
            await self._result()
        prepared = _Prepared(f"s{next(self._names)}".encode())
        self._pgconn.send_prepare(prepared.name, sql, types)
        await self._result()
        return prepared

    # --- the exchange

    async def _result(self) -> PGresult:
        """What the server says to the statement that was just handed to libpq."""
        self._work = execute(self._pgconn)
        self._answer = answer = self._loop.create_future()
        try:
            self._listen()
            self._go_on(None)
            return _checked(await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                answer.exception()  # nobody else asks for it
            raise
        finally:
            self._answer = self._work = None

    def _readable(self) -> None:
        if self._answer is None:
            # The server hangs up, or answers somebody who went away. Who uses this connection next
            # finds that out; until then there would be no end to being told.
            self._turn_away()
        else:
            self._go_on(_READ)

    def _go_on(self, ready: Ready | None) -> None:
        """Send and read as much as can be now; the answer is set when it is whole."""
        work, answer = self._work, self._answer
        if work is None or answer is None or answer.done():
            self._turn_away()
            return
        try:
            wants = next(work) if ready is None else work.send(ready)
        except StopIteration as done:
            answer.set_result(done.value)
        except Exception as error:
            # At once: libpq may have closed the socket, and another may get its number.
            self._turn_away()
            answer.set_exception(error)
        else:
            self._write_too(bool(wants & _WANTS_WRITE))
            if ready is not None:
                # There is more to come. uvloop tells of a socket in error once, and this may have
                # been that: what the server said last was read, and that it hung up is not yet.
                self._loop.remove_reader(self._socket)
                self._loop.add_reader(self._socket, self._readable)

    def _listen(self) -> None:
        if not self._listening:
            self._loop.add_reader(self._socket, self._readable)
            self._listening = True

    def _write_too(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._socket, self._go_on, _WRITE)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._socket)
        self._writing = wanted

    def _turn_away(self) -> None:
        self._write_too(False)
        if self._listening:
            self._loop.remove_reader(self._socket)
            self._listening = False


@lru_cache(maxsize=256)
def _numbered(sql: str) -> tuple[bytes, tuple[str, ...], tuple[PyFormat, ...]]:
    """The statement with numbers for names; the names in the order of their numbers; the formats
    that their values are asked for in."""
    formats: dict[str, PyFormat] = {}
    for name, format_ in _PARAMETER.findall(sql):
        formats[name] = PyFormat(format_)
    places = {name: f"${place}" for place, name in enumerate(formats, 1)}
    text = _PARAMETER.sub(lambda found: places[found[1]], sql)
    return text.encode(), tuple(formats), tuple(formats.values())


def _checked(results: Sequence[PGresult]) -> PGresult:
    for result in results:
        if result.status == _FAILED:
            raise error_from_result(result)
    if not results:
        raise psycopg.OperationalError("the server did not answer")
    return results[0]


def _loaded(loader: Adapting, result: PGresult) -> list[Row]:
    rows: list[Row] = loader.load_rows(0, result.ntuples, tuple)
    loader.set_pgresult(None, set_loaders=False)  # it may be large
    return rows
