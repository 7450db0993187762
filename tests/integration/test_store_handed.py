"""New jobs that are handed to a worker by the statement that stores them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from services.mesh.errors import StaleEpoch
from services.mesh.jobs.alike import AlikeJobs, Keyed
from services.mesh.jobs.model import Payload, Position, request_hash_of
from services.mesh.jobs.reports import ReportOutcome, Started, Succeeded
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import PutOutcome
from tests.integration.store_rig import EPOCH, Rig, new_job, rig_of_test  # noqa: F401

HAND = [Cause.CREATED, Cause.CLAIMED]


async def handed(rig: Rig, *jobs, worker: str = "w1"):
    return (await rig.store.put_jobs(jobs, EPOCH, worker)).results


def keyed(key: str, **fields):
    job = new_job(idempotency_key=key, **fields)
    return replace(job, request_hash=request_hash_of(job))


@pytest.mark.parametrize("make", [new_job, lambda: keyed("k")], ids=["plain", "keyed"])
async def test_it_is_stored_and_in_the_workers_hands_at_once(rig, make):
    job = make()
    (result,) = await handed(rig, job)
    assert (result.outcome, result.version, result.handed) == (PutOutcome.CREATED, 1, True)
    record = await rig.get(job.id)
    assert (record.state, record.version) == (JobState.DISPATCHED, 2)
    assert (record.fence, record.attempt, record.worker_id) == (1, 1, "w1")
    assert record.create_time == record.due_time == record.dispatch_time == result.create_time
    assert await rig.causes(job.id) == HAND


async def test_nobody_else_can_claim_it(rig):
    await handed(rig, new_job(), new_job())
    assert await rig.claim("w2", limit=10) == []
    assert rig.sql("SELECT count(*) FROM queue") == [(0,)]
    assert await rig.store.inflight_workers() == ["w1"]


async def test_its_result_is_committed_by_the_first_fence_of_that_worker_only(rig):
    (result,) = await handed(rig, new_job())
    job_id = result.job_id
    output = Payload.inline(b"out")
    assert await rig.say(Succeeded(job_id, 1, "w2", output=output)) == [ReportOutcome.STALE]
    assert await rig.say(Succeeded(job_id, 2, "w1", output=output)) == [ReportOutcome.STALE]
    assert await rig.say(Succeeded(job_id, 1, "w1", output=output)) == [ReportOutcome.COMMITTED]
    assert await rig.causes(job_id) == [*HAND, Cause.STARTED, Cause.SUCCEEDED]
    assert rig.sql("SELECT count(*) FROM in_flight") == [(0,)]


async def test_one_whose_dispatch_was_lost_comes_back_without_the_cost_of_an_attempt(rig):
    (result,) = await handed(rig, new_job())
    (lost,) = await rig.store.overdue_dispatches(timedelta(0))
    assert (lost.job_id, lost.worker_id) == (result.job_id, "w1")
    await rig.store.sweep([(result.job_id, 1)])
    assert (await rig.get(result.job_id)).attempt == 0
    (again,) = await rig.claim("w2")
    assert (again.id, again.fence, again.attempt) == (result.job_id, 2, 1)
    # Swept, and not a zombie's any more.
    assert await rig.say(Started(result.job_id, 1, "w1")) == [ReportOutcome.STALE]
    assert await rig.causes(result.job_id) == [*HAND, Cause.SWEPT, Cause.CLAIMED]


async def test_one_whose_worker_is_lost_is_rescued(rig):
    (result,) = await handed(rig, new_job())
    await rig.store.rescue(["w1"])
    assert (await rig.get(result.job_id)).state is JobState.SCHEDULED
    (again,) = await rig.claim("w2")
    assert again.fence == 2


async def test_it_can_be_cancelled(rig):
    (result,) = await handed(rig, new_job())
    await rig.store.cancel([result.job_id])
    assert await rig.causes(result.job_id) == [*HAND, Cause.CANCELLED]


async def test_of_repeated_requests_only_what_is_new_is_handed_out(rig):
    await rig.store.put_jobs([keyed("a")], EPOCH)
    known, new, other = await handed(rig, keyed("a"), keyed("b"), keyed("a", priority=3))
    assert [known.outcome, new.outcome, other.outcome] == [
        PutOutcome.EXISTING,
        PutOutcome.CREATED,
        PutOutcome.CONFLICT,
    ]
    assert [known.handed, new.handed, other.handed] == [False, True, False]
    assert (await rig.get(known.job_id)).state is JobState.SCHEDULED
    (again,) = await handed(rig, keyed("b"), worker="w2")
    assert (again.outcome, again.job_id, again.handed) == (PutOutcome.EXISTING, new.job_id, False)
    assert (await rig.get(new.job_id)).worker_id == "w1"


async def test_what_was_stored_by_a_first_try_is_not_handed_out_by_the_second(rig):
    job = new_job()
    await rig.store.put_jobs([job], EPOCH)
    (result,) = await handed(rig, job)
    assert (result.outcome, result.handed) == (PutOutcome.CREATED, False)
    assert (await rig.get(job.id)).state is JobState.SCHEDULED


async def test_jobs_that_are_alike_are_handed_out_together(rig):
    ones = [new_job() for _ in range(3)]
    like = replace(ones[0], labels={"a": "b"})
    jobs = AlikeJobs(like, [one.id.bytes for one in ones], [b"1", b"2", b"3"])
    answer = await rig.store.put_jobs(jobs, EPOCH, "w1")
    assert answer.time is not None
    assert all(result.handed for result in answer.results)
    for one, data in zip(ones, (b"1", b"2", b"3"), strict=True):
        record = await rig.get(one.id)
        assert (record.state, record.input.data) == (JobState.DISPATCHED, data)
    assert rig.sql("SELECT count(*) FROM job_terms") == [(3,)]


async def test_of_keyed_jobs_that_are_alike_what_is_new_is_handed_out(rig):
    await rig.store.put_jobs([keyed("b")], EPOCH)
    ones = [new_job() for _ in range(3)]
    keys = Keyed(["a", "b", "c"], [request_hash_of(keyed("b"))] * 3)
    jobs = AlikeJobs(new_job(), [one.id.bytes for one in ones], [b"1", b"2", b"3"], keys)
    answer = await rig.store.put_jobs(jobs, EPOCH, "w1")
    assert [(result.outcome, result.handed) for result in answer.results] == [
        (PutOutcome.CREATED, True),
        (PutOutcome.EXISTING, False),
        (PutOutcome.CREATED, True),
    ]
    states = [(await rig.get(ones[at].id)).state for at in (0, 2)]
    assert states == [JobState.DISPATCHED] * 2
    assert rig.sql("SELECT count(*) FROM in_flight") == [(2,)]


async def test_keyed_jobs_that_are_alike_and_all_new_are_handed_out_together(rig):
    ones = [new_job() for _ in range(2)]
    keys = Keyed(["b", "a"], [b"x" * 32] * 2)
    jobs = AlikeJobs(new_job(), [one.id.bytes for one in ones], [b"1", b"2"], keys)
    answer = await rig.store.put_jobs(jobs, EPOCH, "w1")
    assert answer.time is not None
    assert all(result.handed for result in answer.results)
    for one, data in zip(ones, (b"1", b"2"), strict=True):
        record = await rig.get(one.id)
        assert (record.state, record.input.data) == (JobState.DISPATCHED, data)


async def test_an_outdated_map_hands_nothing_out(rig):
    await rig.store.raise_epoch(EPOCH + 1)
    with pytest.raises(StaleEpoch):
        await handed(rig, new_job())
    assert rig.sql("SELECT count(*) FROM jobs") == [(0,)]
    assert rig.sql("SELECT count(*) FROM in_flight") == [(0,)]


async def test_both_transitions_stand_in_the_shards_order(rig):
    results = await handed(rig, new_job(), new_job())
    told = (await rig.store.events_since(Position(0, 0), 10)).events
    assert [(event.job_id, event.version) for event in told] == [
        (result.job_id, version) for result in results for version in (1, 2)
    ]
