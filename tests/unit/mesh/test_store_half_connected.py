"""A connection that comes to nothing leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.store.connection import ShardConnections
from services.mesh.store.settings import StoreSettings


class Mute:
    """A server that takes connections and says nothing, as one that was frozen."""

    def __init__(self) -> None:
        self.came, self.left = asyncio.Event(), asyncio.Event()
        self.dsn = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.came.set()
        await reader.read()
        self.left.set()
        writer.close()


@pytest.fixture
async def mute() -> AsyncIterator[Mute]:
    server = Mute()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server.dsn = f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable"
        yield server


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Nothing may depend on when garbage is collected."""
    gc.disable()
    yield
    gc.enable()


async def test_one_that_was_not_answered_in_time_is_hung_up(mute: Mute) -> None:
    shard = ShardConnections("s0", mute.dsn, StoreSettings(connect_timeout=1))
    with pytest.raises(ShardUnavailable):
        await shard.connect()
    async with asyncio.timeout(5):
        await mute.left.wait()


async def test_one_that_nobody_waits_for_any_more_is_hung_up(mute: Mute) -> None:
    connecting = asyncio.create_task(ShardConnections("s0", mute.dsn, StoreSettings()).connect())
    await mute.came.wait()
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    async with asyncio.timeout(5):
        await mute.left.wait()
