"""Statements that began before a change was committed, and reach its rows after it.

Postgres locks the newest version of a row for them, but shows them the older one: what they do by a
row's place then misses it. A statement is held up here between its beginning and its first row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from services.mesh.jobs.states import JobState
from services.mesh.store.answers import ChangeOutcome, JobChange
from services.mesh.store.queries import Queries
from services.mesh.testing.waiting import eventually
from tests.integration.store_rig import Rig, rig_of_test  # noqa: F401

GATE = 7
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND state = 'active'"


def gated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, clock: str = "clock_timestamp() AS now"
) -> None:
    """From now on the statement waits at the gate, after it took its snapshot."""
    queries = rig.store._queries
    query = queries[name]
    before, at, after = query.sql.partition(f"(SELECT {clock}")
    assert at
    gate = f" FROM pg_advisory_xact_lock_shared({GATE})"
    by_name = {**queries.by_name, name: replace(query, sql=before + at + gate + after)}
    monkeypatch.setattr(rig.store, "_queries", Queries(by_name, queries.fragments))


@asynccontextmanager
async def overtaken(rig: Rig, work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """The work waits at the gate during the block, and is done after it."""
    with psycopg.connect(rig.dsn, autocommit=True) as keeper:
        keeper.execute(f"SELECT pg_advisory_lock({GATE})".encode())
        task = asyncio.create_task(work)
        await eventually(lambda: asyncio.to_thread(lambda: bool(rig.sql(WAITING))))
        yield task
    await task


async def test_a_job_that_is_changed_under_a_claim_leaves_the_queue_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = await rig.put()
    gated(rig, monkeypatch, "claim")
    async with overtaken(rig, rig.claim()) as claim:
        answer = await rig.store.change(job_id, "n", JobChange(labels={"a": "b"}))
        assert answer.outcome is ChangeOutcome.CHANGED
    # The first look let it go, since its place was not the one it saw; the second took it.
    (job,) = claim.result()
    assert (job.id, job.version) == (job_id, 3)
    assert dict((await rig.get(job_id)).labels) == {"a": "b"}
    # Else it would stand there twice after a failure.
    assert rig.sql("SELECT job_id FROM queue") == []


async def test_a_job_that_was_given_more_time_as_it_expired_does_not_leave_its_place(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = await rig.put(expire_time=None)
    rig.sql("UPDATE queue SET expire_time = now() - interval '1 s'")
    gated(rig, monkeypatch, "expire_overdue", "clock_timestamp()")
    async with overtaken(rig, rig.store.expire_overdue(10)):
        rig.sql("UPDATE queue SET later = later")
    assert (await rig.get(job_id)).state is JobState.SCHEDULED
    assert rig.sql("SELECT job_id FROM queue") == [(job_id,)]


async def test_two_changes_at_once_leave_row_and_queue_agreed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = await rig.put(delay=timedelta(hours=1))
    plain = rig.store._queries
    gated(rig, monkeypatch, "update_job", "pg_current_xact_id() AS xid")
    first = rig.store.change(job_id, "n", JobChange(priority=3))
    async with overtaken(rig, first) as change:
        monkeypatch.setattr(rig.store, "_queries", plain)
        await rig.store.change(job_id, "n", JobChange(labels={"a": "b"}))
    assert change.result().outcome is ChangeOutcome.CHANGED
    job = await rig.get(job_id)
    assert (job.priority, dict(job.labels)) == (3, {"a": "b"})
    assert rig.sql("SELECT priority FROM queue") == [(3,)]
