"""How far back claims look, and that nothing is left aside for long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from services.mesh.store.answers import ClaimAnswer
from services.scheduler.app.claims import ClaimRules
from services.scheduler.domain.depth import Depth, DepthRules
from services.scheduler.domain.word import Word
from tests.unit.scheduler.scheduler_fakes import Bench, until


def test_quick_looks_always_look_at_everything() -> None:
    depth = Depth(DepthRules())
    assert depth.next(0.0) is None
    depth.looked(1.0, 1.9, 0.0005, short=True)  # what counts is the server's time
    assert depth.next(1.9) is None


def test_after_a_slow_look_that_found_all_the_next_begin_there() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 1.03, 0.005, short=True)
    assert depth.next(1.1) == pytest.approx(0.6)
    assert depth.wait(1.1) == pytest.approx(4.93)
    assert depth.next(6.04) is None


def test_everything_is_looked_at_every_two_minutes_whatever_it_takes() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 2.0, 1.0, short=True)
    assert depth.next(121.99) is not None
    assert depth.next(122.0) is None


def test_word_of_work_that_has_been_due_for_long_makes_the_next_look_at_everything() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 1.02, 0.02, short=True)
    depth.forget(1.1)
    assert depth.next(1.1) is None
    # It came while a look was under way, which may have passed the place before.
    depth.looked(1.05, 1.2, 0.02, short=True)
    assert depth.next(1.2) is None
    depth.looked(1.2, 1.3, 0.02, short=True)
    assert depth.next(1.3) is not None


def test_a_look_that_left_something_sets_no_mark() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 1.02, 0.02, short=False)
    assert depth.next(1.03) is None


def test_claims_from_the_mark_on_move_it_if_they_took_all_there_was() -> None:
    depth = Depth(DepthRules())
    depth.went_on(0.5, short=True)
    assert depth.next(0.5) is None, "there is no mark to move"
    depth.looked(1.0, 1.1, 0.1, short=True)
    depth.went_on(5.0, short=False)
    assert depth.next(6.0) == pytest.approx(5.5)
    depth.went_on(5.0, short=True)
    assert depth.next(6.0) == pytest.approx(1.5)
    assert depth.next(101.2) is None, "everything is looked at when it would have been"
    depth.forget(7.0)
    depth.went_on(6.9, short=True)
    assert depth.next(7.1) is None


async def test_a_job_that_came_back_is_found_by_the_next_look_at_everything() -> None:
    rules = ClaimRules(depth=DepthRules(most=0.2))
    async with Bench("s0", rules=rules) as bench:
        shard = bench.stores["s0"]
        asked = _slow(shard)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: len(asked) == 1)
        shard.store("t", 1)  # due for long: only a look at everything finds it
        bench.board.heard(Word("s0", ["t"]))
        async with asyncio.timeout(10):
            await until(lambda: bench.sent() == 1)
        assert asked[0] is None
        assert asked[1] is not None
        assert asked[-1] is None


async def test_a_job_that_is_said_to_be_back_is_found_by_the_next_claim() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        asked = _slow(shard)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: len(asked) == 1)
        shard.store("t", 1)
        bench.board.heard(Word("s0", ["t"], long_due=True))
        await until(lambda: bench.sent() == 1)
        assert asked[:2] == [None, None]


def _slow(shard: Any) -> list[timedelta | None]:
    """Looks at everything take long there, and all work has been due for long: what was asked."""
    asked: list[timedelta | None] = []
    claim = shard.claim

    async def noted(type_: str, worker: str, limit: int, *rest: timedelta | None) -> ClaimAnswer:
        asked.append(rest[1])
        answer = await claim(type_, worker, limit if rest[1] is None else 0)
        return replace(answer, took=9.9)

    shard.claim = noted
    return asked
