"""Executors that attach to a worker over gRPC, and what they may and may not do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc.aio import EOF
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator
from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1.enqueue_service_pb2 import LogLine
from jobmesh.v1.job_pb2 import Failure, Progress
from jobmesh.v1.payload_pb2 import ObjectRef, Payload
from localmesh.providers import S3Settings

from services.mesh.testing.waiting import eventually
from tests.integration.attach_rig import (  # noqa: F401
    SECONDS,
    Executor,
    attach,
    handed,
    rig_of_test,
)
from tests.integration.worker_rig import COMMITTED, STALE, Rig, dispatch, new_job, rigged


def types_of(info: pb.WorkerInfo) -> dict[str, int]:
    return {one.type: one.capacity for one in info.types}


# --- the way of an attempt


async def test_an_attached_executor_is_handed_attempts_and_hears_the_verdict(rig: Rig) -> None:
    async with attach(rig, "draw", credit=3) as executor:
        parked = await rig.scheduler.waiting("draw", credit=3)
        assert parked.grab.credit == 3
        known = {entry.key for entry in await rig.registry.entries(rig.keys.types)}
        assert rig.keys.type("draw") in known
        job, attempt = await handed(rig, executor, timeout=60, max_attempts=4)
        assert (attempt.type, attempt.attempt, attempt.max_attempts) == ("draw", 1, 4)
        assert (attempt.input.data, attempt.namespace) == (b'{"n": 1}', "default")
        assert attempt.run_timeout.seconds == 60
        output = Payload(data=b"[1]", content_type="application/json")
        await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded(output=output))
        assert await executor.verdict() == COMMITTED
        report = await rig.orchestrator.reported(job, "succeeded")
        assert report.succeeded.output == output
        await rig.unlocked(job)


async def test_credit_is_for_all_types_together_and_comes_back_with_each_ending(rig: Rig) -> None:
    async with attach(rig, "draw", "paint", credit=1) as executor:
        await rig.scheduler.waiting("paint")
        _, attempt = await handed(rig, executor)
        refused = new_job()
        await rig.scheduler.dispatch("paint", dispatch(refused))
        report = await rig.orchestrator.reported(refused, "handed_back")
        assert report.handed_back.reason == "no room"
        await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        await handed(rig, executor, "paint")


async def test_more_credit_is_worth_a_larger_grab_and_none_stops_them(rig: Rig) -> None:
    async with attach(rig, "draw", credit=0) as executor:
        await eventually(lambda: rig.metric("worker_executors") == 1)
        await executor.say(credit=pb.AttachCredit(credit=7))
        await rig.scheduler.waiting("draw", credit=7)

        async def announced() -> bool:
            return types_of(await rig.info()) == {"draw": 7}

        await eventually(announced)


async def test_what_an_executor_says_on_the_way_reaches_the_mesh(rig: Rig) -> None:
    async with attach(rig, "draw") as executor:
        job, attempt = await handed(rig, executor, checkpoint=Payload(data=b"at 3"))
        assert attempt.checkpoint.data == b"at 3"
        await executor.report(attempt, started=orchestrator.AttemptStarted())
        await executor.report(attempt, progress=Progress(done=1, total=4, message="sketch"))
        progress = await rig.orchestrator.reported(job, "progress")
        assert (progress.progress.done, progress.progress.message) == (1, "sketch")
        state = orchestrator.AttemptCheckpoint(data=Payload(data=b"at 7"))
        await executor.report(attempt, checkpoint=state)
        assert await executor.verdict() == COMMITTED
        stored = await rig.orchestrator.reported(job, "checkpoint")
        assert stored.checkpoint.data.data == b"at 7"
        logs = pb.AttachLog(job_id=attempt.job_id, dispatch_no=attempt.dispatch_no)
        logs.lines.append(LogLine(text="drew a cat"))
        await executor.say(logs=logs)
        async with rig.stub() as stub:
            async for news in stub.WatchAttempt(pb.WatchAttemptRequest(job_id=str(job))):
                if any(line.text == "drew a cat" for line in news.lines):
                    break


FAILED = orchestrator.AttemptFailed(
    failure=Failure(type="Smudge", message="wet", traceback="at 3", permanent=True, exit_code=4),
    retry_after=Duration(seconds=9),
)


@pytest.mark.parametrize(
    "what",
    [
        {"failed": FAILED},
        {"snoozed": orchestrator.AttemptSnoozed(delay=Duration(seconds=30))},
        {"handed_back": orchestrator.AttemptHandedBack(reason="tired", delay=Duration(seconds=2))},
    ],
)
async def test_attempts_end_as_executors_say(rig: Rig, what: dict[str, Any]) -> None:
    async with attach(rig, "draw") as executor:
        job, attempt = await handed(rig, executor)
        await executor.report(attempt, **what)
        assert await executor.verdict() == COMMITTED
        ((kind, said),) = what.items()
        report = await rig.orchestrator.reported(job, kind)
        assert getattr(report, kind) == said


# --- the end of an attempt, or of an executor


async def test_an_executor_that_goes_loses_its_attempts_at_nobodys_cost(rig: Rig) -> None:
    async with attach(rig, "draw", name="pencil") as executor:
        job, _ = await handed(rig, executor)
        executor.call.cancel()
        report = await rig.orchestrator.reported(job, "failed")
        assert report.failed.infrastructure
        assert report.failed.failure.type == "ExecutorLost"
        assert "pencil" in report.failed.failure.message
        await rig.unlocked(job)

        async def withdrawn() -> bool:
            return types_of(await rig.info()) == {}

        await eventually(withdrawn)


@pytest.mark.parametrize("why", ["it goes", "it pauses"])
async def test_a_grab_for_an_executor_that_takes_no_more_is_taken_back(rig: Rig, why: str) -> None:
    async with attach(rig, "draw", "paint", credit=2) as executor, attach(rig, "paint"):
        await rig.scheduler.waiting("draw", 2)
        await rig.scheduler.waiting("paint", 2)
        if why == "it goes":
            executor.call.cancel()
        else:
            await executor.say(credit=pb.AttachCredit(credit=0))
        await eventually(lambda: "draw" not in rig.scheduler.parked)
        # Of the other type there is an executor left.
        assert "paint" in rig.scheduler.parked
    async with attach(rig, "draw") as another:
        await handed(rig, another)


async def test_a_cancelled_attempt_is_stopped_and_its_late_word_is_stale(rig: Rig) -> None:
    async with attach(rig, "draw") as executor:
        job, attempt = await handed(rig, executor)
        await rig.scheduler.cancel(await rig.worker_id(), job)
        cancel = await executor.hear("cancel")
        assert (cancel.job_id, cancel.dispatch_no) == (str(job), 1)
        await rig.orchestrator.reported(job, "handed_back")
        assert "draw" not in rig.scheduler.parked  # it may still be at it
        await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        assert await executor.verdict() == STALE
        assert "succeeded" not in rig.orchestrator.kinds(job)
        await rig.scheduler.waiting("draw")


async def test_an_attempt_that_runs_too_long_is_stopped_and_failed(rig: Rig) -> None:
    async with attach(rig, "draw") as executor:
        job, _ = await handed(rig, executor, timeout=0.2)
        await executor.hear("cancel")
        report = await rig.orchestrator.reported(job, "failed")
        assert (report.failed.timed_out, report.failed.failure.type) == (True, "RunTimeout")


async def test_an_executor_extends_its_time_and_no_other(rig: Rig) -> None:
    async with attach(rig, "draw", credit=2) as executor:
        longer, attempt = await handed(rig, executor, timeout=0.5)
        await executor.extend(attempt, 60)
        # The same bound, begun later: when it is over, so would that of the first have been.
        shorter, _ = await handed(rig, executor, timeout=0.5)
        assert (await executor.hear("cancel")).job_id == str(shorter)
        await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        assert await executor.verdict() == COMMITTED
        await rig.orchestrator.reported(longer, "succeeded")


async def test_an_extension_counts_from_now_and_may_be_shorter(rig: Rig) -> None:
    async with attach(rig, "draw") as executor:
        job, attempt = await handed(rig, executor, timeout=600)
        await executor.extend(attempt, 0.1)
        await executor.hear("cancel")
        report = await rig.orchestrator.reported(job, "failed")
        assert report.failed.failure.type == "RunTimeout"


async def test_a_drain_lets_executors_finish_and_then_ends_their_streams(rig: Rig) -> None:
    async with attach(rig, "draw") as executor:
        job, attempt = await handed(rig, executor)
        rig.process.stop("end of the test")
        await executor.hear("drain")
        await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        assert await executor.verdict() == COMMITTED
        assert await executor.call.read() is EOF
        assert await rig.ended() == 0
        assert rig.orchestrator.kinds(job)[-1] == "succeeded"


# --- large inputs and outputs


@pytest.mark.parametrize("lie", ["", "nothing there", "another size"])
async def test_large_inputs_and_outputs_go_by_url(
    nats_url: str,
    etcd_endpoint: str,
    s3_settings: S3Settings,
    unique_prefix: str,
    tmp_path: Path,
    lie: str,
) -> None:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=(),
        app="",
        attach=True,
        s3=s3_settings,
    )
    async with around as rig:
        await rig.start()
        ref = await put_input(s3_settings, f"{unique_prefix}/input", b"abc" * 100_000)
        async with attach(rig, "draw") as executor:
            job = new_job()
            given = dispatch(job)
            given.input.object.CopyFrom(ref)
            await rig.scheduler.dispatch("draw", given)
            attempt = await executor.hear("attempt")
            data = await asyncio.to_thread(get, attempt.input_url)
            assert len(data) == 300_000
            if lie != "nothing there":
                await asyncio.to_thread(put, attempt.output_url, data.upper())
            size = 5 if lie == "another size" else len(data)
            output = Payload(object=ObjectRef(key="mine", size_bytes=size), content_type="a/b")
            await executor.report(attempt, succeeded=orchestrator.AttemptSucceeded(output=output))
            assert await executor.verdict() == COMMITTED
            (said,) = (
                one for one in rig.orchestrator.of(job) if one.WhichOneof("report") != "started"
            )
            if lie:
                wanted = {"nothing there": "OutputMissing", "another size": "OutputMismatch"}
                assert said.failed.failure.type == wanted[lie]
            else:
                stored = said.succeeded.output.object
                assert stored.key == f"default/outputs/{job}/1/output"
                assert stored.size_bytes == 300_000


async def put_input(settings: S3Settings, key: str, data: bytes) -> ObjectRef:
    from services.mesh.blob.s3 import S3BlobStore, S3Connection
    from services.mesh.blob.s3 import S3Settings as Connect

    connection = S3Connection(
        Connect(settings.endpoint, settings.region, settings.access_key, settings.secret_key)
    )
    ref = await S3BlobStore(connection, settings.input_bucket).put_bytes(key, data)
    await connection.close()
    return ObjectRef(key=ref.key, size_bytes=ref.size, sha256=ref.sha256)


def get(url: str) -> bytes:
    with urlopen(url, timeout=SECONDS) as answer:
        return bytes(answer.read())


def put(url: str, data: bytes) -> None:
    with urlopen(Request(url, data=data, method="PUT"), timeout=SECONDS) as answer:
        assert answer.status == 200
