"""Reports survive broken streams; the row's verdicts are obeyed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.testing.waiting import eventually
from tests.integration.worker_rig import COMMITTED, RETRY, STALE, Rig, dispatch, new_job, rigged

TYPES = ("noop", "shout", "waits", "sleeps")


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    around = rigged(
        nats_url=nats_url, etcd=etcd_endpoint, prefix=unique_prefix, spool=tmp_path, types=TYPES
    )
    async with around as made:
        yield await made.start()


@pytest.mark.parametrize("politely", [True, False])
async def test_unanswered_reports_are_told_again_on_a_new_stream(rig: Rig, politely: bool) -> None:
    rig.orchestrator.judge = lambda report: None
    jobs = [new_job() for _ in range(20)]
    await rig.scheduler.dispatch("noop", *map(dispatch, jobs))
    await eventually(lambda: len(rig.orchestrator.reports) == 20)
    rig.orchestrator.judge = lambda report: COMMITTED
    rig.orchestrator.break_streams(politely=politely)
    await rig.unlocked(*jobs)
    assert Counter(map(len, map(rig.orchestrator.of, jobs))) == {2: 20}
    assert len(set(rig.orchestrator.workers)) == 1


async def test_reports_wait_for_an_orchestrator_that_is_away(rig: Rig) -> None:
    await rig.orchestrator.stop()
    await eventually(lambda: not rig.process.readiness.ready)
    jobs = [new_job() for _ in range(5)]
    await rig.scheduler.dispatch("noop", *map(dispatch, jobs))
    await eventually(lambda: rig.metric("worker_unsettled") == 5)
    await rig.orchestrator.start()
    await rig.unlocked(*jobs)
    assert rig.orchestrator.endings()["succeeded"] == 5
    await rig.process.readiness.wait_ready(10)


async def test_a_report_is_repeated_until_the_shard_is_back(rig: Rig) -> None:
    job, verdicts = new_job(), iter([RETRY, RETRY, COMMITTED])
    rig.orchestrator.judge = lambda report: next(verdicts)
    await rig.scheduler.dispatch("noop", dispatch(job))
    await eventually(lambda: rig.orchestrator.kinds(job) == ["succeeded"] * 3)
    await rig.unlocked(job)


async def test_a_stale_result_is_counted_and_forgotten(rig: Rig) -> None:
    job = new_job()
    rig.orchestrator.judge = lambda report: STALE
    await rig.scheduler.dispatch("noop", dispatch(job))
    await eventually(lambda: rig.metric("fenced_total", type="noop") == 1)
    await rig.unlocked(job)
    assert rig.metric("worker_unsettled") == 0


@pytest.mark.parametrize("type_", ["waits", "sleeps"])
async def test_a_stale_start_stops_the_attempt(rig: Rig, type_: str) -> None:
    job = new_job()
    rig.orchestrator.judge = _stale_starts
    await rig.scheduler.dispatch(type_, dispatch(job, {} if type_ == "sleeps" else None))
    await rig.orchestrator.reported(job, "started")
    await rig.unlocked(job)
    assert rig.orchestrator.kinds(job) == ["started"]
    assert rig.metric("worker_in_hand", type=type_) == 0


@pytest.mark.parametrize("type_", ["waits", "sleeps"])
async def test_a_cancel_hint_stops_the_attempt_and_the_row_is_asked(rig: Rig, type_: str) -> None:
    job = new_job()
    await rig.scheduler.dispatch(type_, dispatch(job, {} if type_ == "sleeps" else None, fence=2))
    await rig.orchestrator.reported(job, "started")
    rig.orchestrator.judge = lambda report: STALE
    await rig.scheduler.cancel(await rig.worker_id(), job, fence=1)  # an older one: not this
    await rig.scheduler.cancel(await rig.worker_id(), job, fence=2)
    report = await rig.orchestrator.reported(job, "handed_back")
    assert report.handed_back.reason == "cancelled"
    await rig.unlocked(job)


async def test_a_newer_dispatch_of_a_running_job_supersedes_it(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job, fence=1))
    await rig.orchestrator.reported(job, "started")
    await rig.scheduler.dispatch("waits", dispatch(job, fence=2))
    report = await rig.orchestrator.reported(job, "handed_back")
    assert report.dispatch_no == 2
    await eventually(lambda: rig.metric("worker_in_hand", type="waits") == 0)
    await rig.scheduler.dispatch("waits", dispatch(job, fence=3))
    await eventually(lambda: _fences(rig, job)[-1:] == [3])


async def test_too_many_unsettled_attempts_end_the_grabbing(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=("noop",),
        max_unsettled=10,
    )
    async with around as rig:
        await rig.start()
        rig.orchestrator.judge = lambda report: None
        parked = await rig.scheduler.waiting("noop")
        assert parked.grab.credit == 10
        await rig.scheduler.dispatch("noop", *(dispatch(new_job()) for _ in range(10)))
        await eventually(lambda: rig.metric("worker_unsettled") == 10)
        for _ in range(2):
            # A grab may have gone out while they ran; answered, it must be the last one.
            if (open_grab := rig.scheduler.parked.pop("noop", None)) is not None:
                await rig.scheduler.answer(open_grab)
            job = new_job()
            await rig.scheduler.answer(parked, dispatch(job))
            report = await rig.orchestrator.reported(job, "handed_back")
            assert report.handed_back.reason == "no room"
        assert len(rig.scheduler.grabs) <= 2
        rig.orchestrator.judge = lambda report: COMMITTED
        rig.orchestrator.break_streams()
        assert (await rig.scheduler.waiting("noop", 10)).grab.credit == 10


async def test_large_outputs_are_spread_over_messages(rig: Rig) -> None:
    job_count, size = 300, 15_000
    jobs = [new_job() for _ in range(job_count)]
    text = "x" * size
    for start in range(0, job_count, 50):  # the broker's messages are bounded as well
        part = jobs[start : start + 50]
        await rig.scheduler.dispatch("shout", *(dispatch(job, text) for job in part))
    await eventually(lambda: rig.orchestrator.endings()["succeeded"] == job_count)
    await rig.unlocked(*jobs)


def _stale_starts(report: pb.AttemptReport) -> pb.Verdict.ValueType:
    return STALE if report.HasField("started") else COMMITTED


def _fences(rig: Rig, job: UUID) -> list[int]:
    return [report.dispatch_no for report in rig.orchestrator.of(job)]
