"""A shard in Postgres: the parts of the adapter put together, and the care of the shard itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random, SystemRandom

import psycopg

from services.mesh.errors import ShardUnavailable
from services.mesh.store.answers import ProbeResult
from services.mesh.store.base import Int8, SettingsOf
from services.mesh.store.changing import Changing
from services.mesh.store.claiming import Claiming
from services.mesh.store.connection import Session, ShardConnections
from services.mesh.store.ending import Ending
from services.mesh.store.floors import FloorPace, FloorRules
from services.mesh.store.migrations import apply_migrations, load_migrations
from services.mesh.store.purging import Purging
from services.mesh.store.queries import Queries
from services.mesh.store.reading import Reading
from services.mesh.store.releasing import Releasing
from services.mesh.store.scheduling import Scheduling
from services.mesh.store.settings import StoreSettings
from services.mesh.store.tying import Tying


class PostgresShard(Tying, Releasing, Claiming, Ending, Changing, Reading, Purging, Scheduling):
    """Implements `port.ShardStore`."""

    def __init__(
        self,
        name: str,
        dsn: str,
        settings: StoreSettings | None = None,
        random: Random | None = None,
        settings_of: SettingsOf = lambda type_: None,
    ) -> None:
        """`settings_of` gives the defaults of jobs that schedules make; those that are put have
        theirs already.
        """
        connections = ShardConnections(name, dsn, settings or StoreSettings())
        super().__init__(connections, Queries.load(), random or SystemRandom(), settings_of)
        self._name = name
        self._walked = {}
        self._floors = FloorPace(FloorRules())
        self._probing: Session | None = None
        self._probe_lock = asyncio.Lock()

    @property
    def name(self) -> str:
        """The shard's name."""
        return self._name

    @property
    def answers(self) -> int:
        """How many statements it has answered so far."""
        return self._connections.answers

    async def open(self) -> None:
        """Begin to connect in the background."""
        await self._connections.open()

    async def close(self) -> None:
        """Give all connections back."""
        self._drop_probe()
        await self._connections.close()

    def abandon(self) -> None:
        """End every call under way: the shard answers nobody."""
        self._connections.abandon()

    def when_slow(self, tell: Callable[[], None]) -> None:
        """Have it told when a call takes long, while it is still under way."""
        self._connections.tell_slow = tell

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied."""
        connection = await self._connections.connect()
        try:
            return await apply_migrations(connection, self._name, load_migrations())
        except psycopg.OperationalError as error:
            raise ShardUnavailable(self._name) from error
        finally:
            await connection.close()

    async def probe(self, timeout: float = 0.5) -> ProbeResult:
        """Ask for a sign of life, on a connection of its own."""
        async with self._probe_lock:
            try:
                return await self._probe(timeout)
            except (TimeoutError, psycopg.Error, ShardUnavailable) as error:
                self._drop_probe()
                raise ShardUnavailable(self._name) from error

    async def raise_epoch(self, epoch: int) -> int:
        """Refuse writers with an older map from now on; the epoch now in force."""
        rows = await self._fetch("raise_epoch", {"epoch": Int8(epoch)})
        return int(rows[0][0])

    async def _probe(self, timeout: float) -> ProbeResult:
        if self._probing is None or not self._probing.at_rest:
            self._drop_probe()  # one that was cancelled has left an answer to come
            async with asyncio.timeout(timeout):
                self._probing = await self._connections.session()
        query = self._queries["probe"]
        rows = await self._connections.run(self._probing, query, timeout=timeout)
        if not rows:
            # The schema is there and its first row is not: another service is just making them.
            raise ShardUnavailable(self._name)
        return ProbeResult(*rows[0])

    def _drop_probe(self) -> None:
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.close()
