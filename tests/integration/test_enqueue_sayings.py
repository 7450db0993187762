"""What handlers say, from a worker's report to a caller: progress, kept logs, and garbage."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb

from services.mesh.blob import output_key
from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.errors import InvalidField, JobNotFound
from services.mesh.jobs.logs import LOG_NAME, LOG_SO_FAR_NAME, LogLine, log_to_bytes
from tests.integration.enqueue_desk import Desk, desk, read  # noqa: F401

COMMITTED, STALE, INVALID = (
    orchestrator_pb.VERDICT_COMMITTED,
    orchestrator_pb.VERDICT_STALE,
    orchestrator_pb.VERDICT_INVALID,
)


async def claimed(desk: Desk, **spec):
    job = (await desk.enqueue(**spec)).job
    stored = await desk.get(job.id)
    answer = await desk.mesh.stores[stored.shard].claim("echo", "w-1", 1)
    return answer.jobs[0]


async def say(desk: Desk, claim, fence: int = 0, **report) -> int:
    call = desk.mesh.stub.ReportAttempts()
    hello = orchestrator_pb.ReportHello(worker_id="w-1")
    said = orchestrator_pb.AttemptReport(
        job_id=claim.id.bytes, dispatch_no=fence or claim.fence, **report
    )
    await call.write(orchestrator_pb.ReportAttemptsRequest(hello=hello, reports=[said]))
    async with asyncio.timeout(10):
        (verdict,) = (await call.read()).verdicts
    await call.done_writing()
    return verdict.verdict


def half(**fields) -> job_pb2.Progress:
    now = {"seconds": int(time.time())}
    return job_pb2.Progress(
        **{"done": 1, "total": 2, "message": "half", "update_time": now} | fields
    )


async def test_progress_reaches_the_watchers_who_asked_and_the_job(desk):
    claim = await claimed(desk)
    request = pb.WatchJobsRequest(job_ids=[str(claim.id)], progress=True)
    watch = desk.stub.WatchJobs(request)
    await read(watch, 1)
    assert await say(desk, claim, progress=half()) == COMMITTED
    (news,) = await read(watch, 1)
    said = news.progress
    assert (said.job_id, said.namespace, said.type) == (str(claim.id), "default", "echo")
    assert (said.attempt, said.progress.done, said.progress.message) == (1, 1, "half")
    assert news.resume_token == ""
    job = await desk.get(str(claim.id))
    assert (job.progress.done, job.progress.total, job.version) == (1, 2, 2)
    assert await say(desk, claim, fence=9, progress=half(done=2)) == STALE
    assert (await desk.get(str(claim.id))).progress.done == 1
    watch.cancel()


async def test_a_watch_by_filter_cannot_ask_for_progress(desk):
    request = pb.WatchJobsRequest(filter=job_pb2.JobFilter(types=["echo"]), progress=True)
    with pytest.raises(InvalidField, match="progress"):
        await desk.stub.WatchJobs(request).read()


async def test_a_report_that_makes_no_sense_is_refused_and_stores_nothing(desk):
    claim = await claimed(desk)
    for report in (
        {"progress": half(done=float("nan"))},
        {"progress": half(total=float("inf"))},
        {"progress": half(update_time={"seconds": 2**60})},
        {"checkpoint": {"data": {"data": b"x" * 65_537}}},
        {"checkpoint": {"data": {"object": {"key": "default/outputs/x", "size_bytes": 1}}}},
    ):
        assert await say(desk, claim, **report) == INVALID, report
    job = await desk.get(str(claim.id))
    assert (job.HasField("progress"), job.version) == (False, 2)


async def test_a_snooze_beyond_all_bounds_is_cut(desk):
    claim = await claimed(desk)
    assert await say(desk, claim, snoozed={"delay": {"seconds": 2**62}}) == COMMITTED
    job = await desk.get(str(claim.id))
    assert (job.state, job.attempt) == (job_pb2.JOB_STATE_SCHEDULED, 0)
    assert job.due_time.seconds - time.time() < 31 * 24 * 3600


async def test_kept_lines_are_read_and_go_on_after_the_last_one_received(desk, s3_settings):
    claim = await claimed(desk)
    lines = [LogLine(1, 1_000_000, "one"), LogLine(2, 2_000_000, "two")]
    await keep(s3_settings, claim.id, log_to_bytes(lines))
    assert await say(desk, claim, succeeded={}) == COMMITTED
    request = pb.WatchLogsRequest(job_id=str(claim.id))
    got = [line async for answer in desk.stub.WatchLogs(request) for line in answer.lines]
    assert [(line.attempt, line.dispatch_no, line.number, line.text) for line in got] == [
        (1, 1, 1, "one"),
        (1, 1, 2, "two"),
    ]
    assert got[1].time.seconds == 2
    request.after_dispatch_no, request.after_number = 1, 1
    rest = [line async for answer in desk.stub.WatchLogs(request) for line in answer.lines]
    assert [line.text for line in rest] == ["two"]
    await keep(s3_settings, claim.id, b"not a log")
    assert [answer async for answer in desk.stub.WatchLogs(request)] == []


async def test_of_a_dispatch_that_was_lost_what_was_kept_while_it_ran_is_read(desk, s3_settings):
    claim = await claimed(desk)
    so_far = log_to_bytes([LogLine(1, 1_000_000, "one")])
    await keep(s3_settings, claim.id, so_far, LOG_SO_FAR_NAME)
    assert await say(desk, claim, succeeded={}) == COMMITTED
    request = pb.WatchLogsRequest(job_id=str(claim.id))
    got = [line async for answer in desk.stub.WatchLogs(request) for line in answer.lines]
    assert [line.text for line in got] == ["one"]
    whole = log_to_bytes([LogLine(1, 1_000_000, "one"), LogLine(2, 2_000_000, "two")])
    await keep(s3_settings, claim.id, whole)
    got = [line async for answer in desk.stub.WatchLogs(request) for line in answer.lines]
    assert [line.text for line in got] == ["one", "two"]


async def keep(s3, job_id: UUID, data: bytes, name: str = LOG_NAME) -> None:
    connection = S3Connection(S3Settings(s3.endpoint, s3.region, s3.access_key, s3.secret_key))
    store = S3BlobStore(connection, s3.output_bucket)
    await store.put_bytes(output_key("default", job_id, 1, name), data)
    await connection.close()


async def test_the_log_of_a_job_that_is_not_there_is_not_found(desk):
    claim = await claimed(desk)
    for namespace, job_id, error in [
        ("other", str(claim.id), JobNotFound),
        ("", "0197a7b0-0000-7000-8000-000000000000", JobNotFound),
        ("", "nonsense", InvalidField),
    ]:
        request = pb.WatchLogsRequest(namespace=namespace, job_id=job_id, once=True)
        with pytest.raises(error):
            await desk.stub.WatchLogs(request).read()
    request = pb.WatchLogsRequest(job_id=str(claim.id), attempt=-1, after_number=-1)
    with pytest.raises(InvalidField):
        await desk.stub.WatchLogs(request).read()
