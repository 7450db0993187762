"""Migrations: each once, in order, by whoever comes first, and never edited."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from services.mesh.store.migrations import (
    Migration,
    MigrationError,
    apply_migrations,
    load_migrations,
)
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.queries import Queries
from tests.integration.store_rig import opened


async def test_services_that_start_together_migrate_once(shard_dsn):
    stores = [PostgresShard("s0", shard_dsn) for _ in range(4)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(len(names) for names in applied) == [0, 0, 0, len(load_migrations())]


async def test_an_edited_migration_is_refused(shard_dsn):
    await PostgresShard("s0", shard_dsn).migrate()
    edited = [Migration(m.number, m.name, m.sql + "-- x") for m in load_migrations()]
    async with await psycopg.AsyncConnection.connect(shard_dsn, autocommit=True) as connection:
        with pytest.raises(MigrationError, match="edited"):
            await apply_migrations(connection, "s0", edited)


async def test_a_migration_that_fails_leaves_nothing_behind(shard_dsn):
    broken = [Migration(1, "broken", "CREATE TABLE a (x int); SELECT 1 / 0")]
    async with await psycopg.AsyncConnection.connect(shard_dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await apply_migrations(connection, "s0", broken)
        cursor = await connection.execute(
            "SELECT to_regclass('a'), count(*) FROM schema_migrations"
        )
        assert await cursor.fetchone() == (None, 0)


async def test_the_database_of_another_shard_is_refused(shard_dsn):
    await PostgresShard("s0", shard_dsn).migrate()
    with pytest.raises(MigrationError, match="shard s0, not of s1"):
        await PostgresShard("s1", shard_dsn).migrate()


async def test_a_migrated_shard_keeps_its_incarnation(shard_dsn):
    async with opened(shard_dsn) as store:
        first = await store.probe()
        await store.migrate()
        assert (await store.probe()).incarnation == first.incarnation


def test_migrations_come_in_the_order_of_their_numbers():
    numbers = [m.number for m in load_migrations()]
    assert numbers == sorted(set(numbers))


def test_statements_have_one_name_each_and_no_slot_left_open():
    queries = Queries.load()
    assert not [q.name for q in queries.by_name.values() if "{" in q.sql or not q.sql]
    with pytest.raises(ValueError, match="called a"):
        Queries.parse("-- name: a\nSELECT 1\n\n-- name: a\nSELECT 2\n")


@pytest.mark.parametrize(
    "name", ["claim", "succeed", "settle", "cancel", "expire_overdue", "start"]
)
def test_every_transition_is_marked_as_a_write(name):
    assert Queries.load()[name].writes
