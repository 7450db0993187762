"""What is lost is found, what died is replaced, and what is away stops nobody else."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import pytest

from services.mesh.bus import Message
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.recurrence import Interval
from services.mesh.jobs.reports import Started
from services.mesh.jobs.schedules import Definition, JobTemplate, NewSchedule
from services.mesh.jobs.states import Cause, JobState
from services.mesh.lease.etcd import EtcdRegistry
from services.mesh.lease.keys import Keys
from services.mesh.runtime import Process
from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.scheduler_rig import (
    Rig,
    Servers,
    Wire,
    at_port,
    errors_in,
    eventually,
    open_rig,
    port_of,
    until,
)


@pytest.fixture
async def rig(
    shard_dsns: list[str],
    nats_url: str,
    etcd_endpoint: str,
    unique_prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Rig]:
    dsns = {f"s{index}": dsn for index, dsn in enumerate(shard_dsns)}
    async with open_rig(Servers(dsns, nats_url, etcd_endpoint, unique_prefix)) as opened:
        yield opened
    assert errors_in(caplog) == [], "a scheduler logs an error only for a defect"


async def causes(rig: Rig, shard: str, job_id: object) -> list[Cause]:
    events = await rig.stores[shard].events_after([(job_id, 0)])  # type: ignore[list-item]
    return [event.cause for event in events]


# --- sweep


async def test_a_lost_dispatch_is_swept_and_sent_again_with_a_higher_fence(rig: Rig) -> None:
    async with (
        rig.scheduler(dispatch_seconds=0.5, tick_seconds=0.1),
        rig.worker() as worker,
    ):
        await worker.grab("t", 1)
        (job_id,) = await rig.put("s0", "t")
        await until(lambda: len(worker.received) == 1)
        # The worker never locked it: to the scheduler that looks as if it never arrived.
        await worker.grab("t", 1)
        await until(lambda: len(worker.received) == 2)
        assert [(r.fence, r.attempt) for r in worker.received] == [(1, 1), (2, 1)]
        assert await causes(rig, "s0", job_id) == [
            Cause.CREATED,
            Cause.CLAIMED,
            Cause.SWEPT,
            Cause.CLAIMED,
        ]


async def test_a_dispatch_that_was_lost_with_all_room_is_posted_again_within_six_seconds(
    rig: Rig,
) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        await worker.answer_calls("t", 1)
        await worker.grab("t", 1)
        (job_id,) = await rig.put("s0", "t")
        # It does not come, as far as this worker knows: its grab is out, and it asks no more.
        await until(lambda: len(worker.received) == 2, 7)
        first, again = worker.received
        assert (first.job_id, again.job_id) == (job_id, job_id)
        assert again.when - first.when < 6


async def test_a_locked_dispatch_is_not_swept_however_long_it_waits(rig: Rig) -> None:
    async with (
        rig.scheduler(dispatch_seconds=0.3, tick_seconds=0.05) as process,
        rig.worker() as worker,
    ):
        await worker.grab("t", 2)
        locked, lost = await rig.put("s0", "t", 2)
        await until(lambda: len(worker.received) == 2)
        await worker.locks.lock({locked.bytes: 1})
        sample = {"shard": "s0", "duty": "sweep"}
        await until(lambda: process.metrics.value("jobmesh_returned_total", sample) == 1)
        rows = {row.id: row for row in await rig.stores["s0"].get_jobs([locked, lost])}
        assert rows[locked].state is JobState.DISPATCHED
        assert rows[lost].state is JobState.SCHEDULED


async def test_jobs_wait_for_the_broker_and_are_sent_once_when_it_is_back(rig: Rig) -> None:
    async with Wire.to(port_of(rig.servers.nats_url)) as wire, AsyncExitStack() as stack:
        process = await stack.enter_async_context(
            rig.scheduler(nats_url=f"nats://127.0.0.1:{wire.port}", park_seconds=60)
        )
        worker = await stack.enter_async_context(rig.worker())
        await worker.grab("t", 5)
        await until(lambda: bool(process.metrics.value("jobmesh_parked_credit", {"type": "t"})))
        wire.cut()
        await until(lambda: not process.readiness.ready, what="not ready without the broker")
        assert "nats" in process.readiness.missing()
        ids = await rig.put("s0", "t", 3)
        await process.readiness.wait_ready(10)
        await rig.nudge("s0", "t")
        await until(lambda: len(worker.received) >= 3)
        assert Counter(worker.ids()) == Counter(ids)


# --- rescue


async def test_the_jobs_of_a_lost_worker_are_rescued_and_run_elsewhere(rig: Rig) -> None:
    async with rig.scheduler(), rig.scheduler(), rig.worker() as other:
        async with rig.worker() as doomed:
            await doomed.grab("t", 9, again=True)
            for shard in rig.stores:
                await rig.put(shard, "t", 3)
            await until(lambda: len(doomed.received) == 9)
            for each in doomed.received:
                started = Started(each.job_id, each.fence, doomed.worker_id)
                await rig.stores[each.shard].report([started])
            fences = {each.job_id: each.fence for each in doomed.received}
        await other.grab("t", 9, again=True)
        await until(lambda: len(other.received) >= 9, 8)
        assert Counter(other.ids()) == Counter(fences)
        assert all(each.fence == fences[each.job_id] + 1 for each in other.received)
        assert {each.attempt for each in other.received} == {1}, "the loss cost no attempt"


async def test_a_worker_that_died_unseen_is_found_by_comparison(rig: Rig) -> None:
    (job_id,) = await rig.put("s1", "t", nudge=False)
    (claimed,) = (await rig.stores["s1"].claim("t", "w-gone", 1)).jobs
    # It runs: a dispatch that nobody started might be swept before.
    await rig.stores["s1"].report([Started(job_id, claimed.fence, "w-gone")])
    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 1, again=True)
        await until(lambda: worker.ids() == [job_id], 15)
        assert Cause.RESCUED in await causes(rig, "s1", job_id)


async def test_grabs_of_a_lost_worker_are_dropped(rig: Rig) -> None:
    async with rig.scheduler(park_seconds=60) as process, rig.worker() as other:
        async with rig.worker() as doomed:
            await doomed.grab("t", 5)
            sample = {"type": "t"}
            await until(lambda: process.metrics.value("jobmesh_parked_credit", sample) == 5)
        await until(lambda: process.metrics.value("jobmesh_parked_credit", sample) == 0)
        await other.grab("t", 1)
        (job_id,) = await rig.put("s0", "t")
        await until(lambda: other.ids() == [job_id])


# --- schedules and expiry


async def test_an_interval_schedule_makes_one_job_per_nominal_time(rig: Rig) -> None:
    import random

    every = timedelta(milliseconds=400)
    schedule = NewSchedule(
        new_job_id(7, round(time.time() * 1000), random.SystemRandom()),
        "default",
        "every-so-often",
        Definition((Interval(every),), JobTemplate("t")),
    )
    await rig.stores["s1"].put_schedule(schedule)
    quick = {"tick_seconds": 0.1, "slot_seconds": 0.5, "dispatch_seconds": 60.0}
    # Each under a prefix of its own: neither sees the other, so both keep the shard and race. The
    # worker is known under both, or one would rescue from it what the other sent.
    elsewhere = Keys(f"/{rig.servers.prefix}-apart")
    apart = {"etcd_prefix": f"/{rig.servers.prefix}-apart"}
    async with (
        rig.scheduler(**quick) as one,
        rig.scheduler(**quick, **apart) as two,
        rig.worker() as worker,
    ):
        registry = EtcdRegistry(rig.etcd)
        await registry.put(elsewhere.worker(worker.worker_id), b"", worker.lease)
        await worker.grab("t", 5, again=True)
        await until(lambda: len(worker.received) >= 6, 10)
        passes = {"loop": "times-s1", "outcome": "ok"}
        for process in (one, two):
            ran = process.metrics.value("jobmesh_loop_pass_seconds_count", passes)
            assert ran is not None
            assert ran > 10
    rows = await rig.stores["s1"].get_jobs(worker.ids())
    nominal = sorted(row.nominal_time for row in rows if row.nominal_time is not None)
    assert len(nominal) == len(set(nominal)) == len(rows), "each nominal time makes one job"
    assert set(Counter(worker.ids()).values()) == {1}, "each job is delivered once"
    steps = {later - earlier for earlier, later in pairwise(nominal)}
    assert steps == {every}


async def test_a_job_that_nobody_started_in_time_expires(rig: Rig) -> None:
    async with rig.scheduler(tick_seconds=0.1):
        soon = await rig.shard_now("s0") + timedelta(milliseconds=300)
        (job_id,) = await rig.put("s0", "t", expire_time=soon)

        async def expired() -> bool:
            (row,) = await rig.stores["s0"].get_jobs([job_id])
            return row.state is JobState.EXPIRED

        await eventually(expired, 8)


# --- shards that are away


async def test_a_frozen_shard_leaves_the_others_served_and_comes_back(rig: Rig) -> None:
    async with Wire.to(port_of(rig.servers.dsns["s1"])) as wire, AsyncExitStack() as stack:
        dsns = rig.servers.dsns | {"s1": at_port(rig.servers.dsns["s1"], wire.port)}
        process = await stack.enter_async_context(
            rig.scheduler(shard_dsns=dsns, statement_seconds=0.5)
        )
        worker = await stack.enter_async_context(rig.worker())
        await worker.grab("t", 10, again=True)
        await rig.put("s1", "t")
        await until(lambda: len(worker.received) == 1)
        wire.freeze()
        away = await rig.put("s1", "t", 3)
        sample = {"shard": "s1"}
        await until(lambda: process.metrics.value("jobmesh_shard_open", sample) == 0, 5)
        assert process.readiness.ready, "two shards are served"
        for _ in range(5):
            before = len(worker.received)
            began = time.monotonic()
            await rig.put("s0", "t")
            await rig.put("s2", "t")
            await until(lambda: len(worker.received) == before + 2, 5)  # noqa: B023
            assert time.monotonic() - began < 1
        wire.thaw()
        await until(lambda: set(away) <= set(worker.ids()), 10)


async def test_a_shard_is_served_within_three_seconds_after_a_long_absence(rig: Rig) -> None:
    async with FaultProxy(port_of(rig.servers.dsns["s1"])) as link, AsyncExitStack() as stack:
        dsns = rig.servers.dsns | {"s1": at_port(rig.servers.dsns["s1"], link.port)}
        process = await stack.enter_async_context(rig.scheduler(shard_dsns=dsns))
        worker = await stack.enter_async_context(rig.worker())
        await worker.grab("t", 10, again=True)
        sample = {"shard": "s1"}
        await until(lambda: process.metrics.value("jobmesh_shard_open", sample) == 1)
        link.become(Link.CUT)
        (job_id,) = await rig.put("s1", "t")
        await until(lambda: process.metrics.value("jobmesh_shard_open", sample) == 0)
        # Time enough for whoever doubles his pauses to be in a long one.
        later = await rig.put("s0", "t", delay=timedelta(seconds=8))
        await until(lambda: set(later) <= set(worker.ids()), 12)
        link.become(Link.PASS)
        await until(lambda: job_id in worker.ids(), 3, "the job of the shard that is back")


async def test_terminated_connections_cost_no_job(rig: Rig) -> None:
    import psycopg

    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        await rig.put("s0", "t")
        await until(lambda: len(worker.received) == 1)
        admin = await psycopg.AsyncConnection.connect(rig.servers.dsns["s0"], autocommit=True)
        async with admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'jobmesh-scheduler' AND datname = current_database()"
            )
        ids = await rig.put("s0", "t", 3)
        await until(lambda: set(ids) <= set(worker.ids()), 10)
        assert set(Counter(worker.ids()).values()) == {1}


async def test_without_etcd_due_jobs_are_still_handed_out(rig: Rig) -> None:
    async with Wire.to(port_of(rig.servers.etcd_endpoint)) as wire, AsyncExitStack() as stack:
        process = await stack.enter_async_context(
            rig.scheduler(etcd_endpoints=(f"127.0.0.1:{wire.port}",))
        )
        worker = await stack.enter_async_context(rig.worker())
        await worker.grab("t", 10, again=True)
        wire.freeze()
        await until(lambda: "etcd" in process.readiness.missing(), 10)
        (job_id,) = await rig.put("s0", "t")
        (later,) = await rig.put("s1", "t", delay=timedelta(milliseconds=1200))
        await until(lambda: set(worker.ids()) == {job_id, later})
        wire.thaw()
        await process.readiness.wait_ready(15)


# --- schedulers that die


@asynccontextmanager
async def two_schedulers(rig: Rig) -> AsyncIterator[tuple[asyncio.subprocess.Process, Process]]:
    # The rig's worker takes no locks; nothing is to be swept meanwhile.
    async with (
        rig.scheduler_process(JOBMESH_DISPATCH_SECONDS="60") as other,
        rig.scheduler(dispatch_seconds=60.0) as here,
    ):
        await rig.wait_members(2)
        yield other, here


async def test_the_shards_of_a_killed_scheduler_are_served_by_the_other(rig: Rig) -> None:
    async with rig.worker() as worker, two_schedulers(rig) as (doomed, _):
        await worker.grab("t", 20, again=True)
        for shard in rig.stores:
            await rig.put(shard, "t")
        await until(lambda: len(worker.received) == 3)
        doomed.kill()
        killed = time.monotonic()
        ids = []
        for shard in rig.stores:
            # Nobody is nudged: only the keeper of the shard finds these.
            ids += await rig.put(shard, "t", nudge=False)
            ids += await rig.put(shard, "t", nudge=False, delay=timedelta(seconds=6.5))
        regrab = asyncio.create_task(keep_grabbing(worker))
        try:
            await until(lambda: set(ids) <= set(worker.ids()), 12)
        finally:
            regrab.cancel()
        assert time.monotonic() - killed < 9
        counts = Counter(worker.ids())
        assert set(counts.values()) == {1}


async def test_a_grab_that_is_parked_with_a_frozen_scheduler_is_called_for_by_another(
    rig: Rig,
) -> None:
    async with rig.worker() as worker, rig.scheduler_process() as frozen:
        await rig.wait_members(1)
        await worker.answer_calls("t", 5)
        await worker.grab("t", 5)
        # Answered means that the grab before it was parked there, and so is this one.
        (first,) = await rig.put("s0", "t")
        await until(lambda: worker.ids() == [first])
        await worker.grab("t", 5)
        async with rig.scheduler(dispatch_seconds=60.0):
            frozen.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            (job_id,) = await rig.put("s1", "t")
            await until(lambda: job_id in worker.ids(), 4)
            assert time.monotonic() - began < 3
            assert worker.calls >= 1


async def test_nobody_is_called_for_work_that_is_served(rig: Rig) -> None:
    async with rig.scheduler() as one, rig.worker() as worker:
        await worker.answer_calls("t", 5)
        await worker.grab("t", 5, again=True)
        async with rig.scheduler() as two:
            looks = {"loop": "caller", "outcome": "ok"}

            def looked() -> float:
                name = "jobmesh_loop_pass_seconds_count"
                return sum(process.metrics.value(name, looks) or 0 for process in (one, two))

            for count in range(1, 5):
                before = looked()
                await rig.put("s0", "t")
                await until(lambda: len(worker.received) == count)  # noqa: B023
                await until(lambda: looked() > before)  # noqa: B023
            assert worker.calls == 0


async def keep_grabbing(worker: object) -> None:
    """A worker's patience: a grab parked with a scheduler that died is given up and sent anew."""
    while True:
        await worker.grab("t", 20)  # type: ignore[attr-defined]
        await asyncio.sleep(1)


async def test_a_scheduler_that_is_told_to_stop_exits_with_zero(rig: Rig) -> None:
    async with rig.scheduler_process() as process:
        await rig.wait_members(1)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert await rig.members() == []


# --- strangers on the bus


async def test_malformed_messages_are_dropped(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        answers: list[Message] = []
        inbox = await rig.bus.open_inbox(lambda token, message: answers.append(message))
        for payload in (b"\xff\xff", b"", b"\x00" * 50):
            await rig.bus.publish(rig.subjects.grab("t"), payload, reply=inbox.address("x"))
            await rig.bus.publish(rig.subjects.due("t"), payload)
        await worker.grab("t", 1)
        (job_id,) = await rig.put("s0", "t")
        await until(lambda: worker.ids() == [job_id])
        assert answers == []
