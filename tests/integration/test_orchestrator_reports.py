"""What workers report to the Orchestrator, and what callers cancel: the row decides."""

from __future__ import annotations

import pytest
from jobmesh.v1 import bus_pb2, job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField
from services.mesh.testing.waiting import eventually
from tests.integration.orchestrator_rig import (
    claim,
    new_job,
    report,
    reported,
    reported_in_columns,
)


async def test_a_report_commits_and_its_replay_is_committed_too(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded(output={"data": b"out"}))
    assert await reported(stand, done) == [pb.VERDICT_COMMITTED]
    assert await reported(stand, done) == [pb.VERDICT_COMMITTED]
    job = (await stand.get(result.job.id, view=job_pb2.JOB_VIEW_FULL)).job
    assert (job.state, job.output.data) == (job_pb2.JOB_STATE_SUCCEEDED, b"out")
    assert [a.outcome for a in job.attempts] == [job_pb2.ATTEMPT_OUTCOME_SUCCEEDED]


async def test_a_stale_fence_is_refused(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    stale = report(claimed.id, claimed.fence - 1, succeeded=pb.AttemptSucceeded())
    assert await reported(stand, stale) == [pb.VERDICT_STALE]
    assert (await stand.get(result.job.id)).job.state == job_pb2.JOB_STATE_DISPATCHED


async def test_a_failure_with_attempts_left_is_scheduled_again_and_nudged(stand):
    (result,) = await stand.put(
        new_job(retry_policy={"max_attempts": 2, "initial_delay": {"nanos": 10**6}})
    )
    claimed = await claim(stand, result.job)
    stand.nudges.clear()
    failure = job_pb2.Failure(type="ValueError", message="no")
    failed = report(claimed.id, claimed.fence, failed=pb.AttemptFailed(failure=failure))
    assert await reported(stand, failed) == [pb.VERDICT_COMMITTED]
    await eventually(lambda: stand.nudges)
    job = (await stand.get(result.job.id)).job
    assert (job.state, job.failure.type) == (job_pb2.JOB_STATE_SCHEDULED, "ValueError")


async def test_a_report_that_says_nothing_is_invalid(stand):
    assert await reported(stand, pb.AttemptReport(job_id=b"short", dispatch_no=1)) == [
        pb.VERDICT_INVALID
    ]


async def test_a_stream_without_hello_is_refused(stand):
    call = stand.stub.ReportAttempts()
    await call.write(pb.ReportAttemptsRequest())
    with pytest.raises(InvalidField, match="hello"):
        await call.read()


async def test_successes_in_columns_are_committed_one_by_one_under_their_fences(stand):
    done, stale, failed = [
        await claim(stand, (await stand.put(new_job()))[0].job) for _ in range(3)
    ]
    columns = pb.SucceededAttempts(
        job_ids=done.id.bytes + stale.id.bytes,
        dispatch_nos=[done.fence, stale.fence + 1],
        elapsed_us=[2_000, 0],
        outputs=[b"one", b"two"],
        content_type="text/plain",
    )
    failure = pb.AttemptFailed(failure=job_pb2.Failure(type="E", message="no", permanent=True))
    verdicts = await reported_in_columns(
        stand, columns, report(failed.id, failed.fence, failed=failure)
    )
    assert verdicts == {
        (done.id, done.fence): pb.VERDICT_COMMITTED,
        (stale.id, stale.fence + 1): pb.VERDICT_STALE,
        (failed.id, failed.fence): pb.VERDICT_COMMITTED,
    }
    request = pb.GetJobsRequest(
        job_ids=[str(one.id) for one in (done, stale)], view=job_pb2.JOB_VIEW_FULL
    )
    first, second = [r.job for r in (await stand.stub.GetJobs(request)).results]
    assert (first.state, first.output.data) == (job_pb2.JOB_STATE_SUCCEEDED, b"one")
    assert first.output.content_type == "text/plain"
    assert second.state == job_pb2.JOB_STATE_DISPATCHED
    again = await reported_in_columns(stand, columns)
    assert again[done.id, done.fence] == pb.VERDICT_COMMITTED


async def test_cancelling_a_job_in_hand_tells_its_worker(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job, "w-9")
    told: list[bus_pb2.CancelHint] = []
    await stand.bus.subscribe(
        stand.subjects.cancel("w-9"),
        lambda message: told.append(bus_pb2.CancelHint.FromString(message.payload)),
    )
    answer = await stand.stub.CancelJobs(
        pb.OrchestratorServiceCancelJobsRequest(namespace="default", job_ids=[result.job.id])
    )
    assert answer.results[0].cancelled
    assert answer.results[0].job.state == job_pb2.JOB_STATE_CANCELLED
    await eventually(lambda: told)
    assert [(a.job_id, a.dispatch_no) for a in told[0].attempts] == [
        (claimed.id.bytes, claimed.fence)
    ]
    late = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    assert await reported(stand, late, worker="w-9") == [pb.VERDICT_STALE]


async def test_cancelling_what_has_ended_says_who_won(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    await reported(stand, done)
    answer = await stand.stub.CancelJobs(
        pb.OrchestratorServiceCancelJobsRequest(namespace="default", job_ids=[result.job.id])
    )
    assert not answer.results[0].cancelled
    assert answer.results[0].job.state == job_pb2.JOB_STATE_SUCCEEDED
