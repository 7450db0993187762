"""Claims that begin with the namespaces in turn, on Postgres: what is locked, dead or unnamed, and
by which plan they are found.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.jobs.turns import Turn
from services.mesh.store.base import Int8
from services.mesh.store.queries import Queries
from services.mesh.store.settings import StoreSettings, connection_options
from tests.integration.store_rig import EPOCH, Rig, new_job, opened, rig_of_test  # noqa: F401
from tests.integration.test_store_claim import _reads
from tests.integration.turn_rules import TurnRules, brought, by_namespace

_CROWD = (
    "INSERT INTO queue (job_id, due_time, priority, later, type, namespace)"
    " SELECT gen_random_uuid(), now() - interval '1 minute' + g * interval '1 microsecond',"
    " 0, false, 't', 'crowd' FROM generate_series(1, {}) g"
)


class TestTurnsOfPostgres(TurnRules):
    """The rules that hold for every store."""

    @pytest.fixture
    def store(self, rig: Rig) -> Any:
        return rig.store


async def test_what_somebody_else_has_locked_is_left_to_them(rig):
    first, second = sorted(await rig.put(2, namespace="a"))
    with psycopg.connect(rig.dsn) as other:
        other.execute("SELECT FROM queue WHERE job_id = %s FOR UPDATE", [first])
        answer = await rig.store.claim("t", "w1", 5, turn=Turn())
        other.rollback()
    assert [job.id for job in answer.jobs] == [second]
    answer = await rig.store.claim("t", "w1", 5, turn=Turn())
    assert [job.id for job in answer.jobs] == [first]


async def test_jobs_of_writers_that_name_no_namespace_are_taken_from_the_line(rig):
    (unnamed,) = await rig.put(namespace="old")
    rig.sql("UPDATE queue SET namespace = NULL")
    (named,) = await rig.put(namespace="new")
    answer = await rig.store.claim("t", "w1", 5, turn=Turn())
    assert {job.id for job in answer.jobs} == {unnamed, named}
    assert brought(answer).jobs == 1
    assert answer.crowd == "old"


async def test_places_that_outlived_their_jobs_hide_nobody(rig):
    gone, alive = sorted(await rig.put(2, namespace="a"))
    with psycopg.connect(rig.dsn) as other:
        other.execute("SELECT FROM queue WHERE job_id = %s FOR UPDATE", [gone])
        await rig.store.cancel([gone])  # leaves the place in the queue
        other.rollback()
    answer = await rig.store.claim("t", "w1", 1, turn=Turn())
    assert [job.id for job in answer.jobs] == [alive]


async def test_what_was_taken_is_handed_out_even_if_the_line_cannot_be_asked(rig, monkeypatch):
    await rig.put(2, namespace="a")

    async def away(*_: object) -> None:
        raise ShardUnavailable("s0")

    monkeypatch.setattr(rig.store, "_take_line", away)
    answer = await rig.store.claim("t", "w1", 5, turn=Turn())
    assert by_namespace(answer.jobs) == {"a": 2}
    assert answer.more, "nobody saw the end of the line"
    with pytest.raises(ShardUnavailable):
        await rig.store.claim("t", "w1", 5, turn=Turn())


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_crowd_is_not_walked_to_find_the_others(rig, analyzed):
    rig.sql(_CROWD.format(10_000))
    others = [new_job(namespace=name) for name in ("a", "b", "x", "y") for _ in range(2)]
    await rig.store.put_jobs(others, EPOCH)
    if analyzed:
        rig.sql("ANALYZE queue")
    before = _reads(rig)
    async with opened(rig.dsn) as fresh:
        answer = await fresh.claim("t", "w1", 8, turn=Turn(besides="crowd"))
    assert {job.id for job in answer.jobs} == {job.id for job in others}
    assert _reads(rig) - before < 200
    rig.sql("DELETE FROM queue WHERE namespace = 'crowd'")


async def test_a_crowd_whose_dead_rows_nobody_may_remove_is_not_walked_either(rig):
    with psycopg.connect(rig.dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM queue")
        rig.sql(_CROWD.format(10_000))
        rig.sql("DELETE FROM queue")
        (job_id,) = await rig.put(namespace="other")
        before = _reads(rig)
        async with opened(rig.dsn) as fresh:
            answer = await fresh.claim("t", "w1", 1, turn=Turn(besides="crowd"))
        assert [job.id for job in answer.jobs] == [job_id]
        assert _reads(rig) - before < 200


def plan(connection: psycopg.Connection[Any]) -> str:
    """The plan as a session of the store has it, whatever the values."""
    sql = Queries.load()["claim_in_turn"].sql
    kinds = {"limit": "bigint", "least": "bigint", "namespaces": "bigint", "steps": "bigint"}
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    for number, name in enumerate(names, 1):
        kind = kinds.get(name, "interval" if name == "ahead" else "text")
        sql = sql.replace(f"%({name})s", f"${number}::{kind}")
    explained = b"EXPLAIN (GENERIC_PLAN) " + sql.encode()
    rows = connection.execute(explained, prepare=False).fetchall()
    return "\n".join(row[0] for row in rows)


async def test_the_others_are_found_by_the_index_of_turns_whatever_the_statistics_say(rig):
    assert await rig.claim() == [], "connected: what follows holds the loop up"
    options = connection_options(StoreSettings())
    with psycopg.connect(rig.dsn, autocommit=True, **options) as connection:
        plans = [plan(connection)]
        for statement in (
            _CROWD.format(10_000),
            "ANALYZE queue",  # all is one namespace's
            "DELETE FROM queue",
            "ANALYZE queue",  # as many pages as before, and nothing in them
            _CROWD.format(10_000),
        ):
            connection.execute(statement.encode())
            plans.append(plan(connection))
        connection.execute("DELETE FROM queue")
    for found in plans:
        scans = re.findall(r"Scan using (queue\w*)", found)
        assert scans == ["queue_turns"] * 4, found
        assert "Seq Scan on queue" not in found
        sorts = re.findall(r"Sort Key: (.*)", found)
        assert sorts == ["taken.job_id"], found


async def test_the_index_of_turns_is_in_no_plan_that_asks_for_no_namespace(rig):
    """It would be walked namespace by namespace, and lead to no order that is asked for."""
    await rig.put(3)
    for name in ("a", "b"):
        await rig.put(3, namespace=name)
    rig.sql("ANALYZE queue")
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'queue_turns'"
    async with opened(rig.dsn) as fresh:
        await fresh.claim("t", "w1", 1)
        await fresh.claim("t", "w1", 1, below=9)
        await fresh.claim_keyed("t", "w1", 1, 1, {})
        await fresh.pulse()
        await fresh.backlog()
        await fresh._fetch("raise_floors", {"deep": True, "everything": False, "most": Int8(9)})
    rig.sql("SELECT pg_stat_force_next_flush()")
    assert rig.sql(used) == [(0,)]
