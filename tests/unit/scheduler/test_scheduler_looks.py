"""Slow looks at everything are rare, and the slot is read all the same."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import ShardUnavailable
from services.mesh.runtime import Tasks
from services.mesh.store.answers import DueTime, Pulse
from services.scheduler.app.slots import SlotGrabber, SlotRules
from services.scheduler.domain.looks import LookRules, Looks
from services.scheduler.domain.times import micros
from tests.unit.scheduler.scheduler_fakes import Bench, job, until


def test_quick_looks_may_be_had_at_once() -> None:
    looks = Looks(LookRules())
    assert looks.may(0.0)
    looks.looked(5.0, 0.01)
    assert looks.may(5.0)


@pytest.mark.parametrize(("took", "rest"), [(0.02, 0.6), (0.2, 6.0), (2.0, 10.0)])
def test_slow_looks_take_a_small_part_of_the_time(took: float, rest: float) -> None:
    looks = Looks(LookRules())
    looks.looked(5.0, took)
    assert not looks.may(5.0 + rest - 0.001)
    assert looks.may(5.0 + rest)


def test_a_look_that_was_held_up_once_changes_nothing() -> None:
    looks = Looks(LookRules())
    looks.looked(1.0, 0.001)
    looks.looked(7.0, 5.0)
    assert looks.may(7.0)
    looks.looked(7.2, 0.1)
    assert not looks.may(10.1)
    assert looks.may(10.2)


class SlotBench(Bench):
    """The bench, with a grabber whose readings the test makes."""

    def __init__(self) -> None:
        super().__init__("s0")
        self.clock = ManualClock(datetime.now(UTC))
        self.store = self.stores["s0"]
        self.seen: list[Pulse] = []
        self.long_due: list[str] = []
        self.grabber = SlotGrabber(
            "s0", self.shards, self.board, Tasks(), self.clock, self.measures, SlotRules()
        )
        self.grabber.on_seen = self.seen.append
        self.board.on_long_due = lambda type_, _: self.long_due.append(type_)

    async def lose(self) -> None:
        """The shard goes away, and a reading notices."""
        self.store.away = True
        with pytest.raises(ShardUnavailable):
            await self.grabber.run_once()

    async def find(self) -> None:
        """It is back, and may be asked again."""
        self.store.away = False
        await until(lambda: self.shards.gate("s0").open)

    def put(self, type_: str, seconds: float) -> None:
        """Store a job that has been due for so long."""
        made = job(type_)
        made.due_time -= timedelta(seconds=seconds)
        self.store.rows.setdefault(type_, deque()).append(made)


async def test_the_slot_is_read_where_looks_are_slow() -> None:
    async with SlotBench() as bench:
        bench.store.look_takes = 0.2
        await bench.grabber.run_once()
        bench.put("t", 1)
        bench.store.due_times = [DueTime("later", datetime.now(UTC) + timedelta(seconds=1), 1)]
        await bench.grabber.run_once()
        assert (bench.store.slots_read, bench.store.deep_looks) == (2, 1)
        assert bench.grabber.waiting == 1, "the job of the slot has its timer"
        assert not bench.board.flags.types(), "nobody has looked for due types"
        bench.clock.advance(6.0)
        await bench.grabber.run_once()
        assert bench.store.deep_looks == 2
        assert set(bench.board.flags.types()) == {"t"}
        bench.grabber.forget()


async def test_what_becomes_due_while_a_reading_fails_is_read_by_the_next() -> None:
    async with SlotBench() as bench:
        bench.store.look_takes = 0.2
        await bench.grabber.run_once()
        await bench.lose()
        bench.store.due_times = [DueTime("t", datetime.now(UTC), 1)]
        await bench.find()
        await bench.grabber.run_once()
        assert bench.store.deep_looks == 1, "or it would be found without the slot"
        assert bench.grabber.waiting == 1
        bench.grabber.forget()


async def test_a_claim_that_began_while_the_slot_was_read_covers_nothing_of_it() -> None:
    async with SlotBench() as bench:
        due = datetime.now(UTC) + timedelta(seconds=1)
        bench.store.due_times = [DueTime("t", due, 1)]
        pulse = bench.store.pulse

        async def slowly(*given: Any, **named: Any) -> Pulse:
            bench.clock.advance(0.1)
            return await pulse(*given, **named)

        bench.store.pulse = slowly  # type: ignore[method-assign]
        began = bench.clock.monotonic() + 0.05
        await bench.grabber.run_once()
        bench.grabber.covered("t", due + timedelta(seconds=1), began)
        assert bench.grabber._timers.next() is not None, "it may not have seen that job"
        bench.grabber.covered("t", due + timedelta(seconds=1), bench.clock.monotonic() + 0.01)
        assert bench.grabber._timers.next() is None
        bench.grabber.forget()


async def test_timers_set_after_a_slow_reading_go_by_the_quick_ones_that_follow() -> None:
    async with SlotBench() as bench:
        pulse, slow = bench.store.pulse, 3.0

        async def slowly(*given: Any, **named: Any) -> Pulse:
            seen = await pulse(*given, **named)
            bench.clock.advance(slow)  # the answer, on its way
            return seen

        bench.store.pulse = slowly  # type: ignore[method-assign]
        await bench.grabber.run_once()
        due_us = micros(bench.seen[0].slot.now + timedelta(seconds=slow))
        bench.grabber.expect(["t"], due_us)
        local = bench.clock.monotonic()
        bench.shards.clocks["s0"].read(due_us + 1000, local, local)  # as a claim does
        await bench.grabber.fired.reached(1, timeout=slow / 2)
        bench.grabber.forget()


async def test_what_is_heard_of_before_the_first_reading_has_come_is_read() -> None:
    async with SlotBench() as bench:
        due = datetime.now(UTC) + timedelta(seconds=1)
        pulse = bench.store.pulse

        async def passed_by(*given: Any, **named: Any) -> Pulse:
            seen = await pulse(*given, **named)
            if bench.store.slots_read == 1:
                bench.store.due_times = [DueTime("t", due, 1)]
                bench.grabber.expect(["t"], micros(due))
            return seen

        bench.store.pulse = passed_by  # type: ignore[method-assign]
        await bench.grabber.run_once()
        await until(lambda: bench.grabber.waiting == 1)
        bench.grabber.forget()


async def test_after_a_long_absence_the_slot_does_not_begin_with_it() -> None:
    async with SlotBench() as bench:
        await bench.grabber.run_once()
        await bench.lose()
        bench.clock.advance(3600.0)
        await bench.find()
        await bench.grabber.run_once()
        slot, rules = bench.seen[-1].slot, SlotRules()
        assert bench.store.deep_looks == 2
        assert slot.end - slot.start == timedelta(seconds=rules.width + rules.looks.most)
        bench.grabber.forget()


async def test_where_a_look_takes_too_long_the_slot_is_read_alone() -> None:
    async with SlotBench() as bench:
        await bench.grabber.run_once()
        bench.store.too_deep = True
        bench.store.due_times = [DueTime("t", datetime.now(UTC), 1)]
        await bench.grabber.run_once()
        assert (bench.store.slots_read, bench.store.deep_looks) == (2, 2)
        assert bench.grabber.waiting == 1, "it became due while the look was under way"
        assert bench.shards.gate("s0").open, "the shard is not away"
        bench.clock.advance(9.9)
        await bench.grabber.run_once()
        assert (bench.store.slots_read, bench.store.deep_looks) == (3, 2), "not at once again"
        bench.store.too_deep = False
        bench.clock.advance(0.1)
        await bench.grabber.run_once()
        assert bench.store.deep_looks == 3
        assert [seen.deep for seen in bench.seen] == [True, False, False, True]
        bench.grabber.forget()


async def test_what_nobody_could_look_for_may_be_in_flight() -> None:
    async with SlotBench() as bench:
        bench.store.too_deep = True
        await bench.grabber.run_once()
        assert bench.seen[-1].in_flight, "or no lost worker would be looked for"
        bench.grabber.forget()


async def test_what_was_not_looked_for_is_not_wanted_and_what_is_in_flight_stays() -> None:
    async with SlotBench() as bench:
        bench.store.look_takes = 0.2
        bench.store.in_flight = bench.store.overdue = True
        await bench.grabber.run_once()
        await bench.grabber.run_once()
        assert [(seen.in_flight, seen.overdue) for seen in bench.seen] == [
            (True, True),
            (True, False),
        ]
        bench.grabber.forget()


async def test_claims_are_told_of_work_that_has_been_due_for_long() -> None:
    async with SlotBench() as bench:
        bench.put("old", 9)
        bench.put("new", 1)
        await bench.grabber.run_once()
        assert set(bench.board.flags.types()) == {"old", "new"}
        assert bench.long_due == ["old"]
        bench.grabber.forget()
