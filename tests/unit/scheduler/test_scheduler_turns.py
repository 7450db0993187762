"""What a namespace with more jobs than can run leaves to the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.turns import Turn, Turned
from services.mesh.store.answers import ClaimAnswer
from services.mesh.store.claiming import TURN_NAMESPACES
from services.scheduler.domain.shares import Share, ShareRules
from services.scheduler.domain.turns import TurnRules, Turns
from services.scheduler.domain.word import Word
from tests.integration.store_rig import EPOCH, new_job
from tests.simulation.shard import ModelShard
from tests.unit.scheduler.scheduler_fakes import Bench, until
from tests.unit.simulation.test_model_shard import Time

RULES = TurnRules(most=3, all_in=8, factor=100, longest=1)


def crowded(level: int = 0) -> Turns:
    turns = Turns(RULES)
    turns.ended("crowd", level, full=True)
    return turns


def begun(turns: Turns, number: int, now: float = 0.0) -> list[Turn | None]:
    return [turns.next(now) for _ in range(number)]


# --- the rules


def test_while_all_that_is_due_can_run_nobody_needs_a_turn() -> None:
    turns = Turns(RULES)
    assert begun(turns, 20) == [None] * 20
    turns.ended("n", 0, full=False)
    assert begun(turns, 20) == [None] * 20


def test_while_claims_are_full_every_other_one_begins_with_the_others() -> None:
    turns = crowded()
    assert begun(turns, 6) == [None, Turn(besides="crowd")] * 3
    turns.ended("", 0, full=False)
    assert begun(turns, 6) == [None] * 6


def test_a_turn_goes_on_where_the_last_one_stopped() -> None:
    turns = crowded()
    for last in ("k", "q", ""):
        (_, turn) = begun(turns, 2)
        assert turn is not None
        turns.went(turn, Turned(1, 1, last, 0.001), 10, 0.0)
        assert begun(turns, 2)[1] == Turn(last, "crowd")


@pytest.mark.parametrize(("others", "row"), [(1, 1), (2, 2), (3, 3), (40, 3)])
def test_the_more_others_have_enough_to_do_the_more_turns_they_have(others: int, row: int) -> None:
    turns = crowded()
    names = [f"n{number:02}" for number in range(others)]
    for after, name in zip(["", *names], [*names, names[0]], strict=True):
        turns.went(Turn(after), Turned(1, 1, name, 0.001), 1, 0.0)
    pattern = [turn is not None for turn in begun(turns, 2 * (row + 1))]
    assert pattern == [False, *[True] * row] * 2
    turns.went(Turn(), Turned(3, 2, "", 0.001), 10, 0.0)
    begun(turns, row)
    assert [turn is not None for turn in begun(turns, 4)].count(True) == 2, "they had all they want"


def test_turns_are_for_the_priority_at_which_the_line_was_cut_and_sometimes_for_all() -> None:
    turns = crowded(level=5)
    made = [turn for turn in begun(turns, 32) if turn is not None]
    assert [turn.least for turn in made] == ([5] * 7 + [None]) * 2
    turns.went(made[0], Turned(1, 1, "k", 0.001), 10, 0.0)
    turns.went(made[7], Turned(1, 1, "b", 0.001), 10, 0.0)
    made = [turn for turn in begun(turns, 32) if turn is not None]
    assert {turn.after for turn in made if turn.least == 5} == {"k"}
    assert {turn.after for turn in made if turn.least is None} == {"b"}


def test_looking_for_others_in_vain_is_rare() -> None:
    turns = crowded()
    turns.went(Turn(), Turned(0, 0, "", 0.002), 10, 7.0)
    assert begun(turns, 20, 7.19) == [None] * 20
    assert begun(turns, 20, 7.21).count(Turn(besides="crowd")) == 10
    turns.went(Turn(), Turned(0, 0, "", 5.0), 10, 8.0)
    assert any(begun(turns, 4, 9.01)), "however slow it was"


def test_where_too_many_have_nothing_to_do_the_next_turn_goes_on_behind_them() -> None:
    turns = crowded()
    turns.went(Turn(), Turned(0, 0, "k", 0.002), 10, 7.0)
    assert not any(begun(turns, 20, 7.19))
    assert Turn("k", "crowd") in begun(turns, 2, 7.21)


# --- with a line


class Lane:
    """A share, and the claims it makes of a shard."""

    def __init__(self, limit: int, seed: int = 1) -> None:
        self.share, self.limit, self.now = Share(ShareRules(turns=RULES)), limit, 0.0
        self.shard = ModelShard("s0", Time(), Random(seed))
        self.served: Counter[str] = Counter()
        self.turns = 0

    async def put(self, namespace: str, number: int, **fields: Any) -> None:
        jobs = [new_job(namespace=namespace, **fields) for _ in range(number)]
        await self.shard.put_jobs(jobs, EPOCH)

    async def claim(self) -> ClaimAnswer:
        """As a lane of the claimer does it."""
        aside = self.share.next(self.now)
        answer = await self.shard.claim("t", "w", self.limit, below=aside.below, turn=aside.turn)
        full = len(answer.jobs) == self.limit
        self.served.update(job.namespace for job in answer.jobs)
        if aside.turn is not None and answer.turned is not None:
            self.turns += 1
            self.share.went_in_turn(aside.turn, answer.turned, self.limit, self.now)
        if aside.below is not None:
            self.share.went_below(len(answer.jobs), answer.lowest, full=full)
        elif answer.crowd:
            self.share.ended(0.0, answer.lowest, answer.crowd, full=full)
        return answer


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@given(
    st.sets(st.text("abcxyz", min_size=1, max_size=3), min_size=1, max_size=25),
    st.integers(1, 20),
    st.integers(0, 3),
)
def test_every_namespace_has_its_turn_after_a_bounded_number_of_claims(
    names: set[str], limit: int, priority: int
) -> None:
    async def test() -> None:
        lane = Lane(limit)
        claims = 2 * (ceil(len(names) / min(limit, TURN_NAMESPACES)) + 2)
        claims *= RULES.all_in if priority else 1
        claims += claims // 7 + 1  # those that begin below the high priorities
        await lane.put("m", limit * (claims + 1), priority=priority)
        for name in sorted(names):
            await lane.put(name, 1)
        for _ in range(claims):
            await lane.claim()
        assert set(lane.served) == names | {"m"}

    run(test())


@pytest.mark.parametrize("others", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 12])
def test_namespaces_that_always_have_work_have_equal_shares(others: int, limit: int) -> None:
    async def test() -> None:
        lane = Lane(limit)
        for number in range(others + 1):  # the first stands in front of the line
            await lane.put(f"n{number}", limit * 60)
        for _ in range(60):
            await lane.claim()
        shares = [lane.served[f"n{number}"] / limit / 60 for number in range(others + 1)]
        fair = 1 / (others + 1)
        assert all(0.7 * fair < share < 1.4 * fair for share in shares), shares

    run(test())


def test_others_with_little_to_do_cost_the_one_in_front_no_more_than_that() -> None:
    async def test() -> None:
        lane = Lane(20)
        await lane.put("crowd", 2000)
        for _ in range(50):
            await lane.put("b", 1)
            answer = await lane.claim()
            assert len(answer.jobs) == 20, "no claim is short while somebody waits"
        assert lane.served["b"] >= 49

    run(test())


def test_a_type_with_a_single_namespace_looks_for_others_now_and_then_only() -> None:
    async def test() -> None:
        lane = Lane(1)
        lane.shard._looks.choice = lambda _: 0.0005  # type: ignore[method-assign, assignment]
        await lane.put("n", 1000)
        for _ in range(1000):
            lane.now += 0.001
            await lane.claim()
        assert lane.served["n"] == 1000
        assert lane.turns <= 1.0 / (RULES.factor * 0.0005) + 1

    run(test())


# --- in the claimer


async def test_full_claims_are_followed_by_one_that_begins_in_turn() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.store("t", 9)
        bench.board.heard(Word("s0", ["t"]))
        for number in range(1, 5):
            bench.grab(f"w{number}", 2)
            await until(lambda: bench.sent() == 2 * number)  # noqa: B023
        assert {turn.besides for turn in shard.turns} == {"default"}
        assert 1 <= len(shard.turns) <= 2
        bench.grab("w5", 2)
        await until(lambda: bench.sent() == 9)
        await until(lambda: not bench.board.flags.is_raised("t", "s0"))
        assert not bench.board.flags.is_raised("t", "s0"), "it saw the end all the same"
