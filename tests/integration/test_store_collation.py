"""A shard whose database sorts text as people do, not by bytes: what is paged, or put together from
several shards, goes by bytes all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from localmesh.providers import TestServers

from services.mesh.jobs.turns import Turn
from services.mesh.store.queries import Queries
from services.mesh.store.settings import StoreSettings, connection_options
from tests.integration.store_rig import Rig, audit, opened, rig_of_test  # noqa: F401
from tests.integration.test_store_schedules import new_schedule

#: As people sort them: a, ab, a-b, B, c.
NAMES = ["B", "a", "a-b", "ab", "c"]
#: A server that was built without ICU may know locales of its system.
ORDERS = (
    "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'",
    "LOCALE_PROVIDER libc LOCALE 'en_US.UTF-8'",
)


@pytest.fixture
def sorted_dsn(servers: TestServers) -> Iterator[str]:
    """A database with such an order."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    admin_dsn = servers.postgres()
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        if not any(_created(admin, name, order) for order in ORDERS):
            pytest.skip("this server knows no order but that of bytes")
        try:
            yield urlunsplit(urlsplit(admin_dsn)._replace(path=f"/{name}"))
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _created(admin: psycopg.Connection, name: str, order: str) -> bool:
    made = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' {order}"
    try:
        admin.execute(made.encode())
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.WrongObjectType):
        return False
    return True


@pytest.fixture
async def other(sorted_dsn: str) -> AsyncIterator[Rig]:
    async with opened(sorted_dsn) as store:
        rig = Rig(sorted_dsn, store)
        assert rig.sql("SELECT 'a' < 'B'") == [(True,)]
        yield rig
    audit(sorted_dsn)


async def test_pages_of_schedules_go_by_bytes(other: Rig) -> None:
    for name in NAMES:
        await other.store.put_schedule(new_schedule(name))
    found, after = [], ""
    while page := await other.store.list_schedules("n", after, 2):
        found += [record.name for record in page]
        after = max(found)  # as whoever puts the pages of several shards together goes on
    assert found == NAMES


async def test_turns_go_by_bytes(other: Rig) -> None:
    for name in NAMES:
        await other.put(namespace=name)
    seen, after = [], ""
    for _ in NAMES:
        answer = await other.store.claim("t", "w", 1, turn=Turn(after, "a", None))
        assert answer.turned is not None
        seen += [job.namespace for job in answer.jobs]
        after = answer.turned.last
    assert seen == ["B", "a-b", "ab", "c", "a"]


async def test_a_page_of_schedules_is_read_from_an_index(rig: Rig) -> None:
    """To the planner "C" is another order than the database's, even where the two are the same."""
    sql = Queries.load()["list_schedules"].sql
    for number, name in enumerate(("namespace", "after", "limit"), 1):
        sql = sql.replace(f"%({name})s", f"${number}::{'bigint' if name == 'limit' else 'text'}")
    options = connection_options(StoreSettings())
    with psycopg.connect(rig.dsn, autocommit=True, **options) as connection:
        explained = b"EXPLAIN (GENERIC_PLAN) " + sql.encode()
        rows = connection.execute(explained, prepare=False).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "using schedules_list" in plan
    assert "Filter" not in plan, "it begins behind the last name"
    assert "Sort" not in plan
