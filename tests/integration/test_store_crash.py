"""A shard that crashed counts its transactions on from what was on disk: numbers that came to
nothing before are given out again, and a reader of the shard's order must not stand beyond them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from localmesh.ports import PortPool
from localmesh.processes import tagged
from localmesh.servers import Postgres, Running, start_servers, stop_servers

from services.mesh.jobs.model import Position
from tests.integration.store_rig import Rig, opened

#: Transactions that have a number and leave nothing on disk.
IDLE_TRANSACTIONS = 20
TRIES = 5


class Crashing:
    """A server that can be killed and started again."""

    def __init__(self, home: Path, port: int) -> None:
        self._home = home
        self.server = Postgres("shard-0", home / "shard-0", port=port)
        self._running = self._started()

    def crash(self) -> None:
        """It dies in the middle of things, and comes back."""
        self._running.process.signal(signal.SIGKILL)
        assert self._running.process.wait(5)
        self._running = self._started()

    def stop(self) -> None:
        stop_servers([self._running])

    def _started(self) -> Running:
        (running,) = start_servers([self.server], self._home, die_with_caller=True)
        return running


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Crashing]:
    with PortPool() as ports:
        server = Crashing(tmp_path, ports.take())
        yield server
        server.stop()
    assert tagged(tmp_path) == []


def count_on(dsn: str) -> int:
    """Let transactions take numbers that leave no trace; the last of them."""
    with psycopg.connect(dsn) as connection:
        for _ in range(IDLE_TRANSACTIONS):
            (number,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            connection.rollback()
    return int(number)


@pytest.mark.parametrize("reader", ["new", "idle", "purged"])
async def test_a_place_in_the_order_outlives_a_crash(crashing: Crashing, reader: str) -> None:
    # The server writes the number it has come to down by itself, once in a while.
    for _ in range(TRIES):
        if await gives_numbers_out_again(crashing, reader):
            return
    pytest.fail("no crash gave a number out again: this proves nothing")


async def gives_numbers_out_again(crashing: Crashing, reader: str) -> bool:
    """Whether the first event after a crash stands before the horizon that there was before. Where
    a reader stood it is found in any case.
    """
    dsn = crashing.server.url
    async with opened(dsn) as store:
        await Rig(dsn, store).put()
        at = (await store.events_since(Position(0, 0), 10)).lasting
        if reader == "purged":
            assert await store.purge_order(timedelta(0)) > 0
        last = count_on(dsn)
        page = await store.events_since(None if reader == "new" else at, 10)
        assert (page.events, page.truncated) == ([], False)
        assert page.next > Position(last, 0) >= page.lasting
    crashing.crash()
    async with opened(dsn) as store:
        (job_id,) = await Rig(dsn, store).put()
        (event,) = (await store.events_since(page.lasting, 10)).events
        assert event.job_id == job_id
    assert event.position is not None
    return event.position < page.next
