"""What callers and handlers do to jobs that exist: each broken promise about it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.orders import CHANGED, OrderBook
from tests.unit.chaos.story import BEGAN, RAN, Story

Break = Callable[[Story], object]
FAILED = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1))
#: The same, started over.
FAILED_AGAIN = ((1, 17, 0), *FAILED[1:])
MOVED = ((1, 1, 0), (1, 15, 0), (2, 2, 1), (3, 3, 1), (4, 4, 1))
#: It snoozed at its first dispatch, and ran at its second.
SNOOZED = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 12, 1), (2, 2, 2), (3, 3, 2), (4, 4, 2))
SNOOZES = "S {0} 1\nE {0} 1 snooze\nS {0} 2\nE {0} 2 done"


def repeat(story: Story, name: str, origin: str = "a", after: float = 6.0, **fields: Any) -> None:
    """A job that repeats another: it has that one's labels, and no submission of its own."""
    text = f"S {name} 1 input-{origin}\nE {name} 1 fail"
    story.job(name, FAILED_AGAIN, after=after, ledger=text)
    story.evidence.history.pop()
    said = {"ref": f"ref-{origin}", "origin": origin, "created": BEGAN + after, **fields}
    story.change(name, **said)


def moved(story: Story, name: str, **fields: Any) -> None:
    """An update that was acknowledged, unless it is said otherwise."""
    said = {"at": BEGAN + 5, "priority": 3, "mark": f"{name}-0", "end": BEGAN + 2, **fields}
    story.op("update", name, **said)


@pytest.fixture
def story() -> Story:
    """One that was started over twice, one that was moved, one that snoozed."""
    story = Story()
    story.job("a", FAILED, fails=99)
    repeat(story, "a2")
    repeat(story, "a3", after=12)
    story.op("retry", "a", made="a2", existing=False)
    story.op("retry", "a", made="a2", existing=True)
    story.op("retry", "a", outcome="unknown")
    story.job("u", MOVED, after=0.5)
    story.change("u", priority=3, labels={"mark": "u-0"}, first_due=BEGAN + 5)
    moved(story, "u")
    story.job("s", SNOOZED, ledger=SNOOZES.format("s"), pause=0.5)
    return story


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def test_honest_changes_are_no_violations(story: Story) -> None:
    verdict = check(story.evidence)
    assert (verdict.violations, verdict.invalid) == ([], [])


def _event(job: str, version: int, **fields: Any) -> Break:
    def broken(story: Story) -> None:
        events = story.evidence.events[job]
        events[version - 1] = events[version - 1]._replace(**fields)

    return broken


def _drop(story: Story, name: str) -> None:
    evidence = story.evidence
    evidence.rows[:] = [row for row in evidence.rows if row.id != name]
    del evidence.events[name], evidence.ledger.runs[name]


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "a job that was made by a redrive is gone": (lambda s: _drop(s, "a2"), ("I32", "lost")),
    "one call made two jobs": (lambda s: repeat(s, "a4", after=18), ("I32", "twins")),
    "started over, and nobody asked": (
        lambda s: [s.job("x", FAILED, fails=99), repeat(s, "x2", origin="x")],
        ("I32", "twins"),
    ),
    "started over by a call that was refused": (
        lambda s: [
            s.job("x", FAILED, fails=99),
            repeat(s, "x2", origin="x"),
            s.op("retry", "x", outcome="fail", reason="SHARD_UNAVAILABLE"),
        ],
        ("I32", "twins"),
    ),
    "started over while what repeats it lives": (
        lambda s: s.change("a3", created=BEGAN + 7),
        ("I32", "twins"),
    ),
    "started over before it had ended": (
        lambda s: [s.change("a2", created=BEGAN + 1)],
        ("I32", "twins"),
    ),
    "started over though it had succeeded": (
        lambda s: [
            s.job("x"),
            repeat(s, "x2", origin="x"),
            s.op("retry", "x", made="x2", existing=False),
        ],
        ("I32", "twins"),
    ),
    "two calls say that they made the same job": (
        lambda s: s.op("retry", "a", made="a2", existing=False),
        ("I32", "lost"),
    ),
    "a failed job could not be started over": (
        lambda s: s.op("retry", "a", outcome="fail", reason="FORBIDDEN_TRANSITION"),
        ("I32", "lost"),
    ),
    "a failed job was not found": (
        lambda s: s.op("retry", "a", outcome="fail", reason="JOB_NOT_FOUND"),
        ("I17", "lost"),
    ),
    "it repeats another job, and is not like it": (
        lambda s: s.change("a2", type="nap"),
        ("I32", "other"),
    ),
    "it repeats another job, and ran with another input": (
        lambda s: setattr(s.evidence.ledger.of("a2")[1], "input", "input-u"),
        ("I8", "double"),
    ),
    "it repeats another job, and says that it is new": (
        _event("a2", 1, reason=1),
        ("I32", "other"),
    ),
    "what it repeats is gone": (lambda s: _drop(s, "a"), ("I32", "lost")),
    "an acknowledged update never happened": (
        lambda s: [s.job("x"), moved(s, "x")],
        ("I33", "lost"),
    ),
    "its labels are not those of the update": (
        lambda s: s.change("u", labels={}),
        ("I33", "lost"),
    ),
    "its priority is not that of the update": (
        lambda s: s.change("u", priority=0),
        ("I33", "lost"),
    ),
    "its time is before that of the update": (
        lambda s: s.change("u", first_due=BEGAN + 2),
        ("I33", "lost"),
    ),
    "its time is after that of the update": (
        lambda s: s.change("u", first_due=BEGAN + 9),
        ("I33", "lost"),
    ),
    "it has the labels of an earlier update": (
        lambda s: moved(s, "u", mark="u-1"),
        ("I33", "lost"),
    ),
    "it was changed twice by one update": (
        lambda s: s.job("x", (MOVED[0], *MOVED[1:2] * 2, *MOVED[2:])),
        ("I33", "double"),
    ),
    "it has the labels of an update that was refused": (
        lambda s: [
            s.job("x"),
            s.change("x", labels={"mark": "x-0"}),
            moved(s, "x", outcome="fail", reason="FORBIDDEN_TRANSITION", end=BEGAN + 3),
        ],
        ("I33", "lost"),
    ),
    "it waited, and an update was refused": (
        lambda s: [
            s.job("x", after=3),
            moved(s, "x", outcome="fail", reason="FORBIDDEN_TRANSITION", end=BEGAN + 3),
        ],
        ("I33", "other"),
    ),
    "it began before the time it was moved to": (
        lambda s: [
            s.change("u", first_due=BEGAN + 60),
            s.evidence.history[-2].update(at=BEGAN + 60),
        ],
        ("I10", "other"),
    ),
    "a read after an update does not know of it": (
        lambda s: [moved(s, "u", version=4), s.op("get", "u", version=3)],
        ("I17", "gaps"),
    ),
    "it snoozed, and no handler did": (
        lambda s: s.job("x", SNOOZED, ledger=SNOOZES.format("x").replace("snooze", "done")),
        ("I34", "other"),
    ),
    "it snoozed, and was run at once": (
        lambda s: s.job("x", SNOOZED, ledger=SNOOZES.format("x"), pause=9.0),
        ("I34", "other"),
    ),
    "its snooze was counted as an attempt": (_event("s", 5, attempt=2), ("I34", "other")),
    "it snoozed, and succeeded by that": (
        lambda s: s.job("x", RAN, ledger="S x 1\nE x 1 snooze"),
        ("I8", "double"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_about_a_change_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


def test_an_unknown_update_may_have_come_or_not(story: Story) -> None:
    moved(story, "u", mark="u-1", priority=7, outcome="unknown")
    assert found(story) == set()
    story.job("x", (MOVED[0], *MOVED[1:2] * 2, *MOVED[2:]))
    story.change("x", priority=7, labels={"mark": "x-1"}, first_due=BEGAN + 5)
    moved(story, "x", mark="x-1", priority=7, outcome="unknown")
    moved(story, "x", mark="x-2", priority=8)
    assert found(story) == set()


def test_what_began_before_it_was_moved_was_not_early(story: Story) -> None:
    """Rescued, so that it waits again, and then moved to a later time."""
    steps = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 9, 1), (1, 15, 1), *SNOOZED[4:])
    text = "S x 1\nS x 2\nE x 2 done"
    story.job("x", steps, ledger=text)
    second = story.evidence.ledger.of("x")[2].began
    story.change("x", priority=3, labels={"mark": "x-0"}, first_due=second - 0.01)
    moved(story, "x", at=second - 0.01)
    assert found(story) == set()


def test_a_run_in_which_nobody_snoozed_or_was_started_over_proves_nothing(story: Story) -> None:
    story.evidence.history[:] = [
        {**op, "existing": True} if op["op"] == "retry" else op for op in story.evidence.history
    ]
    story.evidence.events["s"].clear()
    assert {"no handler ever snoozed", "no redrive made a job"} <= set(
        check(story.evidence).invalid
    )


def test_every_kind_of_change_is_asked_for() -> None:
    book = OrderBook(7, "ledger", ("blue",), dict.fromkeys(CHANGED, 1.0))
    orders = [order for lot in book.lots(100, lambda: False) for order in lot]
    assert any(order.redrives and order.cancel_after is None for order in orders)
    assert any(order.redrives and order.cancel_after is not None for order in orders)
    assert any(order.changes for order in orders)
    assert any(order.input.get("snoozes") for order in orders)
