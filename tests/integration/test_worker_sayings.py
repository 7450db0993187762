"""What handlers say, through a real worker: reports, live streams, the object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import grpc.aio
import psutil
import pytest
from jobmesh.v1 import payload_pb2
from jobmesh.v1 import worker_service_pb2 as pb
from localmesh.providers import S3Settings as Store

from services.mesh.blob import output_key
from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.errors import AttemptNotFound, InvalidField, NotFound
from services.mesh.jobs.logs import LOG_NAME, LOG_SO_FAR_NAME, log_from_bytes
from services.mesh.testing.waiting import eventually
from tests.integration.worker_rig import Rig, dispatch, new_job, rigged

TYPES = ("prints", "silent", "signs", "snoozes", "talks")


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, s3_settings: Store, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=TYPES,
        s3=s3_settings,
        log_seconds=0.05,
    ) as made:
        yield await made.start()


async def kept(s3: Store, job: UUID, name: str = LOG_NAME) -> list[str]:
    settings = S3Settings(s3.endpoint, s3.region, s3.access_key, s3.secret_key)
    connection = S3Connection(settings)
    try:
        store = S3BlobStore(connection, s3.output_bucket)
        data = await store.get_bytes(output_key("default", job, 1, name))
    except NotFound:
        return []
    finally:
        await connection.close()
    return [line.text for line in log_from_bytes(data)]


async def test_a_handler_is_heard_and_its_checkpoint_comes_and_goes(rig: Rig) -> None:
    job = new_job()
    stored = payload_pb2.Payload(data=b"[1]", content_type="application/json")
    await rig.scheduler.dispatch("talks", dispatch(job, checkpoint=stored))
    ending = await rig.orchestrator.reported(job, "succeeded")
    assert ending.succeeded.output.data == b"[1]"
    reports = rig.orchestrator.of(job)
    said = [report.progress.done for report in reports if report.HasField("progress")]
    # At once, then once a second, and the last of all at the end.
    assert (said[0], said[-1]) == (1, 5000)
    assert len(said) < 10
    checkpoints = [r.checkpoint.data.data for r in reports if r.HasField("checkpoint")]
    assert checkpoints == [b'{"step":2}', b"raw", b""]


async def test_a_snooze_is_reported_as_one(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("snoozes", dispatch(job))
    report = await rig.orchestrator.reported(job, "snoozed")
    assert report.snoozed.delay.ToTimedelta().total_seconds() == 12.5
    await rig.unlocked(job)


async def test_the_process_of_a_silent_handler_is_killed(rig: Rig, tmp_path: Path) -> None:
    job, mark = new_job(), tmp_path / "started"
    silence = {"nanos": 300_000_000}
    one = dispatch(job, {"started": str(mark)}, progress_timeout=silence)
    await rig.scheduler.dispatch("silent", one)
    report = await rig.orchestrator.reported(job, "failed")
    assert (report.failed.failure.type, report.failed.timed_out) == ("ProgressTimeout", True)
    assert not psutil.pid_exists(int(mark.read_text()))


async def test_signs_of_life_from_a_process_keep_it_running(rig: Rig) -> None:
    job = new_job()
    one = dispatch(job, 1.5, progress_timeout={"seconds": 1}, total_left={"seconds": 60})
    await rig.scheduler.dispatch("signs", one)
    report = await rig.orchestrator.reported(job, "succeeded")
    assert report.succeeded.output.data == b'"alive"'


async def test_lines_are_streamed_live_and_kept(rig: Rig, s3_settings: Store) -> None:
    job = new_job()
    await rig.scheduler.dispatch("signs", dispatch(job, 600))
    async with rig.stub() as stub:
        await eventually(lambda: rig.orchestrator.kinds(job) == ["started"])
        watch = stub.WatchAttempt(pb.WatchAttemptRequest(job_id=str(job)))
        executor = (await stub.ListRunning(pb.ListRunningRequest())).attempts[0].executor_pid
        # What a handler's process says by itself, as C code or a program would.
        await asyncio.to_thread(Path(f"/proc/{executor}/fd/1").write_text, "from below\n")
        news = await watch.read()
        assert [(line.number, line.attempt, line.text) for line in news.lines] == [
            (1, 1, "from below")
        ]

        async def kept_so_far() -> bool:
            return await kept(s3_settings, job, LOG_SO_FAR_NAME) == ["from below"]

        await eventually(kept_so_far)  # a worker that is killed now loses nothing
        assert await kept(s3_settings, job) == []
        await stub.CancelAttempt(pb.CancelAttemptRequest(job_id=str(job)))
        async with asyncio.timeout(10):
            assert await watch.read() is grpc.aio.EOF  # it ends with the attempt
        await rig.orchestrator.reported(job, "handed_back")
        assert await kept(s3_settings, job) == ["from below"]
        assert await kept(s3_settings, job, LOG_SO_FAR_NAME) == []
        with pytest.raises(AttemptNotFound):
            await stub.WatchAttempt(pb.WatchAttemptRequest(job_id=str(job))).read()
        with pytest.raises(InvalidField):
            await stub.WatchAttempt(pb.WatchAttemptRequest(job_id="x", after_number=-1)).read()


async def test_all_that_was_printed_is_kept_when_the_end_is_told(
    rig: Rig, s3_settings: Store
) -> None:
    job = new_job()
    await rig.scheduler.dispatch("prints", dispatch(job))
    await rig.orchestrator.reported(job, "succeeded")
    said = {"to stdout", "to stderr", "INFO to the log", "from a program"}
    assert set(await kept(s3_settings, job)) == said
