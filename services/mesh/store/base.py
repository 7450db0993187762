"""What the parts of the adapter share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from psycopg.types.numeric import Int8

from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.store.connection import Params, Row, ShardConnections
from services.mesh.store.queries import Queries

__all__ = ["Int8", "SettingsOf", "ShardBase"]

#: What holds for a type; None: nothing was ever set. Asks nobody.
SettingsOf = Callable[[str], TypeSettings | None]


class ShardBase:
    """A shard's connections and statements."""

    def __init__(
        self,
        connections: ShardConnections,
        queries: Queries,
        random: Random,
        settings_of: SettingsOf = lambda type_: None,
    ) -> None:
        self._connections = connections
        self._queries = queries
        self._random = random
        self._settings_of = settings_of

    async def _fetch(self, name: str, params: Params | None = None) -> list[Row]:
        return await self._connections.fetch(self._queries[name], params)
