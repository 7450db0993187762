"""Applies `migrations/*.sql`, each once, in order.

Two neighbouring versions of the services run side by side, so a change comes in two steps. *Expand*
adds what the new version needs and what the old one can ignore (a nullable column, an index, a
table); it is applied before the new version runs. *Contract* removes what only the old version
used, in a later release. A file, once released, is never edited: its checksum is compared.

Any number of Orchestrators may start at once: an advisory lock lets one in, the others find nothing
to do. A migration waits at most `lock_timeout` for a table, so that it does not queue up the
traffic behind it; it is tried again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from psycopg import AsyncConnection
from psycopg.errors import DeadlockDetected, LockNotAvailable

from services.mesh.store.connection import Row

_LOCK = 7026250112
_LEAST_SERVER = 180000
_TRIES = 5
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number   integer     PRIMARY KEY,
    name     text        NOT NULL,
    checksum text        NOT NULL,
    time     timestamptz NOT NULL DEFAULT clock_timestamp()
)"""


class MigrationError(Exception):
    """The schema is not what the files say, or the server is too old."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """What the file said when it was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations() -> list[Migration]:
    """All files, by number."""
    found = [
        Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8"))
        for file in files(__package__).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    found.sort(key=lambda migration: migration.number)
    # Gaps are no harm: a number is given when the work on it begins.
    if len({migration.number for migration in found}) != len(found):
        raise MigrationError("two migrations have the same number")
    return found


async def apply_migrations(
    connection: AsyncConnection[Row], shard: str, migrations: list[Migration]
) -> list[str]:
    """Apply what is missing; the names of what was applied. `connection` is in autocommit."""
    if connection.info.server_version < _LEAST_SERVER:
        raise MigrationError(f"Postgres 18 is needed, shard {shard} has less")
    await connection.execute("SET statement_timeout = 0")
    await connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
    try:
        await connection.execute(_LEDGER)
        missing = await _missing(connection, migrations)
        for migration in missing:
            await _apply(connection, migration)
        await _name_shard(connection, shard)
        return [migration.name for migration in missing]
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


async def _missing(
    connection: AsyncConnection[Row], migrations: list[Migration]
) -> list[Migration]:
    cursor = await connection.execute("SELECT number, checksum FROM schema_migrations")
    applied: dict[int, str] = dict(await cursor.fetchall())
    for migration in migrations:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise MigrationError(f"migration {migration.name} was edited after it was applied")
    return [migration for migration in migrations if migration.number not in applied]


async def _apply(connection: AsyncConnection[Row], migration: Migration) -> None:
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            async with connection.transaction():
                await connection.execute(migration.sql, prepare=False)
                await connection.execute(
                    "INSERT INTO schema_migrations (number, name, checksum) VALUES (%s, %s, %s)",
                    [migration.number, migration.name, migration.checksum],
                )
            return
        except (LockNotAvailable, DeadlockDetected):
            if last:
                raise


async def _name_shard(connection: AsyncConnection[Row], shard: str) -> None:
    await connection.execute(
        "INSERT INTO shard_meta (shard) VALUES (%s) ON CONFLICT DO NOTHING", [shard]
    )
    cursor = await connection.execute("SELECT shard FROM shard_meta")
    row = await cursor.fetchone()
    if row is not None and row[0] != shard:
        raise MigrationError(f"this is the database of shard {row[0]}, not of {shard}")
