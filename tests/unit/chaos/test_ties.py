"""The checker knows what ties jobs to each other: each broken tie is found in a tree by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.orders import OrderBook
from tests.unit.chaos.story import BEGAN, Story

Break = Callable[[Story], object]
#: It waited, was released and ran; it ended because of a parent.
WAITED = ((8, 1, 0), (1, 13, 0), (2, 2, 1), (3, 3, 1), (4, 4, 1))
CANCELLED = ((8, 1, 0), (6, 14, 0))
FAILED = ((8, 1, 0), (5, 14, 0))
BAD = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1))


def waits(*names: str, policy: str = "cancel") -> dict[str, Any]:
    return {"parents": [[f"ref-{name}", policy] for name in names]}


@pytest.fixture
def story() -> Story:
    """One that succeeds and one that fails, and children that follow them in every honest way."""
    story = Story()
    story.job("good")
    story.job("bad", BAD, fails=99)
    story.job("child", WAITED, after=5, **waits("good"))
    story.job("late", after=5, **waits("good"))  # stored when its parent had ended
    story.job("anyway", WAITED, after=5, **waits("good", "bad", policy="run"))
    story.job("cancelled", CANCELLED, after=5, **waits("good", "bad"))
    story.job("failed", FAILED, after=5, **waits("bad", policy="fail"))
    story.job("grandchild", CANCELLED, after=6, **waits("cancelled"))
    return story


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def test_honest_trees_are_no_violations(story: Story) -> None:
    verdict = check(story.evidence)
    assert (verdict.violations, verdict.invalid) == ([], [])


def _lose(story: Story, name: str) -> None:
    story.evidence.rows[:] = [row for row in story.evidence.rows if row.id != name]


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "released before its parent had ended": (
        lambda s: s.job("x", WAITED, **waits("good")),
        ("I31", "other"),
    ),
    "stored as due, though its parent had not ended": (
        lambda s: s.job("x", **waits("good")),
        ("I31", "other"),
    ),
    "released before the other of its parents had ended": (
        lambda s: [
            s.job("slow", after=50),
            s.job("x", WAITED, after=6, **waits("good", "slow", policy="run")),
        ],
        ("I31", "other"),
    ),
    "ran though its parent had failed": (
        lambda s: s.job("x", WAITED, after=6, **waits("bad")),
        ("I31", "other"),
    ),
    "ran though its parent was cancelled": (
        lambda s: s.job("x", WAITED, after=9, **waits("cancelled", policy="fail")),
        ("I31", "other"),
    ),
    "cancelled, though its parent succeeded": (
        lambda s: s.job("x", CANCELLED, after=6, **waits("good")),
        ("I31", "lost"),
    ),
    "cancelled, though it should run all the same": (
        lambda s: s.job("x", CANCELLED, after=6, **waits("bad", policy="run")),
        ("I31", "lost"),
    ),
    "failed, though it should be cancelled": (
        lambda s: s.job("x", FAILED, after=6, **waits("bad")),
        ("I31", "lost"),
    ),
    "cancelled before its parent had failed": (
        lambda s: s.job("x", CANCELLED, **waits("bad")),
        ("I31", "lost"),
    ),
    "cancelled because of a parent, and has none": (
        lambda s: s.job("x", CANCELLED, after=6),
        ("I31", "lost"),
    ),
    "waited, and nobody had said so": (lambda s: s.job("x", WAITED, after=6), ("I31", "lost")),
    "stored, and its parent is not": (
        lambda s: s.job("x", CANCELLED, after=6, **waits("nobody")),
        ("I31", "twins"),
    ),
    "its parent is gone": (lambda s: _lose(s, "bad"), ("I31", "twins")),
    "still waits after everything was healed": (
        lambda s: s.job("x", ((8, 1, 0),), after=6, **waits("good")),
        ("I22", "stuck"),
    ),
    "a tree that was sent again was taken for another": (
        lambda s: s.tell("child", "fail", job="", reason="IDEMPOTENCY_CONFLICT", **waits("good")),
        ("I2", "other"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_tie_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("cancelled", "grandchild"), "no job ended by its policy towards a parent: cancel"),
        (("failed",), "no job ended by its policy towards a parent: fail"),
        (("anyway",), "no job ran though a parent had failed"),
    ],
)
def test_a_run_whose_trees_all_went_one_way_proves_nothing(
    story: Story, names: tuple[str, ...], reason: str
) -> None:
    history = story.evidence.history
    refs = {f"ref-{name}" for name in names}
    history[:] = [op for op in history if op["ref"] not in refs]
    story.evidence.rows[:] = [row for row in story.evidence.rows if row.id not in names]
    assert reason in check(story.evidence).invalid


def test_trees_have_parents_of_every_kind_and_every_policy() -> None:
    book = OrderBook(7, "ledger", ("blue",), {"tree": 1, "steps": 1})
    lots = list(book.lots(400, lambda: False))
    orders = [order for lot in lots for order in lot]
    assert {policy for order in orders for _, policy in order.parents} == {"cancel", "run", "fail"}
    assert any(order.cancel_after is not None for order in orders)
    assert any(order.input.get("fails") for order in orders)
    for lot in lots:
        refs = [order.ref for order in lot]
        for place, order in enumerate(lot):
            assert {ref for ref, _ in order.parents} <= set(refs[:place])
            assert order.key


def test_what_the_story_says_of_time_is_what_the_checker_compares(story: Story) -> None:
    assert story.evidence.events["child"][1].time > story.evidence.events["good"][-1].time > BEGAN
