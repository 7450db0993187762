"""Schedulers tell each other what they have served, so that the others do not look for it."""

from __future__ import annotations

import pytest

from services.mesh.clock import ManualClock
from services.scheduler.app.calling import LOOK_SECONDS, Caller
from services.scheduler.app.claimer import SAY_SECONDS
from services.scheduler.domain.flags import DueFlags
from services.scheduler.domain.word import Served, Word
from tests.unit.scheduler.scheduler_fakes import Bench, until


async def test_who_took_the_work_of_a_nudge_says_so() -> None:
    async with Bench("s0") as bench:
        bench.claimer.others = lambda: ["other"]
        bench.stores["s0"].store("t", 1)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"], number=7))
        await until(lambda: bool(bench.broker.served_words))
        assert bench.broker.served_words == [(["other"], Served("t", "s0", frozenset({7})))]


@pytest.mark.parametrize(
    ("stored", "room", "numbers"),
    [
        pytest.param(0, 10, [7], id="another one has it"),
        pytest.param(1, 10, [7, 8], id="another one has some of it"),
        pytest.param(2, 2, [7], id="there may be more"),
        pytest.param(1, 10, [7, 0], id="one has no name"),
    ],
)
async def test_who_did_not_see_the_end_of_it_names_no_nudge(
    stored: int, room: int, numbers: list[int]
) -> None:
    async with Bench("s0") as bench:
        bench.claimer.others = lambda: ["other"]
        bench.stores["s0"].store("t", stored)
        for number in numbers:
            bench.board.heard(Word("s0", ["t"], number=number))
        bench.grab("w", room)
        await until(lambda: len(bench.stores["s0"].claims) == 1)
        await bench.claimer.finish(5)
        await bench.passed()
        told = [(who, served.type, set(served.nudges)) for who, served in bench.broker.served_words]
        assert told == [(["other"], "t", set())] * bool(stored)


async def test_in_a_stream_it_is_said_now_and_then_that_somebody_serves_it() -> None:
    async with Bench("s0") as bench:
        bench.claimer.others = lambda: ["other"]
        for number in range(5):
            bench.stores["s0"].store("t", 1)
            bench.board.heard(Word("s0", ["t"]))
            bench.grab("w", 10)
            await until(lambda sent=number + 1: bench.sent() == sent)  # type: ignore[misc]
            await bench.passed()
        assert len(bench.broker.served_words) == 1


async def test_what_was_heard_while_the_claim_was_under_way_is_for_the_next() -> None:
    async with Bench("s0") as bench:
        bench.claimer.others = lambda: ["other"]
        shard = bench.stores["s0"]
        shard.open_door.clear()
        shard.store("t", 1)
        bench.board.heard(Word("s0", ["t"], number=7))
        bench.grab("w1", 10)
        await until(lambda: shard.running == 1)
        shard.store("t", 1)
        bench.board.heard(Word("s0", ["t"], number=8))
        bench.grab("w2", 10)
        shard.open_door.set()
        await until(lambda: len(bench.broker.served_words) == 2)
        told = [set(served.nudges) for _, served in bench.broker.served_words]
        assert told == [{7}, {8}]


async def test_what_others_have_served_is_not_asked_for_when_room_comes() -> None:
    async with Bench("s0") as bench:
        bench.board.heard(Word("s0", ["t"], number=7))
        bench.claimer.served(Served("t", "s0", [7]))
        bench.grab("w", 10)
        await bench.passed()
        assert bench.stores["s0"].claims == []


async def test_what_is_being_asked_for_is_not_believed_to_be_served() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        shard.store("t", 1)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"], number=7))
        await until(lambda: shard.running == 1)
        bench.claimer.served(Served("t", "s0", [7]))
        shard.away = True
        shard.open_door.set()
        await bench.claimer.finish(5)
        assert bench.board.flags.is_raised("t", "s0"), "the claim failed: its job is free again"


async def test_a_flag_that_went_up_just_now_is_looked_behind_when_it_is_time() -> None:
    async with Bench("s0") as bench:
        clock = ManualClock()
        bench.board.flags = DueFlags(now=clock.monotonic)
        caller = Caller(bench.board, bench.shards, bench.broker, clock, bench.measures)
        bench.board.heard(Word("s0", ["t"], number=7))
        clock.advance(LOOK_SECONDS / 2)
        await caller.run_once()
        assert bench.stores["s0"].slots_read == 0
        bench.board.heard(Word("s0", ["t"], number=8))
        clock.advance(LOOK_SECONDS / 2)
        await caller.run_once()
        assert bench.stores["s0"].slots_read == 1, "the second nudge does not put the look off"
        await caller.stop()


async def test_while_another_one_says_to_serve_it_nobody_looks() -> None:
    async with Bench("s0") as bench:
        clock = ManualClock()
        bench.board.flags = DueFlags(now=clock.monotonic)
        caller = Caller(bench.board, bench.shards, bench.broker, clock, bench.measures)
        bench.board.heard(Word("s0", ["t"]))
        for _ in range(5):
            clock.advance(SAY_SECONDS)
            bench.claimer.served(Served("t", "s0"))
            await caller.run_once()
        assert bench.stores["s0"].slots_read == 0
        clock.advance(LOOK_SECONDS)
        await caller.run_once()
        assert bench.stores["s0"].slots_read == 1, "it may be dead"
        await caller.stop()
