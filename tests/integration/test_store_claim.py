"""Claims: what is due, in order, for one worker each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from services.mesh.jobs.model import Payload, Timeouts
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from tests.integration.store_rig import EPOCH, new_job, opened, rig_of_test  # noqa: F401

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
_LOCK = "SELECT FROM queue WHERE job_id = %s FOR UPDATE"


async def test_a_claim_mints_the_fence_and_counts_the_attempt(rig):
    (job_id,) = await rig.put(
        input=Payload.inline(b"data", "x/y"),
        labels={"a": "b"},
        traceparent="00-1",
        timeouts=Timeouts(run=SECOND),
        retry=RetryPolicy(Backoff.FIXED, 5),
    )
    answer = await rig.store.claim("t", "w1", 10)
    (job,) = answer.jobs
    assert (job.id, job.fence, job.attempt, job.max_attempts) == (job_id, 1, 1, 5)
    assert job.input == Payload.inline(b"data", "x/y")
    assert (job.traceparent, job.timeouts.run) == ("00-1", SECOND)
    record = await rig.get(job_id)
    assert (record.state, record.worker_id, record.fence) == (JobState.DISPATCHED, "w1", 1)
    assert record.dispatch_time == job.dispatch_time
    (_, event) = await rig.events(job_id)
    assert (event.state, event.cause) == (JobState.DISPATCHED, Cause.CLAIMED)
    told = (job.version, job.dispatch_time, job.attempt, job.fence)
    assert (event.version, event.time, event.attempt, event.fence) == told


async def test_nothing_is_claimed_before_it_is_due(rig):
    await rig.put(delay=HOUR)
    assert await rig.claim() == []
    rig.pass_time(HOUR)
    assert len(await rig.claim()) == 1


async def test_a_claim_may_look_ahead_and_says_when_it_looked(rig):
    (soon,) = await rig.put(delay=SECOND)
    await rig.put(delay=HOUR)
    answer = await rig.store.claim("t", "w1", 10, ahead=2 * SECOND)
    (job,) = answer.jobs
    assert job.id == soon
    assert answer.now <= job.dispatch_time < job.due_time <= answer.now + 2 * SECOND


async def test_a_claim_may_pass_over_what_has_been_due_for_long(rig):
    old = await rig.put(2)
    rig.pass_time(HOUR)
    new = await rig.put(2)
    answer = await rig.store.claim("t", "w1", 10, recent=SECOND * 60)
    assert {job.id for job in answer.jobs} == set(new)
    assert {job.id for job in await rig.claim(limit=10)} == set(old)


async def test_higher_priority_goes_first_then_longer_due(rig):
    late = await rig.put(2)
    rig.pass_time(SECOND)
    newer = await rig.put(2)
    urgent = await rig.put(priority=5)
    claimed = [job.id for job in await rig.claim(limit=10)]
    assert claimed == [*urgent, *sorted(late), *sorted(newer)]


async def test_a_claim_may_begin_below_a_priority_and_says_how_low_it_came(rig):
    low = await rig.put(2, priority=1)
    middle = await rig.put(2, priority=4)
    high = await rig.put(2, priority=9)
    answer = await rig.store.claim("t", "w1", 3, below=9)
    assert [job.id for job in answer.jobs] == [*sorted(middle), min(low)]
    assert answer.lowest == 1
    assert (await rig.store.claim("t", "w1", 3, below=1)).jobs == []
    answer = await rig.store.claim("t", "w1", 2)
    assert ([job.id for job in answer.jobs], answer.lowest) == (sorted(high), 9)


async def test_a_claim_below_a_priority_does_not_walk_what_is_above(rig):
    await rig.store.put_jobs([new_job(priority=9) for _ in range(2000)], EPOCH)
    (job_id,) = await rig.put(priority=1)
    before = _reads(rig)
    async with opened(rig.dsn) as fresh:
        answer = await fresh.claim("t", "w1", 10, below=9)
    assert [job.id for job in answer.jobs] == [job_id]
    assert _reads(rig) - before < 100


async def test_a_claim_takes_no_more_than_its_limit_and_only_its_type(rig):
    await rig.put(5)
    await rig.put(3, type="other")
    assert len(await rig.claim(limit=2)) == 2
    assert len(await rig.claim(limit=10)) == 3
    assert await rig.claim(limit=10) == []
    assert len(await rig.claim(limit=10, type="other")) == 3


async def test_jobs_of_a_far_future_do_not_stand_in_the_way_of_lower_priorities(rig):
    await rig.store.put_jobs([new_job(delay=HOUR, priority=9) for _ in range(2000)], EPOCH)
    await rig.store.put_jobs([new_job(delay=HOUR, priority=4) for _ in range(2000)], EPOCH)
    (job_id,) = await rig.put()
    rig.sql("ANALYZE queue")
    assert [job.id for job in await rig.claim(limit=10)] == [job_id]
    plan = "\n".join(
        row[0]
        for row in rig.sql(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT job_id FROM queue WHERE type = 't'"
            " AND due_time <= (SELECT clock_timestamp())"
            " ORDER BY priority DESC, due_time, job_id LIMIT 10"
        )
    )
    pages = int(plan.split("shared hit=")[1].split()[0])
    assert pages < 20, plan


async def test_an_expired_job_is_not_claimed(rig):
    await rig.put(timeouts=Timeouts(start=SECOND))
    rig.pass_time(2 * SECOND)
    assert await rig.claim() == []


async def test_a_job_that_spent_an_attempt_no_longer_expires(rig):
    job = await rig.claimed(timeouts=Timeouts(start=SECOND), retry=RetryPolicy(Backoff.FIXED, 2))
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "")))
    rig.pass_time(HOUR)
    assert await rig.store.expire_overdue() == []
    assert len(await rig.claim()) == 1


async def test_two_claimers_never_get_the_same_job(rig):
    ids = await rig.put(400)
    async with opened(rig.dsn) as other:
        stores = [rig.store, other] * 8
        answers = await asyncio.gather(
            *(store.claim("t", f"w{n}", 30) for n, store in enumerate(stores))
        )
    claimed = [job.id for answer in answers for job in answer.jobs]
    assert sorted(claimed) == sorted(ids)


async def test_a_claim_passes_over_what_somebody_else_has_locked(rig):
    first, second = await rig.put(2)
    connection = await rig.store._connections.connect()
    async with connection.transaction(force_rollback=True):
        await connection.execute(
            "SELECT FROM queue WHERE job_id = %s FOR UPDATE", [min(first, second)]
        )
        assert [job.id for job in await rig.claim(limit=2)] == [max(first, second)]
    await connection.close()
    assert [job.id for job in await rig.claim(limit=2)] == [min(first, second)]


async def test_a_place_in_the_queue_that_outlived_its_job_is_removed_by_a_claim(rig):
    (job_id,) = await rig.put()
    connection = await rig.store._connections.connect()
    async with connection.transaction(force_rollback=True):
        await connection.execute(_LOCK, [job_id])
        await rig.store.cancel([job_id])  # does not wait for the place in the queue
    await connection.close()
    assert rig.sql("SELECT count(*) FROM queue") == [(1,)]
    assert await rig.claim() == []
    assert rig.sql("SELECT count(*) FROM queue") == [(0,)]
    assert await rig.causes(job_id) == [Cause.CREATED, Cause.CANCELLED]


# --- what a scheduler looks at


async def test_due_types_are_those_with_due_jobs_at_any_priority(rig):
    assert (await rig.store.pulse()).due_types == []
    await rig.put(type="a", priority=3, delay=HOUR)
    await rig.put(type="a", priority=1)
    await rig.put(type="b", delay=HOUR)
    await rig.put(3, type="c")
    await rig.put(type="d", priority=-5)
    assert (await rig.store.pulse()).due_types == ["a", "c", "d"]


async def test_a_slot_holds_the_due_times_of_its_half_open_span(rig):
    now = (await rig.store.probe()).now
    for seconds in (59, 60, 60, 119, 120):
        await rig.put(due_time=now + seconds * SECOND)
    await rig.put(type="u", due_time=now + 60 * SECOND)
    await rig.put()  # due at once: never in a slot
    slot = (await rig.store.pulse(now + 60 * SECOND, 60 * SECOND, 100)).slot
    found = [(d.type, (d.due_time - now) // SECOND, d.count) for d in slot.due_times]
    assert found == [("t", 60, 2), ("u", 60, 1), ("t", 119, 1)]
    assert (slot.start, slot.end) == (now + 60 * SECOND, now + 120 * SECOND)


async def test_a_slot_without_a_start_begins_at_the_shards_now(rig):
    await rig.put(delay=10 * SECOND)
    slot = (await rig.store.pulse(None, HOUR, 100)).slot
    assert slot.start == slot.now
    assert len(slot.due_times) == 1


async def test_a_slot_that_is_cut_short_says_where_to_go_on(rig):
    now = (await rig.store.probe()).now
    times = [now + seconds * SECOND for seconds in range(1, 8)]
    for time in times:
        await rig.put(due_time=time)
    found, start = set(), now
    while start < now + HOUR:
        slot = (await rig.store.pulse(start, now + HOUR - start, 3)).slot
        assert slot.end > start
        found |= {due.due_time for due in slot.due_times}
        start = slot.end
    assert found == set(times)


async def test_a_retried_job_is_in_the_slot_of_its_next_attempt(rig):
    job = await rig.claimed(retry=RetryPolicy(Backoff.FIXED, 2, initial_delay=30 * SECOND))
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "")))
    slot = (await rig.store.pulse(None, HOUR, 10)).slot
    assert [due.due_time for due in slot.due_times] == [(await rig.get(job.id)).due_time]


async def test_the_backlog_counts_due_jobs_and_what_is_in_flight(rig):
    await rig.put(7)
    await rig.put(2, priority=5)
    await rig.put(delay=HOUR, priority=5)
    await rig.claim(limit=3)
    await rig.put(type="idle", delay=HOUR)
    running = await rig.claim(limit=1)
    rig.pass_time(10 * SECOND)
    stats = {stat.type: stat for stat in await rig.store.backlog(cap=5)}
    load = stats["t"]
    assert (load.due, load.capped, load.dispatched, load.running) == (5, True, 4, 0)
    assert 10 * SECOND <= load.oldest_age < 60 * SECOND
    assert load.next_due_time is not None
    assert (stats["idle"].due, stats["idle"].oldest_age) == (0, timedelta(0))
    await rig.say(Succeeded(running[0].id, running[0].fence, "w1"))
    assert {s.type: s.dispatched for s in await rig.store.backlog()}["t"] == 3


async def test_a_type_with_nothing_but_running_jobs_is_in_the_backlog(rig):
    await rig.put()
    await rig.claim()
    (stat,) = await rig.store.backlog()
    assert (stat.due, stat.dispatched, stat.next_due_time) == (0, 1, None)


async def test_waiting_jobs_are_not_walked_to_find_their_types(rig):
    rig.sql(
        "INSERT INTO queue (job_id, due_time, priority, later, type)"
        " SELECT gen_random_uuid(), now(), g % 3, false, 'type' || g % 5"
        " FROM generate_series(1, 30000) g"
    )
    rig.sql("ANALYZE queue")
    assert len((await rig.store.pulse()).due_types) == 5
    before = _reads(rig)
    async with opened(rig.dsn) as fresh:
        await fresh.pulse()
    assert _reads(rig) - before < 500
    rig.sql("DELETE FROM queue")


@contextmanager
def long_gone(rig, count: int = 30_000) -> Iterator[None]:
    """So many jobs were claimed and have ended, and somebody's snapshot keeps their dead rows."""
    with psycopg.connect(rig.dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM queue")
        rig.sql(
            "INSERT INTO queue (job_id, due_time, priority, later, type, namespace)"
            " SELECT gen_random_uuid(), now() - interval '1 minute', g % 3, false, 't', 'n'"
            f" FROM generate_series(1, {count}) g"
        )
        rig.sql(
            "INSERT INTO in_flight (job_id, dispatch_time, worker_id)"
            " SELECT q.job_id, q.due_time, 'w1' FROM queue q"
        )
        rig.sql("DELETE FROM queue")
        rig.sql("DELETE FROM in_flight")
        yield


async def test_what_was_claimed_and_cannot_be_vacuumed_is_not_walked_by_a_claim_of_recent_jobs(rig):
    with long_gone(rig):
        (job_id,) = await rig.put(1)
        before = _reads(rig)
        async with opened(rig.dsn) as fresh:
            answer = await fresh.claim("t", "w1", 10, recent=10 * SECOND)
        assert [job.id for job in answer.jobs] == [job_id]
        assert _reads(rig) - before < 500


async def test_what_cannot_be_vacuumed_is_walked_by_deep_looks_only(rig):
    with long_gone(rig):
        await rig.put(delay=HOUR / 2)
        await rig.put()
        before = _reads(rig, "queue", "in_flight")
        async with opened(rig.dsn) as fresh:
            seen = await fresh.pulse(None, HOUR, deep=False)
        assert _reads(rig, "queue", "in_flight") - before < 500
        assert [due.type for due in seen.slot.due_times] == ["t"]
        assert (seen.due_types, seen.deep) == ([], False)
        async with opened(rig.dsn) as fresh:
            seen = await fresh.pulse(None, HOUR)
        assert (seen.due_types, seen.deep) == (["t"], True)
        assert seen.took > 0
        assert _reads(rig, "queue", "in_flight") - before > 500, "or there was nothing to walk"


def _reads(rig, *tables: str) -> int:
    """Entries that were read in the indexes of these tables; of the queue, if none is named."""
    rig.sql("SELECT pg_stat_force_next_flush()")
    names = ", ".join(f"'{name}'" for name in tables or ("queue",))
    return rig.sql(
        f"SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname IN ({names})"
    )[0][0]
