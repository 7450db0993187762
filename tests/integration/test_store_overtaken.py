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
from uuid import UUID

import psycopg
import pytest

from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Dependency, Ties
from services.mesh.store.answers import ChangeOutcome, JobChange, PutOutcome
from services.mesh.store.queries import Queries
from services.mesh.testing.waiting import eventually
from tests.integration.store_rig import Rig, new_job, rig_of_test  # noqa: F401
from tests.integration.ties_rig import REPLACE, await_, child_of, keyed, store

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


async def labels_told(rig: Rig, job_id: UUID) -> list[tuple[str, str]]:
    """Which labels lists find a job by."""
    found = rig.sql("SELECT name, value FROM job_terms WHERE job_id = %s ORDER BY name", job_id)
    return [(name, value) for name, value in found]


async def test_two_changes_of_a_blocked_job_at_once_leave_no_label_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    plain = rig.store._queries
    gated(rig, monkeypatch, "update_job", "pg_current_xact_id() AS xid")
    first = rig.store.change(child, "n", JobChange(labels={"a": "1"}))
    async with overtaken(rig, first) as change:
        monkeypatch.setattr(rig.store, "_queries", plain)
        await rig.store.change(child, "n", JobChange(labels={"b": "2"}))
    assert change.result().outcome is ChangeOutcome.CHANGED
    assert dict((await rig.get(child)).labels) == {"a": "1"}
    assert await labels_told(rig, child) == [("a", "1")]
    # What is left behind would be in the way for good.
    answer = await rig.store.change(child, "n", JobChange(labels={"b": "2"}))
    assert answer.outcome is ChangeOutcome.CHANGED
    assert await labels_told(rig, child) == [("b", "2")]


async def test_a_blocked_job_that_is_replaced_as_it_is_changed_leaves_no_label_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,) = await rig.put()
    waits = (Dependency(parent),)
    await await_(rig, parent)
    held = new_job(ties=Ties(waits, waits, unique_key="k"))
    await store(rig, held)
    plain = rig.store._queries
    gated(rig, monkeypatch, "replace_job", "pg_current_xact_id() AS xid")
    newer = keyed("k", REPLACE, labels={"a": "1"})
    async with overtaken(rig, store(rig, newer)) as put:
        monkeypatch.setattr(rig.store, "_queries", plain)
        await rig.store.change(held.id, "n", JobChange(labels={"b": "2"}))
    assert [result.outcome for result in put.result()] == [PutOutcome.REPLACED]
    assert await labels_told(rig, held.id) == [("a", "1")]


async def test_a_label_that_an_older_version_left_behind_is_in_nobodys_way(rig: Rig) -> None:
    (job_id,) = await rig.put(delay=timedelta(hours=1))
    rig.sql("INSERT INTO job_terms SELECT namespace, 'a', '1', id FROM jobs")
    answer = await rig.store.change(job_id, "n", JobChange(labels={"a": "1"}))
    assert answer.outcome is ChangeOutcome.CHANGED
    assert await labels_told(rig, job_id) == [("a", "1")]
    # It is the job's own from now on, and goes with it.
    await rig.store.change(job_id, "n", JobChange(labels={}))
    assert await labels_told(rig, job_id) == []
