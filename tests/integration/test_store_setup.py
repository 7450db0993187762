"""A shard that is being set up is away, not broken."""

import psycopg
import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.store.postgres import PostgresShard


async def test_a_shard_without_its_identity_yet_is_away(shard_dsn):
    store = PostgresShard("s0", shard_dsn)
    await store.open()
    try:
        await store.migrate()
        with psycopg.connect(shard_dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM shard_meta")
        with pytest.raises(ShardUnavailable):
            await store.probe()
    finally:
        await store.close()


async def test_a_shard_without_a_schema_is_away(shard_dsn):
    store = PostgresShard("s0", shard_dsn)
    await store.open()
    try:
        with pytest.raises(ShardUnavailable):
            await store.probe()
    finally:
        await store.close()
