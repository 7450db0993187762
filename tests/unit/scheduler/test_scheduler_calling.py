"""Workers are called when work stays undone for want of room, and only then."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from itertools import pairwise

import pytest

from services.mesh.clock import ManualClock
from services.scheduler.app.calling import Caller
from services.scheduler.domain.calls import LONGEST_SECONDS, CallPlan
from services.scheduler.domain.word import Word
from tests.unit.scheduler.scheduler_fakes import Bench, job


class CallBench(Bench):
    """The bench, with a caller whose passes the test makes."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.clock = ManualClock()
        self.caller = Caller(self.board, self.shards, self.broker, self.clock, self.measures)
        self.told = 0
        self.board.on_unserved = self.unserved

    def unserved(self, type_: str) -> None:
        self.told += 1

    def put(self, shard: str, type_: str, seconds: float) -> None:
        """Store a job that has been due for so long, and let it be heard of."""
        made = job(type_)
        made.due_time -= timedelta(seconds=seconds)
        self.stores[shard].rows.setdefault(type_, deque()).append(made)
        self.board.heard(Word(shard, [type_]))


async def test_work_that_stays_due_without_credit_is_called_for() -> None:
    async with CallBench("s0", "s1") as bench:
        bench.put("s0", "t", 5)
        assert bench.told == 1
        assert await bench.caller.run_once() == {"called": 1}
        assert bench.broker.calls == ["t"]
        assert bench.stores["s1"].slots_read == 0, "nobody said anything about that shard"
        await bench.caller.stop()


async def test_work_that_became_due_just_now_is_left_to_whoever_has_credit() -> None:
    async with CallBench("s0") as bench:
        bench.put("s0", "t", 0)
        await bench.caller.run_once()
        assert bench.broker.calls == []
        await bench.caller.stop()


async def test_what_others_have_served_is_looked_at_once() -> None:
    async with CallBench("s0") as bench:
        bench.board.heard(Word("s0", ["t"]))
        for _ in range(3):
            await bench.caller.run_once()
        assert bench.stores["s0"].slots_read == 1
        bench.board.heard(Word("s0", ["t"]))
        await bench.caller.run_once()
        assert bench.stores["s0"].slots_read == 2
        assert bench.broker.calls == []
        await bench.caller.stop()


async def test_where_looks_are_slow_there_are_few() -> None:
    async with CallBench("s0") as bench:
        bench.stores["s0"].look_takes = 0.2
        for _ in range(3):
            bench.board.heard(Word("s0", ["t"]))
            await bench.caller.run_once()
        assert bench.stores["s0"].slots_read == 1
        bench.clock.advance(6.0)
        await bench.caller.run_once()
        assert bench.stores["s0"].slots_read == 2
        await bench.caller.stop()


async def test_paused_types_are_not_called_for() -> None:
    async with CallBench("s0") as bench:
        bench.board.pause("t")
        bench.put("s0", "t", 5)
        await bench.caller.run_once()
        assert bench.broker.calls == []
        await bench.caller.stop()


async def test_a_claim_that_left_no_credit_says_so() -> None:
    async with CallBench("s0") as bench:
        bench.put("s0", "t", 5)
        bench.put("s0", "t", 5)
        bench.told = 0
        bench.grab("w", 1)
        await bench.claimer.run_once()
        await bench.claimer.finish(5)
        await bench.claimer.run_once()
        assert bench.told > 0


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_call_that_cannot_be_sent_is_no_failure(refuses: bool) -> None:
    async with CallBench("s0") as bench:
        bench.broker.refuses = refuses
        bench.put("s0", "t", 5)
        await bench.caller.run_once()
        assert bench.broker.calls == ([] if refuses else ["t"])
        await bench.caller.stop()


def test_calls_that_change_nothing_become_rare_and_are_never_given_up() -> None:
    plan, now, calls = CallPlan(), 0.0, []
    while now < 60:
        if plan.due({"t"}, now):
            calls.append(now)
        now += 0.25
    pauses = [later - earlier for earlier, later in pairwise(calls)]
    assert pauses[:4] == [0.25, 0.5, 1.0, LONGEST_SECONDS]
    assert set(pauses[3:]) == {LONGEST_SECONDS}


def test_a_type_that_was_served_is_called_for_at_once_the_next_time() -> None:
    plan = CallPlan()
    assert plan.due({"t", "u"}, 0.0) == ["t", "u"]
    assert plan.due({"u"}, 0.1) == []
    assert plan.due({"t", "u"}, 0.2) == ["t"]
    assert plan.due(set(), 0.3) == []
    assert plan.wait(0.3) is None
