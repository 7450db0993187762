"""Events: gapless per job, and an order of the shard that can be resumed without gap or repeat."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from services.mesh.jobs.model import EventFilter, Position
from services.mesh.jobs.reports import Started, Succeeded, Successes
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.arrays import Uuids
from services.mesh.store.queries import Query
from services.mesh.store.successes import SuccessBatch
from tests.integration.store_rig import (  # noqa: F401
    EPOCH,
    kept,
    new_job,
    opened,
    purge,
    rig_of_test,
    transaction,
    until,
)

HOUR = timedelta(hours=1)
BEGINNING = Position(0, 0)


async def finished(rig, count: int) -> list:
    await rig.put(count)
    jobs = await rig.claim(limit=count)
    await rig.say(*(Succeeded(job.id, job.fence, "w1") for job in jobs))
    return [job.id for job in jobs]


async def read_all(rig, limit: int, after: Position = BEGINNING) -> list:
    events = []
    while True:
        page = await rig.store.events_since(after, limit)
        events += page.events
        if not page.more:
            return events
        assert page.next > after
        after = page.next


async def test_events_after_a_version_are_the_rest(rig):
    a, b = await finished(rig, 2)
    events = await rig.store.events_after([(a, 2), (b, 3), (new_job().id, 0)])
    assert [(e.job_id, e.version) for e in events] == [(a, 3), (a, 4), (b, 4)]
    assert await rig.store.versions([a, b, new_job().id]) == {a: 4, b: 4}


async def test_ends_are_the_last_transitions_of_those_that_have_ended(rig):
    waiting, won, gone = await rig.put(3)
    job = next(job for job in await rig.claim(limit=3) if job.id == won)
    await rig.store.report([Succeeded(won, job.fence, "w1")])
    await rig.store.cancel([gone])
    unknown = new_job().id
    ends = await rig.store.ends([i.bytes for i in (waiting, won, gone, won, unknown)])
    assert {(event.job_id, event.version, event.cause) for event in ends.events} == {
        (won, 4, Cause.SUCCEEDED),
        (gone, 3, Cause.CANCELLED),
    }
    assert ends.unknown == [unknown.bytes]
    assert (await rig.store.ends([waiting.bytes])).events == []
    assert (await rig.store.ends([won.bytes], "other")).unknown == [won.bytes]


async def test_events_after_are_limited_in_the_order_asked(rig):
    a, b = await finished(rig, 2)
    events = await rig.store.events_after([(b, 0), (a, 0)], limit=5)
    assert [(e.job_id, e.version) for e in events] == [(b, 1), (b, 2), (b, 3), (b, 4), (a, 1)]


async def test_the_shards_order_holds_every_event_once_whatever_the_page(rig):
    await finished(rig, 7)
    await rig.put(3)
    await rig.store.cancel((await rig.put())[:1])
    whole = await read_all(rig, 1000)
    assert len(whole) == 7 * 4 + 3 + 2
    for limit in (1, 2, 5, 9):
        assert [e.position for e in await read_all(rig, limit)] == [e.position for e in whole]
    positions = [event.position for event in whole]
    assert positions == sorted(set(positions))
    for job_id in {event.job_id for event in whole}:
        versions = [event.version for event in whole if event.job_id == job_id]
        assert versions == list(range(1, len(versions) + 1))


async def test_a_reader_may_resume_after_any_event(rig):
    await finished(rig, 5)
    whole = await read_all(rig, 1000)
    for place, event in enumerate(whole):
        rest = await read_all(rig, 3, event.position)
        assert [e.position for e in rest] == [e.position for e in whole[place + 1 :]]


async def test_a_new_reader_begins_now(rig):
    await finished(rig, 2)
    start = await rig.store.events_since(None, 10)
    assert (start.events, start.more) == ([], False)
    (job_id,) = await rig.put()
    page = await rig.store.events_since(start.next, 10)
    assert [event.job_id for event in page.events] == [job_id]
    assert (await rig.store.events_since(page.next, 10)).events == []


async def test_a_transaction_that_commits_late_is_not_skipped(rig):
    # One transaction takes its number first and commits last. A reader that went by numbers alone
    # would pass it by.
    slow = await psycopg.AsyncConnection.connect(rig.dsn)
    start = (await rig.store.events_since(None, 10)).next
    await slow.execute("SELECT pg_current_xact_id()")
    (fast,) = await rig.put()
    page = await rig.store.events_since(start, 10)
    assert page.events == []
    await slow.commit()
    await slow.close()
    page = await rig.store.events_since(page.next, 10)
    assert [event.job_id for event in page.events] == [fast]


NUMBER = Query("number", "SELECT pg_current_xact_id()", writes=False)


async def claimed_and_cancelled(rig) -> list[JobState]:
    """A job is cancelled by a transaction that took its number before the claim's."""
    connections = rig.store._connections
    async with connections.transaction() as waits:
        await connections.run(waits, NUMBER)
        (job,) = await rig.claim()
        cancel = {"ids": Uuids([job.id]), "namespace": None, "note": None}
        assert await connections.run(waits, rig.store._queries["cancel"], cancel)
    return [JobState.DISPATCHED, JobState.CANCELLED]


async def claimed_while_a_cancel_waits(rig) -> list[JobState]:
    """A cancel takes its number with its first job, waits for its second, and comes to the third
    when that was claimed meanwhile.
    """
    first, second = await rig.put(2, type="other")
    ((third,),) = rig.sql("SELECT id FROM jobs WHERE type = 't'")
    ids = {"ids": Uuids([first, second, third])}
    with transaction(rig.dsn) as other:
        other.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [second])
        params = ids | {"namespace": None, "note": None}
        cancel = asyncio.create_task(rig.store._fetch("cancel", params), name="cancel")
        await until(lambda: rig.sql(WAITING)[0][0])
        await rig.claim()
        other.rollback()
        assert len(await cancel) == 3
    return [JobState.DISPATCHED, JobState.CANCELLED]


async def started_and_succeeded(rig) -> list[JobState]:
    """A job is ended by a transaction that took its number before that of the start."""
    connections = rig.store._connections
    (job,) = await rig.claim()
    async with connections.transaction() as waits:
        await connections.run(waits, NUMBER)
        await rig.say(Started(job.id, job.fence, "w1"))
        batch = SuccessBatch.of([Successes("w1", [job.id.bytes], [job.fence], [0], None, "")])
        assert await connections.run(waits, rig.store._queries["succeed"], batch.params)
    return [JobState.DISPATCHED, JobState.RUNNING, JobState.SUCCEEDED]


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.parametrize(
    "crossed", [claimed_and_cancelled, claimed_while_a_cancel_waits, started_and_succeeded]
)
async def test_versions_that_stand_the_wrong_way_round_are_read_in_order(rig, crossed):
    (job_id,) = await rig.put()
    await rig.put(type="other")
    states = await crossed(rig)
    await rig.put(type="other")
    events = await read_all(rig, 1000)
    its = [e for e in events if e.job_id == job_id]
    assert [e.version for e in its] == list(range(1, len(states) + 2))
    assert [e.state for e in its][1:] == states
    assert [e.position for e in events] == sorted(e.position for e in events)
    order = rig.sql(
        "SELECT v FROM commits c, unnest(c.job_ids, c.versions) AS r (id, v)"
        " WHERE r.id = %s ORDER BY c.xid",
        job_id,
    )
    assert order != sorted(order), "they stand the wrong way round"
    # In pages of any size, and resumed at any place: nothing is missed, nothing repeated.
    told = [(e.job_id, e.version, e.position) for e in events]
    for limit in (1, 2, 3):
        paged = await read_all(rig, limit)
        assert [(e.job_id, e.version, e.position) for e in paged] == told
        for place, event in enumerate(events):
            rest = await read_all(rig, limit, event.position)
            assert [(e.job_id, e.version, e.position) for e in rest] == told[place + 1 :]


async def test_versions_are_read_in_order_while_a_transaction_between_them_is_open(rig):
    # The later version stands below the open one, and the earlier, which it waited for, above.
    connections = rig.store._connections
    (job_id,) = await rig.put()
    start = (await rig.store.events_since(BEGINNING, 10)).lasting
    with transaction(rig.dsn) as between:
        async with connections.transaction() as waits:
            await connections.run(waits, NUMBER)
            between.execute("SELECT pg_current_xact_id()")
            await rig.claim()
            cancel = {"ids": Uuids([job_id]), "namespace": None, "note": None}
            assert await connections.run(waits, rig.store._queries["cancel"], cancel)
        first = await rig.store.events_since(start, 10)
        resumed = await rig.store.events_since(first.events[-1].position, 10)
        between.rollback()
    second = await rig.store.events_since(first.lasting, 10)
    assert [e.version for e in (*first.events, *second.events)] == [2, 3]
    assert resumed.events == []
    assert [e.version for e in await read_all(rig, 10, first.events[-1].position)] == [3]


async def test_a_reader_beside_many_writers_sees_everything_once(rig):
    seen, done = [], asyncio.Event()

    async def read() -> None:
        after = (await rig.store.events_since(None, 1)).next
        ready.set()
        while True:
            last_round = done.is_set()
            page = await rig.store.events_since(after, 7)
            seen.extend((event.job_id, event.version) for event in page.events)
            after = page.next
            if last_round and not page.more:
                return

    async def write(store, count: int) -> None:
        for _ in range(count):
            await store.put_jobs([new_job() for _ in range(3)], EPOCH)
            jobs = (await store.claim("t", "w1", 2)).jobs
            await store.report([Succeeded(job.id, job.fence, "w1") for job in jobs])

    ready = asyncio.Event()
    async with opened(rig.dsn) as other, asyncio.TaskGroup() as group:
        group.create_task(read(), name="reader")
        await ready.wait()
        async with asyncio.TaskGroup() as writers:
            for number in range(6):
                store = (rig.store, other)[number % 2]
                writers.create_task(write(store, 8), name=f"writer-{number}")
        done.set()
    rows = rig.sql("SELECT job_id, version FROM job_events")
    assert len(seen) == len(set(seen))
    assert set(seen) == set(rows)


async def test_a_filter_passes_what_it_names_and_moves_on_all_the_same(rig):
    await rig.put(3, type="a", labels={"team": "x"})
    await rig.put(2, type="b", labels={"team": "x", "tier": "1"})
    await rig.put(2, type="b", namespace="m")
    for wanted, count in (
        (EventFilter(), 7),
        (EventFilter(namespace="n"), 5),
        (EventFilter(types=frozenset({"b"})), 4),
        (EventFilter(labels={"team": "x", "tier": "1"}), 2),
        (EventFilter(namespace="m", labels={"team": "x"}), 0),
    ):
        page = await rig.store.events_since(BEGINNING, 100, wanted)
        assert len(page.events) == count
        assert page.next.xid > 0


async def test_ended_jobs_are_purged_with_all_that_belongs_to_them(rig):
    old = await finished(rig, 5)
    (cancelled,) = await rig.put(labels={"a": "b"})
    await rig.store.cancel([cancelled])
    (waiting,) = await rig.put(delay=1000 * HOUR)
    rig.pass_time(100 * HOUR)
    recent = await finished(rig, 1)
    assert await purge(rig.store, kept(timedelta(0)), limit=4) >= 6
    left = {record.id for record in await rig.store.get_jobs([*old, cancelled, waiting, *recent])}
    assert waiting in left
    assert not left & {*old, cancelled}
    for table in ("job_events", "job_terms"):
        jobs = {row[0] for row in rig.sql(f"SELECT job_id FROM {table}")}
        assert jobs <= left


async def test_what_is_young_or_alive_is_not_purged(rig):
    (waiting,) = await rig.put(delay=HOUR)
    ended = await finished(rig, 1)
    assert await purge(rig.store, kept(HOUR)) == 0
    assert len(await rig.store.get_jobs([waiting, *ended])) == 2


async def test_a_reader_whose_place_was_purged_is_told(rig):
    await finished(rig, 2)
    start = (await rig.store.events_since(BEGINNING, 1)).next
    later = (await rig.store.events_since(BEGINNING, 1000)).next
    assert not (await rig.store.events_since(start, 10)).truncated
    rig.pass_time(HOUR)
    await rig.store.purge_order(timedelta(minutes=1))
    assert (await rig.store.events_since(start, 10)).truncated
    assert not (await rig.store.events_since(later, 10)).truncated
    assert not (await rig.store.events_since(None, 10)).truncated


async def test_every_event_says_whose_attempt_it_was(rig):
    (job_id,) = await finished(rig, 1)
    events = await rig.events(job_id)
    assert [(e.state, e.cause, e.attempt, e.fence, e.worker_id) for e in events] == [
        (JobState.SCHEDULED, Cause.CREATED, 0, 0, None),
        (JobState.DISPATCHED, Cause.CLAIMED, 1, 1, "w1"),
        (JobState.RUNNING, Cause.STARTED, 1, 1, "w1"),
        (JobState.SUCCEEDED, Cause.SUCCEEDED, 1, 1, "w1"),
    ]
