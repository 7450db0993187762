"""How far back claims look, and that nothing is left aside for long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from services.scheduler.app.claimer import ClaimRules
from services.scheduler.domain.depth import Depth, DepthRules
from services.scheduler.domain.word import Word
from tests.unit.scheduler.scheduler_fakes import Bench, until


def test_quick_looks_always_look_at_everything() -> None:
    depth = Depth(DepthRules())
    assert depth.next(0.0) is None
    depth.looked(1.0, 1.004, short=True)
    assert depth.next(1.004) is None


def test_after_a_slow_look_that_found_all_the_next_begin_there() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 1.02, short=True)
    assert depth.next(1.1) == pytest.approx(10.1)
    assert depth.wait(1.1) == pytest.approx(0.32)
    assert depth.next(1.43) is None


def test_everything_is_looked_at_twice_a_second_whatever_it_takes() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 2.0, short=True)
    assert depth.next(2.49) is not None
    assert depth.next(2.5) is None


def test_a_look_that_left_something_sets_no_mark() -> None:
    depth = Depth(DepthRules())
    depth.looked(1.0, 1.02, short=False)
    assert depth.next(1.03) is None


async def test_a_job_that_came_back_is_found_by_the_next_look_at_everything() -> None:
    rules = ClaimRules(depth=DepthRules(quick=0.0, factor=1e9, most=0.2))
    async with Bench("s0", rules=rules) as bench:
        shard, asked = bench.stores["s0"], list[timedelta | None]()
        claim = shard.claim

        async def noted(type_: str, worker: str, limit: int, *rest: timedelta | None):  # type: ignore[no-untyped-def]
            asked.append(rest[1])
            return await claim(type_, worker, limit if rest[1] is None else 0)

        shard.claim = noted  # type: ignore[assignment]
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
