"""Grabs meet due jobs: at once, in time, once, and in the right share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from services.mesh.wire.events import read_hint
from tests.integration.scheduler_rig import Rig, Servers, errors_in, open_rig, until


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


async def test_a_parked_grab_is_answered_when_a_job_comes(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        number = await worker.grab("t", 10)
        ids = await rig.put("s1", "t", 3)
        await until(lambda: len(worker.received) == 3)
        assert set(worker.ids()) == set(ids)
        assert worker.batches[0].grab_no == number
        assert {r.fence for r in worker.received} == {1}


async def test_a_grab_that_comes_after_the_job_is_answered_at_once(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        ids = await rig.put("s0", "t", 3)
        await worker.grab("t", 10)
        await until(lambda: len(worker.received) == 3)
        assert set(worker.ids()) == set(ids)


async def test_jobs_that_nobody_was_nudged_about_are_found_by_the_tick(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        for shard in rig.stores:
            await rig.put(shard, "t", nudge=False)
        await until(lambda: len(worker.received) == 3)


async def test_no_worker_gets_more_than_its_credit(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as small, rig.worker() as large:
        await small.grab("t", 2)
        await large.grab("t", 5)
        await rig.put("s0", "t", 20)
        await until(lambda: len(small.received) + len(large.received) == 7)
        assert len(small.received) == 2
        await small.grab("t", 3)
        await until(lambda: len(small.received) == 5)


async def test_a_backlog_on_all_shards_is_handed_out_completely_and_once(rig: Rig) -> None:
    async with rig.scheduler(), rig.scheduler(), rig.worker() as one, rig.worker() as two:
        for shard in rig.stores:
            await rig.put(shard, "t", 400, nudge=False)
        await one.grab("t", 50, again=True)
        await two.grab("t", 50, again=True)
        for shard in rig.stores:
            await rig.nudge(shard, "t")
        await until(lambda: len(one.received) + len(two.received) >= 1200, 20)
        counts = Counter(one.ids() + two.ids())
        assert len(counts) == 1200
        assert set(counts.values()) == {1}
        assert one.received
        assert two.received


async def test_two_schedulers_never_dispatch_a_job_twice(rig: Rig) -> None:
    async with rig.scheduler(), rig.scheduler(), rig.worker() as one, rig.worker() as two:
        await one.grab("t", 7, again=True)
        await two.grab("t", 7, again=True)

        async def submit(shard: str) -> None:
            for _ in range(20):
                await rig.put(shard, "t", 5)

        await asyncio.gather(*(submit(shard) for shard in rig.stores))
        await until(lambda: len(one.received) + len(two.received) >= 300, 20)
        counts = Counter(one.ids() + two.ids())
        assert len(counts) == 300
        assert set(counts.values()) == {1}


@pytest.mark.parametrize("milliseconds", [40, 700, 2600])
async def test_a_future_job_fires_on_time_and_not_early(rig: Rig, milliseconds: int) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        # The claim statement alone decides; the time it noted shows by which clock.
        (job_id,) = await rig.put("s2", "t", delay=timedelta(milliseconds=milliseconds))
        await until(lambda: bool(worker.received))
        (row,) = await rig.stores["s2"].get_jobs([job_id])
        assert row.dispatch_time is not None
        lateness = row.dispatch_time - row.due_time
        assert timedelta(0) <= lateness < timedelta(milliseconds=400)


async def test_a_worker_that_waits_is_sent_jobs_ahead_and_told_the_shards_clock(rig: Rig) -> None:
    async with rig.scheduler(ahead_seconds=0.5), rig.worker() as worker:
        worker.waits = True
        await worker.grab("t", 10, again=True)
        ids = await rig.put("s1", "t", 2, delay=timedelta(milliseconds=900))
        await until(lambda: len(worker.received) == 2)
        for row in await rig.stores["s1"].get_jobs(ids):
            assert row.dispatch_time is not None
            assert row.due_time - row.dispatch_time <= timedelta(milliseconds=500)
            told = [batch.now_us for batch in worker.batches if batch.dispatches]
            # From below, or the worker would start it early; and not from far below.
            shown = [round(received.when * 1e6) for received in worker.received]
            assert all(0 < now_us <= at for now_us, at in zip(told, shown, strict=False))
            assert all(now_us >= row.dispatch_time.timestamp() * 1e6 - 100_000 for now_us in told)


async def test_a_future_job_fires_on_time_while_others_are_due_now(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 500, again=True)
        later = await rig.put("s0", "t", 5, delay=timedelta(milliseconds=300))
        for _ in range(30):
            await rig.put("s0", "t", 2)
        await until(lambda: set(later) <= set(worker.ids()))
        rows = await rig.stores["s0"].get_jobs(later)
        for row in rows:
            assert row.dispatch_time is not None
            assert timedelta(0) <= row.dispatch_time - row.due_time < timedelta(milliseconds=500)


async def test_a_job_that_only_another_scheduler_has_credit_for_fires_on_time(rig: Rig) -> None:
    """Timers run at the shard's keeper; the credit is parked at one scheduler only."""
    async with rig.scheduler(), rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 10, again=True)
        ids = [
            job_id
            for shard in rig.stores
            for job_id in await rig.put(shard, "t", delay=timedelta(milliseconds=1500))
        ]
        await until(lambda: set(worker.ids()) == set(ids))
        for shard, store in rig.stores.items():
            for row in await store.get_jobs([i for i in ids if rig.placed[i] == shard]):
                assert row.dispatch_time is not None
                lateness = row.dispatch_time - row.due_time
                # Far less than the tick that would find it otherwise.
                assert timedelta(0) <= lateness < timedelta(seconds=1)


async def test_higher_priority_is_handed_out_first(rig: Rig) -> None:
    async with rig.scheduler(), rig.worker() as worker:
        low = await rig.put("s0", "t", 3, nudge=False, priority=0)
        high = await rig.put("s0", "t", 3, nudge=False, priority=9)
        await rig.nudge("s0", "t")
        await worker.grab("t", 3)
        await until(lambda: len(worker.received) == 3)
        assert set(worker.ids()) == set(high)
        await worker.grab("t", 3)
        await until(lambda: len(worker.received) == 6)
        assert set(worker.ids()[3:]) == set(low)


async def test_a_backlog_of_one_namespace_does_not_hold_up_the_others(rig: Rig) -> None:
    async with rig.scheduler(), rig.scheduler(), rig.worker() as worker:
        await rig.put("s0", "t", 2000, nudge=False)
        late = [
            job_id
            for name in ("a", "other", "z")
            for job_id in await rig.put("s0", "t", 2, namespace=name, nudge=False)
        ]
        await worker.grab("t", 10, again=True)
        await rig.nudge("s0", "t")
        await until(lambda: set(late) <= set(worker.ids()), 30)
        assert max(map(worker.ids().index, late)) < 500, "they did not wait for the backlog"
        worker.regrab["t"] = 500
        await until(lambda: len(set(worker.ids())) == 2006, 30, "those of the backlog")


async def test_heavy_jobs_go_out_in_messages_that_the_broker_takes(rig: Rig) -> None:
    async with rig.scheduler(message_bytes=100_000), rig.worker() as worker:
        ids = await rig.put("s0", "t", 40, size=10_000)
        await worker.grab("t", 40, again=True)
        await until(lambda: len(worker.received) >= 40)
        assert set(worker.ids()) == set(ids)
        assert all(batch.ByteSize() <= 100_000 for batch in worker.batches)


async def test_a_grab_that_was_taken_back_is_sent_nothing_whoever_has_it(rig: Rig) -> None:
    async with rig.scheduler(), rig.scheduler(), rig.worker() as gone, rig.worker() as here:
        types = [f"t{n}" for n in range(8)]  # by chance, some at either scheduler
        for type_ in types:
            await gone.grab(type_, 5)
        for type_ in types:
            await gone.withdraw(type_)
            await here.grab(type_, 1)
        for type_ in types:
            await rig.put("s0", type_)
        await until(lambda: len(here.received) == len(types))
        assert gone.received == []


async def test_a_grab_that_waited_too_long_is_answered_empty(rig: Rig) -> None:
    async with rig.scheduler(park_seconds=0.2), rig.worker() as worker:
        number = await worker.grab("t", 1)
        await until(lambda: bool(worker.batches))
        assert worker.batches[0].grab_no == number
        assert not worker.batches[0].dispatches
        assert not worker.batches[0].draining


async def test_a_draining_scheduler_sends_parked_grabs_elsewhere(rig: Rig) -> None:
    async with rig.worker() as worker:
        async with rig.scheduler():
            await worker.grab("t", 1)
            # When the broker knows of this, it has sent the grab, which may still be on its way.
            await rig.bus.subscribe("anything", lambda message: None)
        await until(lambda: bool(worker.batches))
        assert worker.batches[0].draining
        await worker.grab("t", 1)
        await until(lambda: worker.no_responders == 1, what="nobody takes grabs any more")
        assert await rig.members() == []


async def test_transitions_are_published_as_hints(rig: Rig) -> None:
    from jobmesh.v1 import bus_pb2, job_pb2

    hints: list[bus_pb2.EventBatch] = []
    await rig.bus.subscribe(
        rig.subjects.all_hints, lambda m: hints.append(bus_pb2.EventBatch.FromString(m.payload))
    )
    async with rig.scheduler(), rig.worker() as worker:
        await worker.grab("t", 5)
        ids = await rig.put("s1", "t", 2)
        await until(lambda: bool(hints))
        assert hints[0].shard == "s1"
        events = read_hint(hints[0].SerializeToString(), {i.bytes: str(i) for i in ids})
        assert {event.job_id for event in events} == {str(i) for i in ids}
        assert {event.state for event in events} == {job_pb2.JOB_STATE_DISPATCHED}
        assert {event.version for event in events} == {2}
