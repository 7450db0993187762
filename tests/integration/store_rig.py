"""What the store's tests stand on: a fresh shard per test, an auditor that reads the tables with
its own eyes after each test, and a wire that can be cut at the worst moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import Claimed, JobEvent, JobRecord, NewJob, Payload
from services.mesh.jobs.reports import Report, ReportOutcome
from services.mesh.jobs.states import TERMINAL, Cause, JobState, allowed
from services.mesh.jobs.type_settings import Retention, RetentionRules
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.settings import StoreSettings

RANDOM = Random(20_260_601)
EPOCH = 1


def new_job(**fields: Any) -> NewJob:
    """A job of type "t" in namespace "n" with a fresh id."""
    now_ms = int(time.time() * 1000)
    values = {"namespace": "n", "type": "t", "input": Payload.inline(b"in")} | fields
    return NewJob(**{"id": new_job_id(RANDOM.randrange(4096), now_ms, RANDOM)} | values)


def kept(span: timedelta, **types: Retention) -> RetentionRules:
    """Everything is kept for so long, but for what types say."""
    return RetentionRules(Retention(span, span, span, span), types)


async def purge(
    store: PostgresShard, rules: RetentionRules, order: timedelta = timedelta(0), limit: int = 500
) -> int:
    """Go round once; how many jobs went."""
    while await store.purge_order(order, limit) == limit:
        pass
    gone = 0
    while True:
        step = await store.purge_jobs(rules, limit)
        gone += step.gone
        if step.done:
            return gone


class Rig:
    """A shard, and short words for what tests do with it."""

    def __init__(self, dsn: str, store: PostgresShard) -> None:
        self.dsn = dsn
        self.store = store

    async def put(self, count: int = 1, **fields: Any) -> list[UUID]:
        """Store new jobs; their ids."""
        jobs = [new_job(**fields) for _ in range(count)]
        await self.store.put_jobs(jobs, EPOCH)
        return [job.id for job in jobs]

    async def claim(self, worker: str = "w1", limit: int = 1, type: str = "t") -> list[Claimed]:
        """Take due jobs for a worker."""
        return (await self.store.claim(type, worker, limit)).jobs

    async def claimed(self, worker: str = "w1", **fields: Any) -> Claimed:
        """A new job, taken by a worker."""
        (job_id,) = await self.put(**fields)
        (job,) = await self.claim(worker)
        assert job.id == job_id
        return job

    async def say(self, *reports: Report) -> list[ReportOutcome]:
        """Report, and what the row answered."""
        return [result.outcome for result in (await self.store.report(reports)).results]

    async def get(self, job_id: UUID) -> JobRecord:
        """The row, with its payloads."""
        (record,) = await self.store.get_jobs([job_id], payloads=True)
        return record

    async def events(self, job_id: UUID) -> list[JobEvent]:
        """All events of a job."""
        return await self.store.events_after([(job_id, 0)])

    async def causes(self, job_id: UUID) -> list[Cause]:
        """Why each transition happened."""
        return [event.cause for event in await self.events(job_id)]

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """Look at, or meddle with, the tables behind the store's back."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params or None)
            return cursor.fetchall() if cursor.description else []

    def pass_time(self, span: timedelta) -> None:
        """Let time pass for the jobs, by moving them into the past."""
        self.sql(
            "UPDATE jobs SET due_time = due_time - %s, first_due_time = first_due_time - %s,"
            " expire_time = expire_time - %s, end_time = end_time - %s,"
            " create_time = create_time - %s",
            *[span] * 5,
        )
        self.sql(
            "UPDATE queue SET due_time = due_time - %s, expire_time = expire_time - %s", span, span
        )
        self.sql(
            "UPDATE blocked SET check_time = check_time - %s, expire_time = expire_time - %s",
            *[span] * 2,
        )
        self.sql("UPDATE ended_parents SET look_time = look_time - %s", span)
        self.sql("UPDATE in_flight SET dispatch_time = dispatch_time - %s", span)
        self.sql("UPDATE schedules SET next_time = next_time - %s", span)
        self.sql("UPDATE commits SET time = time - %s", span)


@asynccontextmanager
async def opened(dsn: str, name: str = "s0", **settings: Any) -> AsyncIterator[PostgresShard]:
    """A migrated shard, closed at the end."""
    store = PostgresShard(name, dsn, StoreSettings(**settings), Random(5))
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(name="rig")
async def rig_of_test(migrated_dsn: str) -> AsyncIterator[Rig]:
    """A fresh shard; after the test its tables are audited."""
    async with opened(migrated_dsn) as store:
        yield Rig(migrated_dsn, store)
    audit(migrated_dsn)


# --- the auditor


def audit(dsn: str) -> None:
    """Check every promise about rows and events, reading the tables directly."""
    with psycopg.connect(dsn) as connection:
        jobs = _rows(connection, "SELECT id, state, version, dispatch_no, worker_id FROM jobs")
        events: dict[UUID, list[tuple[Any, ...]]] = {}
        for job_id, *event in _rows(
            connection,
            "SELECT job_id, version, state, reason, dispatch_no, worker_id, time FROM job_events"
            " ORDER BY job_id, version",
        ):
            events.setdefault(job_id, []).append(tuple(event))
        queued = [row[0] for row in _rows(connection, "SELECT job_id FROM queue")]
        held = {
            (row[0], row[1]) for row in _rows(connection, "SELECT job_id, worker_id FROM in_flight")
        }
        committed = _rows(
            connection,
            "SELECT r.id, v FROM commits c, unnest(c.job_ids, c.versions, c.firsts)"
            " AS r (id, version, first),"
            " generate_series(coalesce(r.first, r.version), r.version) v",
        )
        purged = _rows(connection, "SELECT 1 FROM shard_meta WHERE purged_xid > '0'")
        _audit_ties(connection)
        _audit_floors(connection)
        _audit_namespaces(connection)
    states = {job_id: JobState(state) for job_id, state, *_ in jobs}
    assert events.keys() == states.keys(), "every job has events, and nobody else"
    for job in jobs:
        _audit_job(job, events[job[0]])
    assert len(queued) == len(set(queued)), "a job stands in the queue at most once"
    waiting = {job_id for job_id, state in states.items() if state is JobState.SCHEDULED}
    assert waiting <= set(queued), "no scheduled job is missing from the queue"
    assert all(states[job_id] in TERMINAL for job_id in set(queued) - waiting)
    running = {(job[0], job[4]) for job in jobs if job[1] in (2, 3)}
    assert running <= held, "nothing in flight is missing"
    assert all(states[job_id] in TERMINAL for job_id, _ in held - running)
    written = sorted((job_id, event[0]) for job_id, all_ in events.items() for event in all_)
    if purged:  # the oldest part of the order is gone, and so are jobs that it named
        assert set(written) >= {row for row in committed if row[0] in states}
    else:
        assert sorted(committed) == written, "the shard's order names every event once"


def _audit_ties(connection: psycopg.Connection[Any]) -> None:
    waiting = _rows(
        connection,
        "SELECT j.id, j.blockers, (SELECT count(*) FROM waits w WHERE w.child_id = j.id)"
        " FROM jobs j WHERE j.state = 8",
    )
    for job_id, blockers, edges in waiting:
        assert blockers == edges > 0, f"{job_id}: it waits for as many as it says"
    blocked = {row[0] for row in _rows(connection, "SELECT job_id FROM blocked")}
    assert blocked == {row[0] for row in waiting}, "all that are BLOCKED are kept apart"
    unheld = _rows(
        connection,
        "SELECT j.id FROM jobs j LEFT JOIN unique_keys u ON u.namespace = j.namespace"
        " AND u.key = j.unique_key WHERE j.unique_key IS NOT NULL AND j.state IN (1, 2, 3, 8)"
        " AND u.job_id IS DISTINCT FROM j.id",
    )
    assert not unheld, "a live job with a unique key holds it"
    kept = _rows(
        connection,
        "SELECT j.id FROM unique_keys u JOIN jobs j ON j.id = u.job_id"
        " WHERE j.state NOT IN (1, 2, 3, 8)",
    )
    assert not kept, "a job that ended gave its key back"
    untold = _rows(
        connection,
        "SELECT j.id FROM jobs j WHERE j.awaited AND j.state IN (4, 5, 6, 7)"
        " AND NOT EXISTS (SELECT FROM ended_parents p WHERE p.job_id = j.id)",
    )
    assert not untold, "the end of an awaited job was written down"


def _audit_floors(connection: psycopg.Connection[Any]) -> None:
    lower = _rows(
        connection,
        "SELECT q.type, q.due_time FROM floors f JOIN queue q ON q.due_time < floor_of(f, q.type)",
    )
    assert not lower, "nothing waits below the floor"
    earlier = _rows(
        connection,
        "SELECT i.worker_id, i.dispatch_time FROM floors f JOIN in_flight i"
        " ON i.dispatch_time < f.dispatch_time AND i.dispatch_time <> ALL (f.long_ago)",
    )
    assert not earlier, "nothing was dispatched below the floor"


def _audit_namespaces(connection: psycopg.Connection[Any]) -> None:
    strange = _rows(
        connection,
        "SELECT j.id FROM queue q JOIN jobs j ON j.id = q.job_id"
        " WHERE q.namespace IS DISTINCT FROM j.namespace",
    )
    assert not strange, "whoever queues a job says whose it is"


def _audit_job(job: tuple[Any, ...], events: list[tuple[Any, ...]]) -> None:
    job_id, state, version, dispatch_no, _ = job
    assert [event[0] for event in events] == list(range(1, version + 1)), f"{job_id}: gapless"
    assert events[-1][1] == state, f"{job_id}: the row is the fold of its events"
    source: JobState | None = None
    fence = 0
    for _, target, cause, event_fence, _, _ in events:
        step = (source, JobState(target), Cause(cause))
        assert allowed(*step), f"{job_id}: {step} is no legal step"
        fence += step[2] is Cause.CLAIMED
        assert event_fence == fence, f"{job_id}: each claim mints one fence"
        source = JobState(target)
    assert fence == dispatch_no
    times = [event[5] for event in events]
    assert times == sorted(times), f"{job_id}: events are in the order of their times"


def _rows(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


# --- helpers for faults


async def until(holds: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once it holds; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come"
        await asyncio.sleep(0.005)


class Wire:
    """A way to the server. Told to, it passes a statement on and swallows the answer."""

    def __init__(self) -> None:
        self.port = 0
        self.mute = False
        """Answers are swallowed; nobody is told."""
        self.cut_on_answer = False
        """The first answer breaks the connection instead of being passed on."""
        self.swallowed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._accepted: list[Any] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, dsn: str) -> AsyncIterator[tuple[Wire, str]]:
        """A wire, and the DSN that leads through it."""
        there = conninfo_to_dict(dsn)
        wire = cls()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            wire._accepted.append(asyncio.current_task())
            wire._writers.add(writer)
            far_reader, far_writer = await asyncio.open_connection(there["host"], there["port"])
            wire._writers.add(far_writer)
            await asyncio.gather(
                _pump(reader, far_writer, lambda: True),
                _pump(far_reader, writer, wire._passes_answer),
            )

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        wire.port = server.sockets[0].getsockname()[1]
        try:
            yield wire, make_conninfo(dsn, host="127.0.0.1", port=wire.port)
        finally:
            server.close()
            wire.cut()
            # What was accepted last, too: its client may have gone in mid-greeting.
            await asyncio.gather(*wire._accepted)

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def _passes_answer(self) -> bool:
        if self.mute or self.cut_on_answer:
            self.swallowed.set()
        if self.cut_on_answer:
            self.cut()
        return not (self.mute or self.cut_on_answer)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[], bool]
) -> None:
    try:
        while data := await reader.read(65536):
            if passes():
                writer.write(data)
                await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


@contextmanager
def transaction(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction of somebody else, open during the block and rolled back after it."""
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()
