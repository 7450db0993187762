"""Redrives by filter: what was left out, or started over again and again, is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.orders import SIZES, OrderBook
from tests.unit.chaos.story import BEGAN, Story

Break = Callable[[Story], object]
FAILED = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1))
AGAIN = ((1, 17, 0), *FAILED[1:])
LOT = {"lot": "L"}


def one(story: Story, name: str, steps: Any = FAILED) -> None:
    """One of the lot, whose end was seen by its client if it failed."""
    story.job(name, steps, fails=99 if steps is FAILED else 0, lot="L")
    story.change(name, labels=LOT)
    if steps is FAILED:
        story.op("get", name, version=4, begin=BEGAN + 5, end=BEGAN + 5.5)


def repeat(story: Story, name: str, origin: str, at: float) -> None:
    """A job that repeats another, `at` seconds after the beginning."""
    first = next(row for row in story.evidence.rows if row.id == origin)
    given = first.ref.replace("ref-", "input-")
    story.job(name, AGAIN, after=at - 1, ledger=f"S {name} 1 {given}\nE {name} 1 fail")
    story.evidence.history.pop()
    said = {"origin": origin, "ref": first.ref, "labels": LOT}
    story.change(name, created=BEGAN + at, first_due=BEGAN + at, **said)


def call(story: Story, op: str, at: float, count: int = 0, **fields: Any) -> None:
    """A call by filter that took two tenths of a second."""
    said = {"op": op, "outcome": "ok", "lot": "L", "count": count, "partial": False}
    said |= {"client": "c0", "ref": "ref-a", "begin": BEGAN + at, "end": BEGAN + at + 0.2}
    story.evidence.history.append({**said, **fields})


@pytest.fixture
def story() -> Story:
    """Two that failed and one that did not; they and what repeats them were started over."""
    story = Story()
    one(story, "a")
    one(story, "b")
    one(story, "good", (*FAILED[:3], (4, 4, 1)))
    call(story, "retry.count", 6, 2)
    call(story, "retry.many", 7, 2)
    repeat(story, "a2", "a", 7.1)
    repeat(story, "b2", "b", 7.1)
    call(story, "retry.count", 12, 2)
    call(story, "retry.many", 13, 2)
    repeat(story, "a3", "a2", 13.1)
    repeat(story, "b3", "b2", 13.1)
    return story


def found(story: Story) -> set[tuple[str, str]]:
    ledger = story.evidence.ledger
    for name, runs in ledger.runs.items():
        for fence, run in runs.items():
            claims = (e for e in story.evidence.events[name] if e.fence == fence)
            run.began = next((claim.time for claim in claims), run.began)
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def _calls(story: Story, op: str = "retry.many") -> list[dict[str, Any]]:
    return [line for line in story.evidence.history if line["op"] == op]


def test_honest_redrives_by_filter_are_no_violations(story: Story) -> None:
    assert found(story) == set()
    assert check(story.evidence).invalid == []


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "one that had failed was left out": (lambda s: one(s, "x"), ("I32", "lost")),
    "fewer were started over than they said": (
        lambda s: _calls(s)[0].update(count=3),
        ("I32", "lost"),
    ),
    "one that had succeeded was started over": (
        lambda s: repeat(s, "x", "good", 7.1),
        ("I32", "twins"),
    ),
    "one was started over before anybody asked": (
        lambda s: s.change("a2", created=BEGAN + 6.5),
        ("I32", "twins"),
    ),
    "one was started over by a call that only counts": (
        lambda s: s.change("a2", created=BEGAN + 6.1),
        ("I32", "twins"),
    ),
    "one was started over by a call that was refused": (
        lambda s: _calls(s)[1].update(outcome="fail"),
        ("I32", "twins"),
    ),
    "one was started over by the next call as well": (
        lambda s: repeat(s, "x", "a", 13.1),
        ("I32", "twins"),
    ),
    "one was started over while what repeats it lives": (
        lambda s: repeat(s, "x", "a", 7.15),
        ("I32", "twins"),
    ),
    "it repeats another, and is not like it": (
        lambda s: s.change("a2", labels={**LOT, "more": "of it"}),
        ("I32", "other"),
    ),
    "they count more than there are": (
        lambda s: _calls(s, "retry.count")[0].update(count=3),
        ("I32", "other"),
    ),
    "they count those that were started over before": (
        lambda s: _calls(s, "retry.count")[1].update(count=4),
        ("I32", "other"),
    ),
    "they count fewer than there are": (
        lambda s: _calls(s, "retry.count")[0].update(count=1),
        ("I32", "other"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_of_a_redrive_by_filter_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


def test_a_partial_answer_may_leave_some_out(story: Story) -> None:
    one(story, "x")
    for line in [*_calls(story), *_calls(story, "retry.count")]:
        line["partial"] = True
    assert found(story) == set()


def test_one_whose_end_nobody_had_seen_may_be_left_out(story: Story) -> None:
    """It may not have been committed yet."""
    one(story, "x")
    story.evidence.history.pop()
    assert found(story) == set()


def test_a_call_may_have_made_more_than_it_knows_of(story: Story) -> None:
    _calls(story)[0]["count"] = 1
    assert found(story) == set()


def test_two_calls_at_once_may_start_one_over_twice(story: Story) -> None:
    """One that nobody waits for any more found it before the other had started it over."""
    repeat(story, "x", "a", 20)
    assert ("I32", "twins") in found(story)
    call(story, "retry.many", 6.9, outcome="unknown")
    assert found(story) == set()


def test_calls_by_filter_that_made_nothing_prove_nothing() -> None:
    story = Story()
    one(story, "good", (*FAILED[:3], (4, 4, 1)))
    call(story, "retry.many", 7, 0)
    assert check(story.evidence).invalid == [
        "no redrive by filter made a job",
        "nobody started a lot over twice",
    ]


def test_of_a_lot_some_fail_and_some_do_not() -> None:
    book = OrderBook(7, "ledger", ("blue",), {"bulk": 1})
    lots = list(book.lots(60, lambda: False))
    assert all(len(lot) == SIZES["bulk"] for lot in lots)
    assert {bool(order.input["fails"]) for lot in lots for order in lot} == {True, False}
