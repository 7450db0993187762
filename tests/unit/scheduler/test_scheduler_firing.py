"""What the firer hears and finds is fired soon, not only after the next look."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from services.mesh.errors import ShardBusy
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import FireAnswer
from services.orchestrator.domain import dueness
from services.scheduler.app import firing
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.firing import ScheduleFirer
from services.scheduler.domain.depth import DepthRules
from services.scheduler.domain.times import micros
from tests.unit.scheduler.scheduler_fakes import Bench, until


async def test_a_firing_that_was_given_up_is_due_again() -> None:
    async with Bench("s0") as bench:
        firer = ScheduleFirer(
            "s0",
            bench.shards,
            bench.board,
            bench.broker,
            bench.measures,
            bench.clock,
            1.5,
            lambda: None,
        )
        bench.stores["s0"].gives_up = 1
        with pytest.raises(ShardBusy):
            await firer.run_once()
        assert firer.is_due
        await firer.run_once()
        assert not firer.is_due
        firer.forget()


def firer_of(bench: Bench) -> ScheduleFirer:
    around = bench.shards, bench.board, bench.broker, bench.measures, bench.clock
    return ScheduleFirer("s0", *around, 0.0, lambda: None)


async def clock_known(bench: Bench) -> int:
    """The shard's clock is read; its now, in microseconds."""
    now = bench.clock.monotonic()
    bench.shards.clocks["s0"].read(micros(datetime.now(UTC)), now, now)
    return micros(datetime.now(UTC))


async def test_what_was_heard_of_while_a_reading_was_under_way_outlives_it() -> None:
    async with Bench("s0") as bench:
        firer, now_us = firer_of(bench), await clock_known(bench)
        asked = bench.clock.monotonic()
        firer.heard(now_us + 20_000)
        firer.seen(None, asked)  # it looked before that schedule was there
        await until(lambda: firer.is_due)
        firer.seen(None, bench.clock.monotonic())
        assert not firer.is_due, "a later reading knows better"
        firer.forget()


async def test_a_reading_that_was_overtaken_undoes_nothing() -> None:
    async with Bench("s0") as bench:
        firer, now_us = firer_of(bench), await clock_known(bench)
        slow = bench.clock.monotonic()
        firer.heard(now_us + 20_000)
        soon = datetime.fromtimestamp(now_us / 1e6 + 0.02, UTC)
        firer.seen(soon, bench.clock.monotonic())  # and has it
        firer.seen(None, slow)  # asked before it was there, answered afterwards
        await until(lambda: firer.is_due)
        firer.forget()


async def test_what_is_heard_of_while_nothing_is_fired_rings_first() -> None:
    async with Bench("s0") as bench:
        firer, now_us = firer_of(bench), await clock_known(bench)
        firer.seen(datetime.now(UTC) + timedelta(seconds=30), bench.clock.monotonic())
        fire = bench.stores["s0"].fire_due_schedules

        async def slowly(*given: Any) -> Any:
            firer.heard(now_us + 20_000)
            return await fire(*given)

        bench.stores["s0"].fire_due_schedules = slowly  # type: ignore[method-assign]
        await firer.run_once()
        await until(lambda: firer.is_due)
        firer.forget()


SLOW_US = 3_000_000


def slow_reading(bench: Bench) -> int:
    """The first reading's answer was three seconds on its way; what the clock showed."""
    clock, now_us = bench.clock.monotonic(), micros(datetime.now(UTC))
    bench.shards.clocks["s0"].read(now_us, clock - SLOW_US / 1e6, clock)
    return now_us


def quick_reading(bench: Bench, now_us: int) -> None:
    """As a claim has it."""
    local = bench.clock.monotonic()
    bench.shards.clocks["s0"].read(now_us + SLOW_US, local, local)


async def test_what_was_set_after_a_slow_reading_rings_by_the_quick_ones_that_follow() -> None:
    async with Bench("s0") as bench:
        firer, now_us = firer_of(bench), slow_reading(bench)
        rung = asyncio.Event()
        firer.alarm = Alarm(rung.set)
        firer.heard(now_us + SLOW_US)
        assert not firer.is_due
        quick_reading(bench, now_us)
        async with asyncio.timeout(SLOW_US / 2e6):
            await rung.wait()
        assert firer.is_due
        firer.forget()


async def test_a_schedule_that_is_not_looked_at_ahead_rings_at_its_time_by_quick_readings() -> None:
    async with Bench("s0") as bench:
        around = bench.shards, bench.board, bench.broker, bench.measures, bench.clock
        firer, now_us = ScheduleFirer("s0", *around, 4.0, lambda: None), slow_reading(bench)
        firer.heard(now_us + SLOW_US + 500_000)
        await firer.run_once()  # within the time ahead, and nothing moved
        quick_reading(bench, now_us)
        assert not firer.is_due, "half a second is left"
        local = bench.shards.clocks["s0"].local(now_us + SLOW_US + 500_000)
        assert firer._ring_at == pytest.approx(local, abs=0.001)
        firer.forget()


async def test_a_firing_that_goes_on_is_due_whatever_the_clock_shows() -> None:
    async with Bench("s0") as bench:
        firer, now_us = firer_of(bench), slow_reading(bench)
        firer.heard(now_us + 60_000_000)
        bench.stores["s0"].gives_up = 1
        with pytest.raises(ShardBusy):
            await firer.run_once()
        quick_reading(bench, now_us)
        assert firer.is_due
        firer.forget()


def run_of(late: float) -> JobEvent:
    """The first event of a run that was made so many seconds after its time."""
    now = datetime.now(UTC)
    due = now - timedelta(seconds=late)
    made = (uuid4(), 1, JobState.SCHEDULED, Cause.CREATED, now, 0, 0, None, due, None, None)
    return JobEvent(*made, namespace="n", type="t")


@pytest.mark.parametrize(
    ("late", "took", "long"),
    [(0.1, 0.0, False), (0.6, 0.0, True), (30.0, 0.0, True), (0.1, 0.5, True), (-0.1, 0.6, True)],
)
async def test_runs_that_are_seen_long_after_their_time_are_said_to_be_long_due(
    monkeypatch: pytest.MonkeyPatch, late: float, took: float, long: bool
) -> None:
    async with Bench("s0") as bench:
        told: list[str] = []
        bench.board.on_long_due = lambda type_, _: told.append(type_)
        began = bench.clock.monotonic()
        monkeypatch.setattr(bench.clock, "monotonic", lambda: began)

        async def fired(*_: Any) -> FireAnswer:
            monkeypatch.setattr(bench.clock, "monotonic", lambda: began + took)
            return FireAnswer([run_of(late)], fired=1, missed=0, moved=1)

        bench.stores["s0"].fire_due_schedules = fired  # type: ignore[method-assign]
        await firer_of(bench).run_once()
        assert bench.board.flags.is_raised("t", "s0")
        assert (told == ["t"]) == long


def test_what_is_not_said_to_be_long_due_claims_look_back_for() -> None:
    margin = timedelta(seconds=DepthRules().margin)
    assert max(firing.LONG, dueness.LONG) < margin
