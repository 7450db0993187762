"""Enqueue over a real Orchestrator, shards, NATS, etcd and object store, as clients call it."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from grpc.aio import EOF
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from services.mesh.errors import (
    IdempotencyConflict,
    InvalidField,
    JobNotFound,
    MeshError,
    NotImplementedYet,
    PageTokenInvalid,
    ResumeTokenInvalid,
    UnknownType,
)
from tests.integration.enqueue_desk import SCHEDULED, Desk, desk, read, rows  # noqa: F401

SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED


# --- submit and query


async def test_an_enqueued_job_is_stored_and_reads_back(desk):
    job = (await desk.enqueue(priority=2, labels={"a": "b"})).job
    assert (job.state, job.spec.priority, job.namespace) == (SCHEDULED, 2, "default")
    stored = await desk.get(job.id)
    assert stored.spec.input.data == b"hi"
    assert dict(stored.spec.labels) == {"a": "b"}


async def test_a_batch_answers_item_by_item_and_one_bad_item_hinders_nobody(desk):
    good = pb.EnqueueItem(job=job_pb2.JobSpec(type="echo"))
    items = [
        good,
        pb.EnqueueItem(job=job_pb2.JobSpec(type="Not A Type")),
        pb.EnqueueItem(job=job_pb2.JobSpec(type="nobody")),
        good,
    ]
    results = (await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=items))).results
    reasons = [result.error.reason for result in results]
    assert reasons == ["", "INVALID_FIELD", "UNKNOWN_TYPE", ""]
    assert results[1].error.field_violations[0].field == "items[1].job.type"
    assert await rows(desk) == 2


async def test_a_batch_of_all_sorts_is_answered_in_its_order_and_read_back_as_it_was(desk):
    def item(data: bytes, **fields) -> pb.EnqueueItem:
        key = fields.pop("key", "")
        spec = job_pb2.JobSpec(type="echo", input={"data": data, "content_type": "a/b"}, **fields)
        return pb.EnqueueItem(job=spec, idempotency_key=key)

    items = [
        item(b"0"),
        item(b"1", labels={"team": "a"}),
        item(b"2", key="k"),
        item(b"3", priority=4),
        pb.EnqueueItem(job=job_pb2.JobSpec(type="Not A Type")),
        item(b"5"),
        pb.EnqueueItem(job=job_pb2.JobSpec(type="echo")),
        item(b"x" * 50_000),
        item(b"8", labels={"team": "a"}),
        item(b"", priority=4),
    ]
    for _ in range(2):  # the second time all of them are familiar
        results = (await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=items))).results
        assert [bool(result.job_id) for result in results] == [n != 4 for n in range(10)]
        ids = [result.job_id for result in results if result.job_id]
        assert len(set(ids)) == 9
        given = [one.job for n, one in enumerate(items) if n != 4]
        for job_id, spec in zip(ids, given, strict=True):
            request = pb.GetJobRequest(job_id=job_id, view=job_pb2.JOB_VIEW_FULL)
            job = (await desk.stub.GetJob(request)).job
            if len(spec.input.data) < 50_000:
                assert job.spec.input == spec.input
            assert (job.spec.priority, job.spec.labels) == (spec.priority, spec.labels)
    assert await rows(desk) == 17  # the keyed one is the same job


async def test_the_same_key_returns_the_same_job_and_other_content_is_refused(desk):
    first = await desk.enqueue(key="k")
    again = await desk.enqueue(key="k")
    assert (again.job.id, again.existing) == (first.job.id, True)
    with pytest.raises(IdempotencyConflict, match=first.job.id):
        await desk.enqueue(b"other", key="k")
    assert await rows(desk) == 1


async def test_a_type_announced_this_moment_is_known(desk):
    spec = job_pb2.JobSpec(type="fresh")
    with pytest.raises(UnknownType):
        await desk.stub.Enqueue(pb.EnqueueRequest(job=job_pb2.JobSpec(type="other")))
    await desk.announce("fresh")
    assert (await desk.stub.Enqueue(pb.EnqueueRequest(job=spec))).job.id


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.EnqueueRequest(), "job"),
        (pb.EnqueueRequest(job=job_pb2.JobSpec()), "job.type"),
        (pb.EnqueueRequest(job=job_pb2.JobSpec(type="UPPER")), "job.type"),
        (pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", priority=10)), "job.priority"),
        (pb.EnqueueRequest(namespace="No Good", job=job_pb2.JobSpec(type="echo")), "namespace"),
        (
            pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", schedule_time={"seconds": 1})),
            "job.schedule_time",
        ),
        (
            pb.EnqueueRequest(
                job=job_pb2.JobSpec(type="echo", schedule_time={"seconds": 99_999_999_999})
            ),
            "job.schedule_time",
        ),
        (
            pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", delay={"seconds": -1})),
            "job.delay",
        ),
        (
            pb.EnqueueRequest(
                job=job_pb2.JobSpec(type="echo", input={"data": b"x" * (1024 * 1024 + 1)})
            ),
            "job.input.data",
        ),
    ],
)
async def test_bad_input_is_refused_by_field_and_nothing_is_stored(desk, request_, field):
    with pytest.raises(InvalidField) as error:
        await desk.stub.Enqueue(request_)
    assert {violation.field for violation in error.value.violations} == {field}
    assert await rows(desk) == 0


async def test_ids_that_are_none_are_refused_and_unknown_ones_not_found(desk):
    with pytest.raises(InvalidField, match="job_id"):
        await desk.get("nonsense")
    with pytest.raises(InvalidField, match="job_id"):
        await desk.get(str(uuid.uuid4()))
    job = (await desk.enqueue()).job
    unknown = job.id[:-4] + ("0000" if not job.id.endswith("0000") else "1111")
    with pytest.raises(JobNotFound):
        await desk.get(unknown)


async def test_lists_page_and_refuse_garbage_tokens(desk):
    made = {(await desk.enqueue()).job.id for _ in range(7)}
    first = await desk.stub.ListJobs(pb.ListJobsRequest(page_size=5))
    rest = await desk.stub.ListJobs(
        pb.ListJobsRequest(page_size=5, page_token=first.next_page_token)
    )
    assert {job.id for job in [*first.jobs, *rest.jobs]} == made
    assert rest.next_page_token == ""
    for token, filter_ in [
        ("garbage", {}),
        (first.next_page_token, {"types": ["other"]}),
    ]:
        with pytest.raises(PageTokenInvalid):
            await desk.stub.ListJobs(pb.ListJobsRequest(page_token=token, filter=filter_))


async def test_a_list_filters_by_state_type_and_label(desk):
    wanted = (await desk.enqueue(labels={"team": "red"})).job
    await desk.enqueue(labels={"team": "blue"})
    page = await desk.stub.ListJobs(
        pb.ListJobsRequest(
            filter={"labels": {"team": "red"}, "types": ["echo"], "states": [SCHEDULED]}
        )
    )
    assert [job.id for job in page.jobs] == [wanted.id]


async def test_cancel_says_who_won(desk):
    waiting, done = (await desk.enqueue()).job, (await desk.enqueue()).job
    await desk.run(done)
    won = await desk.stub.CancelJob(pb.CancelJobRequest(job_id=waiting.id, reason="changed mind"))
    assert (won.cancelled, won.job.state) == (True, job_pb2.JOB_STATE_CANCELLED)
    lost = await desk.stub.CancelJob(pb.CancelJobRequest(job_id=done.id))
    assert (lost.cancelled, lost.job.state) == (False, SUCCEEDED)


@pytest.mark.parametrize("resumes", [False, True])
async def test_the_reason_of_a_cancel_is_told_to_who_looks_and_to_who_watches(desk, resumes):
    job = (await desk.enqueue()).job
    call = desk.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[job.id]))
    (snapshot,) = await read(call, 1)
    if resumes:  # then it comes from the shard, and not by the hint
        call.cancel()
    await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job.id, reason="changed mind"))
    if resumes:
        again = pb.WatchJobsRequest(job_ids=[job.id], resume_token=snapshot.resume_token)
        call = desk.stub.WatchJobs(again)
    (told,) = await read(call, 1)
    assert (told.event.state, told.event.note) == (job_pb2.JOB_STATE_CANCELLED, "changed mind")
    full = pb.GetJobRequest(job_id=job.id, view=job_pb2.JOB_VIEW_FULL)
    assert (await desk.stub.GetJob(full)).job.end_note == "changed mind"


# --- watch


async def test_a_watch_streams_the_state_now_and_every_change_to_the_last(desk):
    job = (await desk.enqueue()).job
    call = desk.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[job.id]))
    (snapshot,) = await read(call, 1)
    assert snapshot.snapshot.version == 1
    await desk.run(job)
    events = [response.event for response in await read(call, 3)]
    assert [event.version for event in events] == [2, 3, 4]
    assert events[-1].state == SUCCEEDED
    assert await call.read() is EOF


async def test_a_watch_of_ends_tells_one_event_per_job(desk):
    ended, later = [(await desk.enqueue()).job for _ in range(2)]
    await desk.run(ended)
    request = pb.WatchJobsRequest(job_ids=[ended.id, later.id], ends_only=True)
    call = desk.stub.WatchJobs(request)
    (first,) = await read(call, 1)
    assert (first.event.job_id, first.event.version) == (ended.id, 4)
    await desk.run(later)
    (second,) = await read(call, 1)
    assert (second.event.job_id, second.event.state) == (later.id, SUCCEEDED)
    assert await call.read() is EOF


async def test_a_watch_resumes_after_its_token(desk):
    job = (await desk.enqueue()).job
    call = desk.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[job.id]))
    (snapshot,) = await read(call, 1)
    call.cancel()
    await desk.run(job)
    resumed = desk.stub.WatchJobs(
        pb.WatchJobsRequest(job_ids=[job.id], resume_token=snapshot.resume_token)
    )
    assert [r.event.version for r in await read(resumed, 3)] == [2, 3, 4]


async def test_a_watch_of_strange_things_is_refused(desk):
    job = (await desk.enqueue()).job
    for request, error in [
        (pb.WatchJobsRequest(), InvalidField),
        (pb.WatchJobsRequest(job_ids=["x"]), InvalidField),
        (pb.WatchJobsRequest(filter={"types": ["echo"]}, ends_only=True), InvalidField),
        (pb.WatchJobsRequest(job_ids=[job.id], resume_token="garbage"), ResumeTokenInvalid),
        (pb.WatchJobsRequest(filter={"schedule": "nightly"}), NotImplementedYet),
    ]:
        with pytest.raises(error):
            await desk.stub.WatchJobs(request).read()


async def test_enqueue_can_wait_for_the_end(desk):
    spec = job_pb2.JobSpec(type="echo")
    call = asyncio.ensure_future(
        desk.stub.Enqueue(pb.EnqueueRequest(job=spec, wait={"seconds": 20}), timeout=25)
    )
    async with asyncio.timeout(10):
        while not (page := await desk.stub.ListJobs(pb.ListJobsRequest())).jobs:
            pass
    await desk.run(page.jobs[0], payload_pb2.Payload(data=b"done"))
    job = (await call).job
    assert (job.state, job.output.data) == (SUCCEEDED, b"done")


# --- schedules and the rest of the contract


async def test_a_schedule_by_interval_is_made_and_listed(desk):
    schedule = {
        "name": "often",
        "template": {"type": "echo"},
        "recurrences": [{"interval": {"every": {"seconds": 5}}}],
    }
    made = await desk.stub.CreateSchedule(pb.CreateScheduleRequest(schedule=schedule))
    assert made.schedule.next_time.seconds % 5 == 0
    page = await desk.stub.ListSchedules(pb.ListSchedulesRequest())
    assert [found.name for found in page.schedules] == ["often"]
    schedule["recurrences"] = [{"interval": {"every": {}}}]
    with pytest.raises(InvalidField, match="every"):
        await desk.stub.CreateSchedule(pb.CreateScheduleRequest(schedule=schedule))


async def test_an_orchestrator_that_vanishes_in_mid_call_leaves_the_outcome_unknown(desk):
    desk.mesh.process.stop("test: gone")
    spec = job_pb2.JobSpec(type="echo")
    seen = set()
    async with asyncio.timeout(20):
        while "DEPENDENCY_UNAVAILABLE" not in seen:
            try:
                await desk.stub.Enqueue(pb.EnqueueRequest(job=spec))
            except MeshError as error:
                seen.add(error.reason)
    # Refused while it drains, broken off, or not reachable at all: each is told as what it is.
    assert seen <= {"DEPENDENCY_UNAVAILABLE", "OUTCOME_UNKNOWN", "DRAINING"}
