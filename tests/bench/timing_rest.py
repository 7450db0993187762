"""What waits costs nothing: many schedules, many jobs for later."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh
from localmesh.ports import LOOPBACK

from services.mesh.store.queries import Queries
from tests.bench.timing_place import Place, percent_of_a_core
from tests.e2e.hands import samples

_ROWS_AT_ONCE = 50_000

#: Copies of a schedule that rest until next year, and of one that fires each minute.
_RESTING = """
INSERT INTO schedules (id, namespace, name, definition, input, next_time, create_time, update_time)
SELECT uuidv7(), 'default', 'resting-' || n, s.definition, '', now() + interval '1 year', now(),
       now()
  FROM (SELECT %s::jsonb AS definition) AS s CROSS JOIN generate_series(1, %s) AS n"""
_FIRING = """
INSERT INTO schedules (id, namespace, name, definition, input, next_time, create_time, update_time)
SELECT uuidv7(), 'default', 'firing-' || n,
       jsonb_set(%s::jsonb, '{recurrences,0,phase_us}', to_jsonb(p.phase * 1000)), '',
       date_trunc('minute', now()) + interval '1 minute' + p.phase * interval '1 ms', now(), now()
  FROM generate_series(1, %s) AS n
 CROSS JOIN LATERAL (SELECT (n * 60000 / %s::integer)) AS p (phase)"""

#: Copies of a job that is due next month, with its place in the queue.
_WAITING = """
WITH copies AS (
    INSERT INTO jobs (id, namespace, type, state, version, priority, create_time, due_time,
                      first_due_time, input)
    SELECT uuidv7(), 'default', 'stamp', 1, 1, 0, now(), d.due, d.due, 'xx'
      FROM generate_series(1, %s) AS n
     CROSS JOIN LATERAL (SELECT now() + interval '30 days' + n * interval '2 s') AS d (due)
    RETURNING id, type, priority, due_time
)
INSERT INTO queue (job_id, type, priority, due_time, later)
SELECT id, type, priority, due_time, true FROM copies"""


async def schedules(place: Place) -> dict[str, Any]:
    """100,000 schedules, of which 1,000 fire each minute."""
    mesh, shards = place.mesh, len(place.mesh.shard_dsns)
    resting, firing = place.scaled(99_000), place.scaled(1_000)
    resting_json, firing_json = await _definitions(mesh)
    for dsn in mesh.shard_dsns.values():
        _fill(dsn, _RESTING, (resting_json,), resting // shards)
        _fill(dsn, _FIRING, (firing_json,), firing // shards, firing // shards)
    await asyncio.sleep(65)  # until each has fired once, and vacuum and plans have settled
    before = _fired(mesh)
    percent = await percent_of_a_core(mesh, 60)
    return {
        "stored": resting + firing,
        "fired_in_a_minute": round(_fired(mesh) - before),
        "percent_of_a_core": percent,
        "pass_ms": _pass_ms(mesh),
        "plans": _plans(next(iter(mesh.shard_dsns.values()))),
    }


async def idle(place: Place) -> dict[str, Any]:
    """The mesh at rest, empty; and with a million jobs for next month."""
    await asyncio.sleep(10)
    empty = await percent_of_a_core(place.mesh, 60)
    jobs = place.scaled(1_000_000)
    for dsn in place.mesh.shard_dsns.values():
        for _ in range(0, jobs // len(place.mesh.shard_dsns), _ROWS_AT_ONCE):
            _fill(dsn, _WAITING, (), _ROWS_AT_ONCE)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    await asyncio.sleep(70)  # the servers' own chores after so many rows
    return {
        "empty_percent_of_a_core": empty,
        "jobs": jobs,
        "percent_of_a_core": await percent_of_a_core(place.mesh, 60),
        "plans": _plans(next(iter(place.mesh.shard_dsns.values()))),
    }


async def _definitions(mesh: RunningMesh) -> tuple[str, str]:
    """Two definitions as they are stored, made by the mesh itself."""
    async with AsyncClient(mesh.enqueue_target) as client:
        later = datetime.now(UTC) + timedelta(days=300)
        await client.schedules.create("a", "stamp", b"", cron="0 0 1 1 *", start=later)
        await client.schedules.create("b", "stamp", b"", every="60s")
        found: dict[str, str] = {}
        for dsn in mesh.shard_dsns.values():
            with psycopg.connect(dsn) as connection:
                found |= dict(connection.execute("SELECT name, definition::text FROM schedules"))
        for name in ("a", "b"):
            await client.schedules.delete(name)
    return found["a"], found["b"]


def _fill(dsn: str, statement: str, before: tuple[Any, ...], *counts: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement, [*before, *counts])
        connection.execute("ANALYZE")


def _samples(mesh: RunningMesh) -> list[tuple[str, dict[str, str], float]]:
    units = [unit for unit in mesh.plan.services if unit.role == "scheduler"]
    urls = [f"http://{LOOPBACK}:{unit.metrics_port}/metrics" for unit in units]
    return [sample for url in urls for sample in samples(url)]


def _fired(mesh: RunningMesh) -> float:
    return sum(v for name, _, v in _samples(mesh) if name == "jobmesh_schedules_fired_total")


def _pass_ms(mesh: RunningMesh) -> float:
    """How long a look at a shard takes, with the firing of what is due, on average."""
    found = {"sum": 0.0, "count": 0.0}
    for name, labels, value in _samples(mesh):
        part = name.removeprefix("jobmesh_loop_pass_seconds_")
        if part in found and labels.get("loop", "").startswith("times-"):
            found[part] += value
    return round(1000 * found["sum"] / max(1.0, found["count"]), 2)


def _reads_table(row: str) -> bool:
    return " using " in row or "Seq Scan on " in row


def _plans(dsn: str) -> dict[str, Any]:
    """What the statements that run all the time cost now, and what they walk."""
    given: dict[str, object] = {
        "type": "stamp",
        "worker_id": "bench",
        "limit": 100,
        "recent": None,
        "start": None,
        "ahead": timedelta(seconds=0.05),
        "width": timedelta(seconds=4),
        "dispatch": timedelta(seconds=5),
    }
    queries, plans = Queries.load(), {}
    with psycopg.connect(dsn) as connection:
        for name in ("claim", "pulse", "due_schedules"):
            explained = f"EXPLAIN (ANALYZE, COSTS OFF) {queries[name].sql}"
            rows = [row[0].strip() for row in connection.execute(explained, given)]
            connection.rollback()
            walked = {row.split("Scan ")[1].split(" (")[0] for row in rows if _reads_table(row)}
            took = next(row.split(": ")[1] for row in rows if row.startswith("Execution Time"))
            plans[name] = {"took": took, "walks": sorted(walked)}
    return plans
