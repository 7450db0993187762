"""Jobs and schedules that the Orchestrator stores and finds, over real shards, NATS and etcd."""

from __future__ import annotations

import uuid

import grpc
import pytest
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField, ScheduleExists, ScheduleNotFound
from services.mesh.testing.waiting import eventually
from tests.integration.orchestrator_rig import (
    claim,
    new_job,
    report,
    reported,
)


async def test_an_unkeyed_batch_goes_to_one_shard_as_a_whole(stand):
    results = await stand.put(*(new_job() for _ in range(300)))
    assert len({result.job.shard for result in results}) == 1
    assert len({result.job.id for result in results}) == 300
    again = await stand.put(*(new_job() for _ in range(3)))
    assert again[0].job.shard != results[0].job.shard


async def test_a_stored_job_rings_the_bell_and_its_type_is_nudged_after_the_commit(stand):
    (result,) = await stand.put(new_job("render"))
    await eventually(lambda: stand.bells and stand.nudges)
    assert stand.bells == [(result.job.shard, {"", "default", "render"})]
    assert stand.hints == []
    assert stand.nudges == [("render", result.job.shard)]


async def test_a_job_for_next_week_is_not_nudged(stand):
    await stand.put(new_job(delay={"seconds": 7 * 86400}))
    await eventually(lambda: stand.bells)
    assert stand.nudges == []


async def test_the_same_key_and_content_are_the_same_job(stand):
    (first,) = await stand.put(new_job(key="k"))
    (second,) = await stand.put(new_job(key="k"))
    assert (first.existing, second.existing) == (False, True)
    assert first.job.id == second.job.id


async def test_the_same_key_with_other_content_is_a_conflict_of_that_item_only(stand):
    (first,) = await stand.put(new_job(key="k"))
    conflict, fine = await stand.put(new_job(data=b"other", key="k"), new_job())
    assert conflict.error.reason == "IDEMPOTENCY_CONFLICT"
    assert conflict.error.metadata["job_id"] == first.job.id
    assert fine.job.id


async def test_a_job_reads_back_as_it_was_submitted(stand):
    (result,) = await stand.put(
        new_job(
            priority=3,
            labels={"team": "a"},
            retry_policy={"max_attempts": 4, "initial_delay": {"seconds": 2}},
            timeouts={"run": {"seconds": 9}},
        )
    )
    job = (await stand.get(result.job.id, view=job_pb2.JOB_VIEW_FULL)).job
    assert (job.spec.type, job.spec.priority, dict(job.spec.labels)) == ("echo", 3, {"team": "a"})
    assert job.spec.input.data == b"hi"
    assert job.spec.retry_policy.max_attempts == 4
    assert job.spec.timeouts.run.seconds == 9
    assert job.state == job_pb2.JOB_STATE_SCHEDULED
    basic = (await stand.get(result.job.id)).job
    assert basic.spec.input.data == b""


async def test_a_job_of_another_namespace_is_not_found(stand):
    (result,) = await stand.put(new_job())
    missing = await stand.get(result.job.id, namespace="other")
    assert missing.error.reason == "JOB_NOT_FOUND"


async def test_an_id_nobody_made_is_refused_by_field(stand):
    with pytest.raises(InvalidField, match=r"job_ids\[0\]"):
        await stand.get(str(uuid.uuid4()))


async def test_lists_page_through_all_shards_newest_first(stand):
    made = [r.job.id for _ in range(6) for r in await stand.put(*(new_job() for _ in range(5)))]
    seen: list[str] = []
    before = ""
    while True:
        page = await stand.stub.ListJobs(
            pb.OrchestratorServiceListJobsRequest(
                namespace="default", page_size=7, before_job_id=before
            )
        )
        seen += [job.id for job in page.jobs]
        if not page.more:
            break
        before = page.jobs[-1].id
    assert seen == sorted(made, reverse=True)


async def test_puts_over_one_call_are_stored_as_by_calls_of_their_own(stand):
    call = stand.stub.PutJobsStream()
    assert await call.read() == pb.PutJobsStreamResponse(), "it is open"
    for number, key in enumerate(("one", "two", "one"), start=1):
        put = pb.PutJobsRequest(jobs=[new_job(key=key)])
        await call.write(pb.PutJobsStreamRequest(put_id=number, put=put))
    answers = [await call.read() for _ in range(3)]
    by_number = {answer.put_id: answer.answer.results[0] for answer in answers}
    assert by_number[1].job.id == by_number[3].job.id != by_number[2].job.id
    assert by_number[1].existing != by_number[3].existing
    assert (await stand.get(by_number[2].job.id)).job.id == by_number[2].job.id
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_an_orchestrator_that_drains_says_so_on_the_line_and_waits_for_its_end(stand):
    call = stand.stub.PutJobsStream()
    await call.read()
    stand.process.stop("drain")
    assert (await call.read()).draining
    await call.write(pb.PutJobsStreamRequest(put_id=1, put=pb.PutJobsRequest(jobs=[new_job()])))
    assert (await call.read()).answer.results[0].job.id
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_events_are_read_after_a_version(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    await reported(stand, done)
    cursor = pb.EventCursor(job_id=result.job.id, after_version=1)
    events = (await stand.stub.ListEvents(pb.ListEventsRequest(cursors=[cursor]))).events
    assert [event.version for event in events] == [2, 3, 4]
    assert events[-1].state == job_pb2.JOB_STATE_SUCCEEDED


async def test_schedules_are_created_found_paused_and_deleted(stand):
    schedule = {
        "name": "nightly",
        "template": {"type": "echo"},
        "recurrences": [{"interval": {"every": {"seconds": 60}}}],
    }
    put = pb.PutScheduleRequest(namespace="default", schedule=schedule)
    made = (await stand.stub.PutSchedule(put)).schedule
    assert made.next_time.seconds % 60 == 0
    assert (await stand.stub.PutSchedule(put)).schedule.create_time == made.create_time
    schedule["template"]["priority"] = 3
    with pytest.raises(ScheduleExists):
        await stand.stub.PutSchedule(pb.PutScheduleRequest(namespace="default", schedule=schedule))
    paused = await stand.stub.PauseSchedule(
        pb.OrchestratorServicePauseScheduleRequest(
            namespace="default", name="nightly", paused=True, note="holidays"
        )
    )
    assert (paused.schedule.paused, paused.schedule.pause_note) == (True, "holidays")
    page = await stand.stub.ListSchedules(
        pb.OrchestratorServiceListSchedulesRequest(namespace="default", page_size=10)
    )
    assert [found.name for found in page.schedules] == ["nightly"]
    name = {"namespace": "default", "name": "nightly"}
    await stand.stub.DeleteSchedule(pb.OrchestratorServiceDeleteScheduleRequest(**name))
    with pytest.raises(ScheduleNotFound):
        await stand.stub.GetSchedule(pb.OrchestratorServiceGetScheduleRequest(**name))
