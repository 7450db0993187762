"""Due times that come close, schedules that are new, backlogs that leave live work its share."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from jobmesh.v1 import bus_pb2

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.recurrence import Interval
from services.mesh.jobs.schedules import Definition, JobTemplate, NewSchedule
from services.mesh.wire.values import micros_of
from tests.integration.scheduler_rig import (
    Rig,
    RigWorker,
    Servers,
    errors_in,
    eventually,
    open_rig,
    until,
)

SECOND = timedelta(seconds=1)
#: So rarely that only a nudge makes a job of the next seconds start in time.
RARELY = {"tick_seconds": 30.0, "slot_seconds": 60.0}


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


async def lateness(rig: Rig, shard: str, ids: list[UUID]) -> list[timedelta]:
    rows = await rig.stores[shard].get_jobs(ids)
    return [row.dispatch_time - row.due_time for row in rows if row.dispatch_time is not None]


def age(rig: Rig, shard: str, span: timedelta) -> None:
    """Make all waiting jobs of a shard due for longer."""
    with psycopg.connect(rig.servers.dsns[shard], autocommit=True) as connection:
        for table in ("jobs", "queue"):
            connection.execute(f"UPDATE {table} SET due_time = due_time - %s", [span])


# --- into a slot that was read already


async def test_a_job_of_a_slot_that_was_read_already_is_on_time_by_its_nudge(rig: Rig) -> None:
    async with rig.scheduler(**RARELY), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        later = await rig.put("s0", "t", delay=0.4 * SECOND)
        past = await rig.put("s0", "t", delay=-5 * SECOND)
        await until(lambda: set(worker.ids()) == {*later, *past})
        assert worker.ids() == [*past, *later]
        (late,) = await lateness(rig, "s0", later)
        assert timedelta(0) <= late < 5 * SECOND


async def test_jobs_of_many_due_times_are_found_when_the_nudge_names_only_the_first(
    rig: Rig,
) -> None:
    async with rig.scheduler(**RARELY), rig.worker() as worker:
        await worker.grab("t", 50, again=True)
        ids = []
        for n in range(10):
            ids += await rig.put("s0", "t", delay=(0.3 + n / 5) * SECOND, nudge=False)
        (first,) = await rig.stores["s0"].get_jobs(ids[:1])
        due = micros_of(first.due_time)
        nudge = bus_pb2.Nudge(shard="s0", due_time_us=due, more=True)
        await rig.bus.publish(rig.subjects.due("t"), nudge.SerializeToString())
        await until(lambda: len(worker.received) == 10)
        assert worker.ids() == ids
        assert all(timedelta(0) <= late < 5 * SECOND for late in await lateness(rig, "s0", ids))


async def test_a_job_on_the_edge_of_two_slots_is_neither_missed_nor_doubled(rig: Rig) -> None:
    """Slots of half a second: every edge of the next two seconds has a job at it, and about it."""
    async with rig.scheduler(tick_seconds=0.25, slot_seconds=0.5), rig.worker() as worker:
        worker.waits = True
        await worker.grab("t", 100, again=True)
        ids: list[UUID] = []
        now = await rig.shard_now("s1")
        start = now.replace(microsecond=0) + SECOND
        for n in range(16):
            for off in (-1, 0, 1):
                due = start + n * timedelta(milliseconds=125) + timedelta(microseconds=off)
                ids += await rig.put("s1", "t", nudge=False, due_time=due)
        await until(lambda: len(worker.received) >= len(ids))
        assert set(Counter(worker.ids()).values()) == {1}
        assert set(worker.ids()) == set(ids)


async def test_the_first_run_of_a_new_schedule_waits_for_no_tick(rig: Rig) -> None:
    async with rig.scheduler(**RARELY), rig.worker() as worker:
        await worker.grab("t", 5, again=True)
        schedule = NewSchedule(
            new_job_id(7, round(time.time() * 1000), random.SystemRandom()),
            "default",
            "new",
            Definition((Interval(SECOND),), JobTemplate("t")),
        )
        _, record = await rig.stores["s2"].put_schedule(schedule)
        assert record is not None
        due = micros_of(record.next_time)
        nudge = bus_pb2.Nudge(shard="s2", due_time_us=due, schedule=True)
        await rig.bus.publish(rig.subjects.due("t"), nudge.SerializeToString())
        # It goes on by itself: each firing tells when the next one is.
        await until(lambda: len(worker.received) >= 3)
        rows = await rig.stores["s2"].get_jobs(worker.ids())
        nominal = sorted(row.nominal_time for row in rows if row.nominal_time is not None)
        assert nominal[0] == record.next_time
        assert nominal == [nominal[0] + n * SECOND for n in range(len(nominal))]


# --- backlogs


async def test_a_job_that_is_due_now_does_not_wait_for_a_backlog_of_its_type(rig: Rig) -> None:
    backlog = await rig.put("s0", "t", 400, nudge=False)
    age(rig, "s0", timedelta(hours=3))
    live = await rig.put("s0", "t", 5, nudge=False)
    async with rig.scheduler(claim_batch=10), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        await until(lambda: len(worker.received) == 405, 20)
        order = worker.ids()
        assert set(order) == {*backlog, *live}
        # The fourth claim of ten is theirs: behind thirty of the backlog, not behind all of it.
        assert max(order.index(job_id) for job_id in live) < 100
        old = [job_id for job_id in order if job_id not in live]
        rows = {row.id: row for row in await rig.stores["s0"].get_jobs(old)}
        due = [rows[job_id].due_time for job_id in old]
        assert due == sorted(due), "the backlog itself goes in its order"


async def test_more_of_a_high_priority_than_can_run_leaves_low_ones_a_share(rig: Rig) -> None:
    await rig.put("s0", "t", 600, nudge=False, priority=9)
    low = await rig.put("s0", "t", 5, nudge=False, priority=1)
    lowest = await rig.put("s0", "t", 5, nudge=False)
    async with rig.scheduler(claim_batch=5), rig.worker() as worker:
        await worker.grab("t", 5, again=True)
        await until(lambda: len(worker.received) == 610, 30)
        order = worker.ids()
        # Every eighth claim of five begins below the nines, and then below what that one brought.
        assert max(order.index(job_id) for job_id in low) < 100
        assert max(order.index(job_id) for job_id in lowest) < 200


async def test_a_type_with_a_backlog_leaves_the_others_their_share(rig: Rig) -> None:
    await rig.put("s0", "old", 3000, nudge=False)
    age(rig, "s0", timedelta(hours=3))
    async with rig.scheduler(claim_batch=20), rig.worker() as busy, rig.worker() as live:
        await busy.grab("old", 20, again=True)
        await live.grab("live", 5, again=True)
        await until(lambda: len(busy.received) > 100)
        ids = []
        for n in range(10):
            ids += await rig.put("s0", "live")
            await until(lambda n=n: len(live.received) == n + 1)
            assert len(busy.received) < 3000, "the backlog was gone before the live jobs were"
        worst = max(await lateness(rig, "s0", ids))
        print(f"worst start of a live job beside a backlog: {worst / SECOND * 1000:.0f} ms")
        assert worst < 2 * SECOND


# --- a scheduler that was away


async def test_a_scheduler_that_wakes_after_its_lease_ended_starts_nothing_twice(rig: Rig) -> None:
    # The rig's worker takes no locks; nothing is to be swept meanwhile.
    other = {"JOBMESH_LEASE_SECONDS": "2", "JOBMESH_DISPATCH_SECONDS": "60"}
    async with rig.worker() as worker, rig.scheduler_process(**other) as sleeper:
        await rig.wait_members(1)
        async with rig.scheduler(lease_seconds=2, dispatch_seconds=60.0):
            await rig.wait_members(2)
            due: datetime = await rig.shard_now("s0") + 2 * SECOND
            ids = []
            for shard in rig.stores:
                ids += await rig.put(shard, "t", 5, due_time=due)
            for _ in range(6):  # both schedulers hold some of its credit
                await worker.grab("t", 30)
            # Nobody has to have read the slot: the nudge set timers in whoever keeps each shard.
            sleeper.send_signal(signal.SIGSTOP)
            try:

                async def gone() -> bool:
                    return len(await rig.members()) == 1

                await eventually(gone, 20)
                await grabbed(worker, ids)
            finally:
                sleeper.send_signal(signal.SIGCONT)
            await rig.wait_members(2)
            # Awake, it has fired its timers, with credit of before, and joined anew.
            more = [i for shard in rig.stores for i in await rig.put(shard, "t", 2)]
            await grabbed(worker, more)
            assert set(Counter(worker.ids()).values()) == {1}
            for shard, store in rig.stores.items():
                rows = await store.get_jobs([i for i in ids if rig.placed[i] == shard])
                assert {row.fence for row in rows} == {1}


async def grabbed(worker: RigWorker, ids: list[UUID]) -> None:
    """Grab until all these have come: half of the grabs go to one that sleeps, and are lost."""
    async with asyncio.timeout(30):
        while not set(ids) <= set(worker.ids()):
            await worker.grab("t", 30)
            await asyncio.sleep(0.2)
