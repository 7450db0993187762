"""New jobs: stored once, whatever is repeated, and refused under an outdated map."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from services.mesh.errors import StaleEpoch
from services.mesh.jobs.alike import AlikeJobs, Keyed
from services.mesh.jobs.model import JobFilter, ObjectRef, Payload, Timeouts, request_hash_of
from services.mesh.jobs.retry import Backoff, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Parent
from services.mesh.store.answers import JobChange, PutOutcome
from tests.integration import ties_rig
from tests.integration.store_rig import EPOCH, Rig, new_job, opened, rig_of_test, until  # noqa: F401

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def keyed(key: str = "k", **fields):
    job = new_job(idempotency_key=key, **fields)
    return replace(job, request_hash=request_hash_of(job))


async def outcomes(rig: Rig, *jobs) -> list[PutOutcome]:
    return [result.outcome for result in (await rig.store.put_jobs(jobs, EPOCH)).results]


async def test_a_new_job_is_scheduled_with_its_first_event(rig):
    job = new_job()
    answer = await rig.store.put_jobs([job], EPOCH)
    (result,) = answer.results
    assert (result.outcome, result.job_id, result.version) == (PutOutcome.CREATED, job.id, 1)
    assert result.due_now
    assert answer.events == await rig.events(job.id)
    assert (answer.events[0].state, answer.events[0].cause) == (JobState.SCHEDULED, Cause.CREATED)
    record = await rig.get(job.id)
    assert (record.due_time, record.create_time) == (result.due_time, result.create_time)


async def test_everything_that_was_said_about_a_job_reads_back(rig):
    due = datetime(2090, 1, 1, tzinfo=UTC)
    job = new_job(
        input=Payload.stored(ObjectRef("n/key", 5, b"\1" * 32), "text/plain"),
        priority=9,
        due_time=due,
        expire_time=due + SECOND,
        timeouts=Timeouts(run=SECOND, progress=2 * SECOND, total=3 * SECOND),
        retry=RetryPolicy(
            Backoff.EXPONENTIAL,
            4,
            non_retryable=frozenset({"E"}),
            retryable=frozenset({"A", "B"}),
            non_retryable_exits=frozenset({-9, 2}),
            retryable_exits=frozenset({75}),
        ),
        labels={"a": "b", "c": 'quoted "d"'},
        idempotency_key="k",
        request_hash=b"h",
        traceparent="00-1-2-01",
        origin_id=new_job().id,
    )
    await rig.store.put_jobs([job], EPOCH)
    record = await rig.get(job.id)
    for name in ("namespace", "type", "input", "priority", "due_time", "expire_time", "timeouts"):
        assert getattr(record, name) == getattr(job, name), name
    for name in ("retry", "labels", "idempotency_key", "traceparent", "origin_id"):
        assert getattr(record, name) == getattr(job, name), name
    assert await rig.causes(job.id) == [Cause.REDRIVEN]


async def test_due_times_are_reckoned_by_the_shard(rig):
    past = new_job(due_time=datetime(2020, 1, 1, tzinfo=UTC))
    delayed = new_job(delay=timedelta(seconds=90, microseconds=1700))
    answer = await rig.store.put_jobs([past, delayed, new_job()], EPOCH)
    now = answer.results[0].create_time
    assert [result.due_time - now for result in answer.results] == [
        timedelta(0),
        timedelta(seconds=90, milliseconds=1),
        timedelta(0),
    ]
    assert [result.due_now for result in answer.results] == [True, False, True]
    for result in answer.results:
        assert (await rig.get(result.job_id)).due_time == result.due_time


async def test_a_start_timeout_sets_the_expire_time(rig):
    job = new_job(delay=10 * SECOND, timeouts=Timeouts(start=5 * SECOND))
    (result,) = (await rig.store.put_jobs([job], EPOCH)).results
    assert (await rig.get(job.id)).expire_time == result.due_time + 5 * SECOND


async def test_the_same_request_under_the_same_key_is_the_same_job(rig):
    first = keyed()
    assert await outcomes(rig, first) == [PutOutcome.CREATED]
    answer = await rig.store.put_jobs([keyed(), new_job()], EPOCH)
    assert [r.outcome for r in answer.results] == [PutOutcome.EXISTING, PutOutcome.CREATED]
    assert answer.results[0].job_id == first.id
    assert len(answer.events) == 1


async def test_another_request_under_the_same_key_is_a_conflict(rig):
    first = keyed()
    await outcomes(rig, first)
    answer = await rig.store.put_jobs([keyed(priority=1)], EPOCH)
    assert answer.results[0].outcome is PutOutcome.CONFLICT
    assert answer.results[0].job_id == first.id


async def test_the_same_key_in_another_namespace_is_another_job(rig):
    assert await outcomes(rig, keyed(), keyed(namespace="m")) == [PutOutcome.CREATED] * 2


async def test_a_key_twice_in_one_batch_makes_one_job(rig):
    assert await outcomes(rig, keyed(), keyed()) == [PutOutcome.CREATED, PutOutcome.EXISTING]


async def test_an_existing_job_is_answered_with_where_it_stands(rig):
    job = keyed()
    await outcomes(rig, job)
    await rig.claim()
    (result,) = (await rig.store.put_jobs([keyed()], EPOCH)).results
    assert (result.state, result.version) == (JobState.DISPATCHED, 2)


async def test_a_repeated_call_without_keys_stores_nothing_twice(rig):
    jobs = [new_job() for _ in range(3)]
    assert await outcomes(rig, *jobs[:2]) == [PutOutcome.CREATED] * 2
    again = await rig.store.put_jobs(jobs, EPOCH)
    # It is this call that made them, whenever: they are new to whoever hears the answer.
    assert [r.outcome for r in again.results] == [PutOutcome.CREATED] * 3
    assert [r.due_now for r in again.results] == [True] * 3
    assert {event.job_id for event in again.events} == {job.id for job in jobs}
    assert len(await rig.store.list_jobs(JobFilter("n"), None, 10)) == 3


async def test_a_repeated_call_says_where_its_jobs_stand_by_now(rig):
    later, taken = new_job(delay=HOUR), new_job()
    await outcomes(rig, later, taken)
    await rig.claim()
    answer = await rig.store.put_jobs([later, taken], EPOCH)
    assert [(r.outcome, r.state, r.due_now) for r in answer.results] == [
        (PutOutcome.CREATED, JobState.SCHEDULED, False),
        (PutOutcome.CREATED, JobState.DISPATCHED, False),
    ]
    assert [event.job_id for event in answer.events] == [later.id]


async def test_jobs_that_are_alike_are_stored_as_each_alone_would_be(rig):
    like = new_job(
        priority=3,
        labels={"a": "1"},
        retry=RetryPolicy(max_attempts=4),
        timeouts=Timeouts(start=HOUR, run=HOUR),
        concurrency_key="c",
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        input=Payload.inline(b"", "a/b"),
    )
    keys = [new_job().id.bytes for _ in range(3)]
    jobs = AlikeJobs(like, keys, [b"x", b"", b"z"])
    alone = [replace(job, id=new_job().id) for job in jobs]
    answer = await rig.store.put_jobs(jobs, EPOCH)
    assert answer.time is not None
    assert [result.job_id for result in answer.results] == [job.id for job in jobs]
    await rig.store.put_jobs(alone, EPOCH)
    for one, other in zip(jobs, alone, strict=True):
        stored, expected = await rig.get(one.id), await rig.get(other.id)
        times = {name: getattr(stored, name) for name in ("create_time", "due_time", "expire_time")}
        times["first_due_time"] = stored.first_due_time
        assert stored == replace(expected, id=one.id, **times)
        assert stored.expire_time - stored.due_time == HOUR
    again = await rig.store.put_jobs(jobs, EPOCH)
    assert [result.outcome for result in again.results] == [PutOutcome.CREATED] * 3


def alike(*keys: str, content: bytes = b"same") -> AlikeJobs:
    """Jobs with these keys, in columns."""
    like = new_job(input=Payload.inline(b""))
    inputs = [f"of {key}".encode() for key in keys]
    keyed = Keyed(keys, [content] * len(keys))
    return AlikeJobs(like, [new_job().id.bytes for _ in keys], inputs, keyed)


async def test_keyed_jobs_that_are_alike_are_stored_as_each_alone_would_be(rig):
    jobs = alike("b", "c", "a")
    answer = await rig.store.put_jobs(jobs, EPOCH)
    assert answer.time is not None
    assert [result.job_id for result in answer.results] == [job.id for job in jobs]
    others = [replace(job, id=new_job().id, namespace="m") for job in jobs]
    await rig.store.put_jobs(others, EPOCH)
    for job, other in zip(jobs, others, strict=True):
        stored, expected = await rig.get(job.id), await rig.get(other.id)
        times = {name: getattr(stored, name) for name in ("create_time", "due_time")}
        times["first_due_time"] = stored.first_due_time
        assert stored == replace(expected, id=job.id, namespace="n", **times)
    columns = "SELECT idempotency_key, request_hash FROM jobs WHERE namespace = %s ORDER BY 1"
    assert rig.sql(columns, "n") == rig.sql(columns, "m")


async def test_of_keyed_jobs_that_are_alike_each_finds_what_is_in_its_way(rig):
    (known,) = (await rig.store.put_jobs(alike("b"), EPOCH)).results
    (conflicting,) = (await rig.store.put_jobs(alike("c", content=b"other"), EPOCH)).results
    answer = await rig.store.put_jobs(alike("a", "b", "c", "d", "d"), EPOCH)
    assert answer.time is None
    a, b, c, d, again = answer.results
    assert [a.outcome, b.outcome, c.outcome, d.outcome, again.outcome] == [
        PutOutcome.CREATED,
        PutOutcome.EXISTING,
        PutOutcome.CONFLICT,
        PutOutcome.CREATED,
        PutOutcome.EXISTING,
    ]
    assert [b.job_id, c.job_id] == [known.job_id, conflicting.job_id]
    assert again.job_id == d.job_id
    assert {event.job_id for event in answer.events} == {a.job_id, d.job_id}
    assert (await rig.get(d.job_id)).input.data == b"of d"


async def test_keyed_jobs_that_are_alike_and_sent_again_say_that_this_call_made_them(rig):
    jobs = alike("a", "b")
    await rig.store.put_jobs(jobs, EPOCH)
    await rig.claim()
    again = await rig.store.put_jobs(jobs, EPOCH)
    assert [result.outcome for result in again.results] == [PutOutcome.CREATED] * 2
    assert sorted(result.state for result in again.results) == [
        JobState.SCHEDULED,
        JobState.DISPATCHED,
    ]
    assert rig.sql("SELECT count(*) FROM jobs") == [(2,)]


async def test_racing_requests_in_columns_with_the_same_keys_make_one_job_each(rig):
    orders = (range(20), range(19, -1, -1)) * 3
    batches = [alike(*(f"k{n}" for n in order)) for order in orders]
    batches[2] = list(batches[2])  # and one as an older neighbour sends it
    answers = await asyncio.gather(*(rig.store.put_jobs(batch, EPOCH) for batch in batches))
    created = [r for a in answers for r in a.results if r.outcome is PutOutcome.CREATED]
    assert len(created) == 20
    assert len({r.job_id for a in answers for r in a.results}) == 20


async def test_racing_requests_with_the_same_keys_make_one_job_each(rig):
    orders = (range(20), range(19, -1, -1)) * 3
    batches = [[keyed(f"k{n}") for n in order] for order in orders]
    answers = await asyncio.gather(*(rig.store.put_jobs(batch, EPOCH) for batch in batches))
    created = [r for a in answers for r in a.results if r.outcome is PutOutcome.CREATED]
    assert len(created) == 20
    assert len({r.job_id for a in answers for r in a.results}) == 20


async def test_a_writer_with_an_older_map_is_refused_and_told_the_epoch(rig):
    assert await rig.store.raise_epoch(7) == 7
    with pytest.raises(StaleEpoch) as refused:
        await rig.store.put_jobs([new_job()], 6)
    assert refused.value.metadata["epoch"] == "7"
    for jobs in ([keyed()], alike("a")):
        with pytest.raises(StaleEpoch):
            await rig.store.put_jobs(jobs, 6)
    assert await rig.store.list_jobs(JobFilter("n"), None, 10) == []
    await rig.store.put_jobs([new_job()], 7)
    await rig.store.put_jobs([new_job()], 8)


async def test_the_epoch_never_falls(rig):
    await rig.store.raise_epoch(7)
    assert await rig.store.raise_epoch(3) == 7
    assert (await rig.store.probe()).epoch == 7


async def test_raising_the_epoch_waits_for_the_puts_under_way(rig):
    # A put is held up by a transaction that has the same key and has not ended.
    job = keyed()
    async with opened(rig.dsn) as other:
        blocker = await other._connections.connect()
        async with blocker.transaction(force_rollback=True):
            await blocker.execute(
                "INSERT INTO jobs (id, namespace, type, state, version, due_time, first_due_time,"
                " create_time, idempotency_key)"
                " VALUES (%s, 'n', 't', 1, 1, now(), now(), now(), 'k')",
                [new_job().id],
            )
            put = asyncio.create_task(rig.store.put_jobs([job], 1), name="put")
            await _waits_for_lock(rig, "transactionid")
            raised = asyncio.create_task(other.raise_epoch(2), name="raise")
            await _waits_for_lock(rig, "advisory")
            assert not put.done()
            assert not raised.done()
        assert (await put).results[0].outcome is PutOutcome.CREATED
        assert await raised == 2
        await blocker.close()


async def _waits_for_lock(rig: Rig, kind: str) -> None:
    await until(lambda: rig.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = %s", kind))


@pytest.mark.parametrize("by", ["put", "change", "replace", "release"])
async def test_a_job_for_the_end_of_all_calendars_can_be_read(rig, by):
    end = datetime(9999, 12, 31, tzinfo=UTC)
    timeouts = Timeouts(start=timedelta(days=2))
    if by == "put":
        await rig.put(due_time=end, timeouts=timeouts)
    elif by == "change":
        (job_id,) = await rig.put(timeouts=timeouts)
        await rig.store.change(job_id, "n", JobChange(move=True, due_time=end))
    elif by == "replace":
        newer = ties_rig.keyed("k", ties_rig.REPLACE, due_time=end, timeouts=timeouts)
        for job in (ties_rig.keyed("k", delay=HOUR), newer):
            await ties_rig.store(rig, job)
    else:
        (parent,) = await rig.put()
        await ties_rig.child_of(rig, parent, due_time=end, timeouts=timeouts)
        await rig.store.release([Parent(parent, JobState.SUCCEEDED)])
    found = await rig.store.list_jobs(JobFilter("n"), None, 10)
    assert max(job.expire_time for job in found if job.expire_time) > end
