"""A dispatch becomes an attempt: locked, run, reported, unlocked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jobmesh.v1 import worker_service_pb2

from services.mesh.telemetry.tracing import configure
from services.mesh.testing.waiting import eventually
from tests.integration.worker_rig import Rig, dispatch, new_job, rigged

TYPES = ("noop", "shout", "fails", "waits", "upper", "sleeps", "exits", "raises")


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    around = rigged(
        nats_url=nats_url, etcd=etcd_endpoint, prefix=unique_prefix, spool=tmp_path, types=TYPES
    )
    async with around as made:
        yield await made.start()


async def test_a_worker_registers_and_announces_its_types(rig: Rig) -> None:
    info = await rig.info()
    assert {entry.type for entry in info.types} == set(TYPES)
    assert info.address.startswith("127.0.0.1:")
    known = {entry.key for entry in await rig.registry.entries(rig.keys.types)}
    assert known == {rig.keys.type(type_) for type_ in TYPES}


async def test_an_idle_worker_offers_its_whole_capacity_once_per_type(rig: Rig) -> None:
    for type_ in TYPES:
        await rig.scheduler.waiting(type_)
    assert len(rig.scheduler.grabs) == len(TYPES)
    credit = {parked.grab.type: parked.grab.credit for parked in rig.scheduler.grabs}
    assert (credit["noop"], credit["waits"]) == (256, 3)


async def test_a_dispatch_runs_and_its_output_is_reported(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "hello", fence=7))
    report = await rig.orchestrator.reported(job, "succeeded")
    assert json.loads(report.succeeded.output.data) == "hello!"
    assert report.dispatch_no == 7
    assert report.elapsed_us > 0
    assert rig.orchestrator.kinds(job) == ["succeeded"]


async def test_a_grab_that_brings_jobs_in_parts_stays_out_until_it_is_answered(rig: Rig) -> None:
    parked = await rig.scheduler.waiting("noop")
    jobs = [new_job() for _ in range(3)]
    for job, more in zip(jobs, (True, True, False), strict=True):
        await rig.scheduler.answer(parked, dispatch(job), more=more)
        await rig.orchestrator.reported(job, "succeeded")
    await eventually(lambda: rig.scheduler.parked["noop"] is not parked)
    grabs = [one.grab.grab_no for one in rig.scheduler.grabs if one.grab.type == "noop"]
    assert grabs == [1, 2]


async def test_a_plain_function_runs_in_an_executor(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("upper", dispatch(job, "hello"))
    report = await rig.orchestrator.reported(job, "succeeded")
    assert json.loads(report.succeeded.output.data) == "HELLO"


async def test_a_job_is_locked_while_it_runs_and_free_afterwards(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job, fence=3, timeout=0.5))
    await rig.orchestrator.reported(job, "started")
    owner = await rig.lock_of(job)
    assert owner is not None
    assert (owner.worker_id, owner.fence) == (await rig.worker_id(), 3)
    await rig.orchestrator.reported(job, "failed")
    await rig.unlocked(job)


async def test_the_lock_is_kept_until_the_verdict(rig: Rig) -> None:
    job = new_job()
    rig.orchestrator.judge = lambda report: None
    await rig.scheduler.dispatch("noop", dispatch(job))
    await rig.orchestrator.reported(job, "succeeded")
    assert await rig.lock_of(job) is not None


async def test_a_job_locked_elsewhere_is_handed_back_and_not_run(rig: Rig) -> None:
    ours, theirs = new_job(), new_job()
    await rig.registry.put(rig.keys.lock(theirs), b"w-other/4")
    await rig.scheduler.dispatch("shout", dispatch(ours, "a"), dispatch(theirs, "b"))
    report = await rig.orchestrator.reported(theirs, "handed_back")
    assert report.handed_back.reason == "lock held"
    assert report.handed_back.delay.seconds == 1
    await rig.orchestrator.reported(ours, "succeeded")
    assert (await rig.lock_of(theirs)) is not None  # the other one's lock stays
    assert rig.metric("lock_conflicts_total") == 1


async def test_an_exception_is_reported_as_a_failure(rig: Rig) -> None:
    for type_ in ("fails", "raises"):
        job = new_job()
        await rig.scheduler.dispatch(type_, dispatch(job))
        report = await rig.orchestrator.reported(job, "failed")
        assert report.failed.failure.type == "ValueError"
        assert "went wrong" in report.failed.failure.message
        assert "Traceback" in report.failed.failure.traceback


async def test_a_crashed_executor_fails_the_attempt_with_its_exit_code(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("exits", dispatch(job, 9))
    report = await rig.orchestrator.reported(job, "failed")
    assert report.failed.failure.type == "ExecutorCrashed"
    assert report.failed.failure.exit_code == 9


@pytest.mark.parametrize("type_", ["waits", "sleeps"])
async def test_an_attempt_that_runs_too_long_is_killed(rig: Rig, type_: str) -> None:
    job = new_job()
    value: object = {} if type_ == "sleeps" else None
    await rig.scheduler.dispatch(type_, dispatch(job, value, timeout=0.3))
    report = await rig.orchestrator.reported(job, "failed")
    assert report.failed.timed_out
    assert report.failed.failure.type == "RunTimeout"
    assert rig.orchestrator.kinds(job) == ["started", "failed"]


async def test_a_batch_is_reported_in_few_messages(rig: Rig) -> None:
    jobs = [new_job() for _ in range(100)]
    await rig.scheduler.dispatch("noop", *(dispatch(job) for job in jobs))
    await eventually(lambda: rig.orchestrator.endings()["succeeded"] == 100)
    assert len(rig.orchestrator.sizes) <= 3
    await rig.unlocked(*jobs)
    assert rig.metric("attempts_finished_total", type="noop", outcome="succeeded") == 100


async def test_the_same_dispatch_starts_once(rig: Rig) -> None:
    job, other = new_job(), new_job()
    parked = await rig.scheduler.dispatch("shout", dispatch(job, "a"))
    await rig.scheduler.answer(parked, dispatch(job, "a"))
    await rig.orchestrator.reported(job, "succeeded")
    await rig.scheduler.answer(parked, dispatch(job, "a"), dispatch(other, "b"))
    await rig.orchestrator.reported(other, "succeeded")
    assert rig.orchestrator.kinds(job) == ["succeeded"]


async def test_a_late_batch_runs_if_there_is_room_and_is_handed_back_if_not(rig: Rig) -> None:
    jobs = [new_job() for _ in range(4)]
    first = await rig.scheduler.dispatch("waits", dispatch(jobs[0]), dispatch(jobs[1]))
    await rig.scheduler.answer(first, dispatch(jobs[2]), dispatch(jobs[3]))
    # Whose lock came last waits a moment for room; what runs here ends much later.
    await eventually(lambda: rig.orchestrator.endings() == {"started": 3, "handed_back": 1})
    (report,) = [r for r in rig.orchestrator.reports if r.WhichOneof("report") == "handed_back"]
    assert report.handed_back.reason == "no room"


async def test_a_worker_never_offers_more_than_its_room(rig: Rig) -> None:
    jobs = [new_job() for _ in range(2)]
    await rig.scheduler.dispatch("waits", *(dispatch(job) for job in jobs))
    parked = await rig.scheduler.waiting("waits")
    assert parked.grab.credit == 1
    await rig.scheduler.dispatch("waits", dispatch(new_job()))
    for job in jobs:
        await rig.orchestrator.reported(job, "started")
    assert "waits" not in rig.scheduler.parked
    async with rig.stub() as stub:
        running = await stub.ListRunning(worker_service_pb2.ListRunningRequest())
    assert len(running.attempts) == 3


async def test_a_draining_scheduler_is_left_at_once(rig: Rig) -> None:
    parked = await rig.scheduler.waiting("noop")
    del rig.scheduler.parked["noop"]
    await rig.scheduler.answer(parked, draining=True)
    again = await rig.scheduler.waiting("noop")
    assert again.grab.grab_no == parked.grab.grab_no + 1


async def test_a_malformed_message_is_dropped(rig: Rig) -> None:
    parked = await rig.scheduler.waiting("shout")
    await rig.scheduler._bus.publish(parked.reply, b"\xff\xff nonsense")
    bad = dispatch(new_job(), "x")
    bad.job_id = b"short"
    await rig.scheduler.answer(parked, bad)
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "fine"))
    await rig.orchestrator.reported(job, "succeeded")


async def test_wait_and_run_times_are_measured(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "a"))
    await rig.orchestrator.reported(job, "succeeded")
    assert rig.metric("attempt_wait_seconds_count", type="shout") == 1
    assert rig.metric("attempt_run_seconds_count", type="shout") == 1
    assert rig.metric("worker_capacity", type="shout") == 256


async def test_a_run_belongs_to_the_trace_of_its_submission(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=("traced",),
    )
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    spans = tmp_path / "spans.jsonl"
    async with around as rig:
        await rig.start(tracing=configure("worker", "w1", file=str(spans)))
        job = new_job()
        parent = f"00-{trace_id}-{span_id}-01"
        await rig.scheduler.dispatch("traced", dispatch(job, traceparent=parent))
        report = await rig.orchestrator.reported(job, "succeeded")
    (run,) = [span for span in _spans(spans) if span["name"] == "run traced"]
    assert (run["trace_id"], run["parent_span_id"]) == (trace_id, span_id)
    inner = f"00-{trace_id}-{run['span_id']}-01"
    assert json.loads(report.succeeded.output.data) == inner  # what the handler saw
    assert report.traceparent == inner


def _spans(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_progress_travels_with_the_reports(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=("progresses",),
    )
    async with around as rig:
        await rig.start()
        job = new_job()
        await rig.scheduler.dispatch("progresses", dispatch(job))
        report = await rig.orchestrator.reported(job, "progress")
        assert report.progress.total == 4
        await rig.orchestrator.reported(job, "succeeded")
