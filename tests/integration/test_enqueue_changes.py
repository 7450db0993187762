"""Counting, cancelling by filter, retrying and updating, as clients call it."""

from __future__ import annotations

import asyncio
import uuid
from random import Random

import psycopg
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from jobmesh.v1 import bus_pb2, job_pb2, orchestrator_service_pb2, payload_pb2
from jobmesh.v1 import enqueue_service_pb2 as pb

from services.mesh.errors import (
    EtagMismatch,
    ForbiddenTransition,
    InvalidField,
    JobNotFound,
    OutcomeUnknown,
    Overloaded,
    PageTokenInvalid,
    ShardUnavailable,
)
from services.mesh.jobs.ids import BUCKETS, bucket_of, new_job_id
from services.mesh.jobs.model import JobFilter
from services.mesh.rpc.interceptors.admission import Admission
from services.mesh.testing.waiting import eventually
from services.orchestrator.app import changes
from tests.integration.enqueue_desk import Desk, desk, rows  # noqa: F401

SCHEDULED, CANCELLED = job_pb2.JOB_STATE_SCHEDULED, job_pb2.JOB_STATE_CANCELLED


def after(seconds: float) -> Timestamp:
    time = Timestamp()
    time.GetCurrentTime()
    time.seconds += int(seconds)
    return time


async def batch(desk: Desk, count: int, **spec) -> list[str]:
    """Jobs in several shards: a few calls, that take turns among those in good health."""
    ids: list[str] = []
    for _ in range(3):
        items = [pb.EnqueueItem(job={"type": "echo", **spec})] * (count // 3)
        answer = await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=items))
        ids += [result.job_id for result in answer.results]
    return ids


async def counts(desk: Desk, **jobs) -> dict[str, int]:
    answer = await desk.stub.CountJobs(pb.CountJobsRequest(filter=jobs))
    assert not answer.partial
    name = job_pb2.JobState.Name
    return {name(one.state).removeprefix("JOB_STATE_"): one.count for one in answer.counts}


async def cancelled(desk: Desk) -> job_pb2.Job:
    job = (await desk.enqueue(labels={"a": "b"}, priority=3)).job
    answer = await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job.id))
    return answer.job


async def update(desk: Desk, job_id: str, *paths: str, version: int = 0, **spec) -> job_pb2.Job:
    request = pb.UpdateJobRequest(
        job_id=job_id, job=spec, update_mask=FieldMask(paths=paths), version=version
    )
    return (await desk.stub.UpdateJob(request)).job


# --- counts


async def test_counts_are_summed_over_the_shards(desk):
    await batch(desk, 9)
    await batch(desk, 6, labels={"a": "b"}, delay={"seconds": 100})
    await cancelled(desk)
    assert await counts(desk) == {"SCHEDULED": 15, "CANCELLED": 1}
    assert await counts(desk, labels={"a": "b"}) == {"SCHEDULED": 6, "CANCELLED": 1}
    assert await counts(desk, states=[CANCELLED]) == {"CANCELLED": 1}
    assert await counts(desk, types=["other"]) == {}


async def test_a_count_without_a_shard_is_partial(desk, shard_dsns):
    await batch(desk, 9)
    with psycopg.connect(shard_dsns[1]) as connection:
        connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        ((unseen,),) = connection.execute("SELECT count(*) FROM jobs").fetchall()
        # On a busy machine another shard, too, may be in doubt for a moment.
        async with asyncio.timeout(20):
            while (answer := await counted(desk)) != 9 - unseen:
                assert answer < 9 - unseen


async def counted(desk: Desk) -> int:
    """How many jobs a count tells of that some shard did not take part in."""
    answer = await desk.stub.CountJobs(pb.CountJobsRequest())
    assert answer.partial
    return sum(one.count for one in answer.counts)


# --- cancel by filter


async def test_a_dry_run_counts_and_changes_nothing(desk):
    await batch(desk, 9, labels={"a": "b"})
    request = pb.CancelJobsRequest(filter={"labels": {"a": "b"}}, dry_run=True)
    assert (await desk.stub.CancelJobs(request)).count == 9
    assert await counts(desk) == {"SCHEDULED": 9}


async def test_all_that_match_are_cancelled_and_told_and_the_rest_is_left_alone(desk):
    ids = await batch(desk, 9, labels={"a": "b"})
    kept = await batch(desk, 3)
    request = pb.CancelJobsRequest(filter={"labels": {"a": "b"}}, reason="a mistake")
    answer = await desk.stub.CancelJobs(request)
    assert (answer.count, answer.partial, answer.next_page_token) == (9, False, "")
    assert (await desk.stub.CancelJobs(request)).count == 0
    assert await counts(desk) == {"CANCELLED": 9, "SCHEDULED": len(kept)}
    ended = lambda: {e.job_id for e in desk.mesh.hints if e.state == CANCELLED}  # noqa: E731
    await eventually(lambda: ended() == set(ids))


async def test_workers_of_running_jobs_hear_of_it(desk):
    (first,) = {(await desk.enqueue(labels={"a": "b"})).job.shard}
    (job,) = (await desk.mesh.stores[first].claim("echo", "w-1", 1)).jobs
    heard: list[bus_pb2.CancelHint] = []
    subject = desk.mesh.subjects.cancel("w-1")
    await desk.mesh.bus.subscribe(
        subject, lambda m: heard.append(bus_pb2.CancelHint.FromString(m.payload))
    )
    request = pb.CancelJobsRequest(filter={"types": ["echo"]})
    assert (await desk.stub.CancelJobs(request)).count == 1
    await eventually(lambda: heard)
    attempt = heard[0].attempts[0]
    assert (attempt.job_id, attempt.dispatch_no) == (job.id.bytes, job.fence)


async def test_a_call_is_bounded_and_goes_on_with_its_token(desk, monkeypatch):
    monkeypatch.setattr(changes, "BATCH", 2)
    monkeypatch.setattr(changes, "ROUNDS", 2)
    await batch(desk, 30)
    request = pb.CancelJobsRequest(filter={"types": ["echo"]})
    found = []
    while True:
        answer = await desk.stub.CancelJobs(request)
        found.append(answer.count)
        if not answer.next_page_token:
            break
        request.page_token = answer.next_page_token
    assert (sum(found), max(found)) == (30, 12)
    other = pb.CancelJobsRequest(filter={"types": ["x"]}, page_token=request.page_token)
    with pytest.raises(PageTokenInvalid):
        await desk.stub.CancelJobs(other)


@pytest.mark.parametrize("method", ["CancelJobs", "RetryJobs"])
async def test_bad_filters_are_refused_by_field(desk, method):
    request = {"CancelJobs": pb.CancelJobsRequest, "RetryJobs": pb.RetryJobsRequest}[method]
    call = getattr(desk.stub, method)
    for filter_, field in (
        ({}, "filter"),
        ({"create_time_from": {"seconds": 10**15}}, "filter.create_time_from"),
        ({"create_time_until": {"seconds": -(10**11)}}, "filter.create_time_until"),
        ({"types": ["No Type"]}, "filter.types[0]"),
        ({"labels": {"k": "x" * 300}}, 'filter.labels["k"]'),
        ({"states": [99]}, "filter.states[0]"),
    ):
        with pytest.raises(InvalidField) as caught:
            await call(request(filter=filter_))
        assert caught.value.violations[0].field == field
    with pytest.raises(PageTokenInvalid):
        await call(request(filter={"types": ["echo"]}, page_token="stale"))


# --- retry


async def test_a_retried_job_is_a_new_one_with_the_same_content(desk):
    big = b"x" * 100_000
    first = (await desk.enqueue(big, labels={"a": "b"}, priority=3)).job
    await desk.stub.CancelJob(pb.CancelJobRequest(job_id=first.id))
    answer = await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    job = answer.job
    assert (job.origin_job_id, job.state, answer.existing) == (first.id, SCHEDULED, False)
    assert (job.spec.priority, dict(job.spec.labels)) == (3, {"a": "b"})
    old, new = await desk.get(first.id), await desk.get(job.id)
    assert old.state == CANCELLED
    assert new.spec.input.object.key == old.spec.input.object.key
    assert new.shard == old.shard
    await eventually(lambda: desk.mesh.nudges.count(("echo", job.shard)) >= 2)
    again = await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    assert (again.job.id, again.existing) == (job.id, True)
    await desk.run(new, payload_pb2.Payload(data=b"done"))
    assert (await desk.get(job.id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_double_clicks_make_one_job(desk):
    first = await cancelled(desk)
    request = pb.RetryJobRequest(job_id=first.id)
    answers = await asyncio.gather(*(desk.stub.RetryJob(request) for _ in range(8)))
    assert len({answer.job.id for answer in answers}) == 1
    assert await rows(desk) == 2


async def test_a_retry_that_is_asked_again_makes_no_second_job(desk, monkeypatch):
    """Its first answer is lost, and what it made has ended when Enqueue asks once more."""
    first = await cancelled(desk)
    redrive, made = changes.Changes.redrive, []

    async def unheard(self, *args):
        (result,) = await redrive(self, *args)
        made.append(str(result.found.record.id))
        if len(made) == 1:
            await desk.stub.CancelJob(pb.CancelJobRequest(job_id=made[0]))
            raise ShardUnavailable(result.found.shard)
        return [result]

    monkeypatch.setattr(changes.Changes, "redrive", unheard)
    answer = await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    assert made == [answer.job.id] * 2
    assert not answer.existing
    assert await rows(desk) == 2
    again = await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    assert (again.job.id != answer.job.id, again.existing) == (True, False)


async def test_a_retry_that_is_asked_again_in_vain_is_not_denied(desk, monkeypatch):
    """Its first answer is lost, and its shard is away when Enqueue asks once more."""
    first = await cancelled(desk)
    redrive, tries = changes.Changes.redrive, []

    async def unheard(self, *args):
        tries.append(args)
        if len(tries) > 1:
            return [ShardUnavailable(first.shard)]
        await redrive(self, *args)
        raise ShardUnavailable(first.shard)

    monkeypatch.setattr(changes.Changes, "redrive", unheard)
    with pytest.raises(OutcomeUnknown):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    assert await rows(desk) == 2
    tries.append(())  # what is sent once, and finds the shard away, says so
    with pytest.raises(ShardUnavailable):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))


async def test_a_retry_that_is_asked_again_and_turned_away_is_not_denied(desk, monkeypatch):
    """Its first answer is lost, and the Orchestrator has no room when Enqueue asks once more."""
    first = await cancelled(desk)
    redrive, enter, made = changes.Changes.redrive, Admission.enter, []

    async def unheard(self, *args):
        made.extend(await redrive(self, *args))
        raise ShardUnavailable(first.shard)

    def full(self, share=1.0):
        enter(self, share)
        if made:
            raise Overloaded("no room")

    monkeypatch.setattr(changes.Changes, "redrive", unheard)
    monkeypatch.setattr(Admission, "enter", full)
    with pytest.raises(OutcomeUnknown):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    with pytest.raises(Overloaded):  # what is sent once, and finds no room, says so
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=first.id))
    made.clear()
    assert await rows(desk) == 2


async def test_ids_for_new_jobs_that_belong_elsewhere_are_refused(desk):
    first = await cancelled(desk)
    there = new_job_id((bucket_of(uuid.UUID(first.id)) + 1) % BUCKETS, 0, Random(1))
    for wishes in ([str(there)], [str(there)] * 2):
        request = orchestrator_service_pb2.RedriveJobsRequest(
            namespace="default", job_ids=[first.id], new_job_ids=wishes
        )
        with pytest.raises(InvalidField):
            await desk.mesh.stub.RedriveJobs(request)
    assert await rows(desk) == 1


async def test_what_has_not_failed_is_not_retried(desk):
    job = (await desk.enqueue()).job
    with pytest.raises(ForbiddenTransition, match="SCHEDULED"):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=job.id))
    await desk.run(job)
    with pytest.raises(ForbiddenTransition, match="SUCCEEDED"):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=job.id))
    ended = await cancelled(desk)
    with pytest.raises(JobNotFound):
        await desk.stub.RetryJob(pb.RetryJobRequest(namespace="other", job_id=ended.id))
    with pytest.raises(InvalidField):
        await desk.stub.RetryJob(pb.RetryJobRequest(job_id=str(uuid.uuid4())))
    assert await rows(desk) == 2


async def test_jobs_are_retried_by_filter_once(desk):
    await batch(desk, 9, labels={"a": "b"})
    await desk.stub.CancelJobs(pb.CancelJobsRequest(filter={"types": ["echo"]}))
    request = pb.RetryJobsRequest(filter={"labels": {"a": "b"}}, dry_run=True)
    assert (await desk.stub.RetryJobs(request)).count == 9
    assert await rows(desk) == 9
    request.dry_run = False
    assert (await desk.stub.RetryJobs(request)).count == 9
    assert (await desk.stub.RetryJobs(request)).count == 0
    assert await counts(desk) == {"CANCELLED": 9, "SCHEDULED": 9}
    live = pb.RetryJobsRequest(filter={"states": [SCHEDULED]})
    assert (await desk.stub.RetryJobs(live)).count == 0


# --- update


async def test_a_waiting_job_is_changed_and_its_watchers_see_it(desk):
    job = (await desk.enqueue(labels={"a": "b"}, delay={"seconds": 3600})).job
    later = after(7200)
    new = await update(
        desk,
        job.id,
        "schedule_time",
        "priority",
        "labels",
        schedule_time=later,
        priority=7,
        labels={"c": "d"},
        version=job.version,
    )
    assert (new.version, new.spec.priority, dict(new.spec.labels)) == (2, 7, {"c": "d"})
    assert new.due_time.seconds == later.seconds
    assert new.spec.type == "echo"
    updated = job_pb2.EVENT_REASON_UPDATED
    await eventually(lambda: [e for e in desk.mesh.hints if e.reason == updated])
    assert await counts(desk, labels={"a": "b"}) == {}
    assert await counts(desk, labels={"c": "d"}) == {"SCHEDULED": 1}


async def test_a_job_moved_to_now_is_nudged_at_once(desk):
    job = (await desk.enqueue(delay={"seconds": 3600})).job
    assert desk.mesh.nudges == []
    await update(desk, job.id, "schedule_time")
    await eventually(lambda: desk.mesh.nudges == [("echo", job.shard)])
    await desk.run(job)
    with pytest.raises(ForbiddenTransition, match="SUCCEEDED"):
        await update(desk, job.id, "priority", priority=1)


async def test_only_the_named_fields_are_taken(desk):
    job = (await desk.enqueue(priority=2, labels={"a": "b"})).job
    new = await update(desk, job.id, "priority", priority=5, labels={"x": "y"})
    assert (new.spec.priority, dict(new.spec.labels)) == (5, {"a": "b"})
    new = await update(desk, job.id, "labels")
    assert (new.spec.priority, dict(new.spec.labels)) == (5, {})


async def test_bad_updates_are_refused_by_field_and_change_nothing(desk):
    job = (await desk.enqueue(expire_time=after(600), delay={"seconds": 60})).job
    many = {f"k{n}": "v" for n in range(33)}
    for paths, spec, field in (
        (["input"], {}, "update_mask"),
        (["nothing.like.it"], {}, "update_mask"),
        (["priority", "type"], {"priority": 1}, "update_mask"),
        ([], {}, "update_mask"),
        (["priority"], {"priority": 10}, "job.priority"),
        (["priority"], {"priority": -(2**31)}, "job.priority"),
        (["labels"], {"labels": {"k": "x" * 256}}, 'job.labels["k"]'),
        (["labels"], {"labels": {"k": "a\0b"}}, 'job.labels["k"]'),
        (["labels"], {"labels": many}, "job.labels"),
        (["schedule_time"], {"schedule_time": {"seconds": 1}}, "job.schedule_time"),
        (["schedule_time"], {"schedule_time": {"seconds": 10**15}}, "job.schedule_time"),
        (["schedule_time"], {"schedule_time": after(10**9)}, "job.schedule_time"),
        (["schedule_time"], {"schedule_time": after(700)}, "job.schedule_time"),
    ):
        with pytest.raises(InvalidField) as caught:
            await update(desk, job.id, *paths, **spec)
        assert caught.value.violations[0].field == field, (paths, spec)
    with pytest.raises(EtagMismatch):
        await update(desk, job.id, "priority", priority=1, version=2**62)
    with pytest.raises(InvalidField):
        await update(desk, job.id, "priority", priority=1, version=-1)
    request = pb.UpdateJobRequest(
        namespace="other", job_id=job.id, update_mask=FieldMask(paths=["labels"])
    )
    with pytest.raises(JobNotFound):
        await desk.stub.UpdateJob(request)
    stored = await desk.mesh.stores[job.shard].list_jobs(JobFilter("default"), None, 9)
    assert [record.version for record in stored] == [1]
