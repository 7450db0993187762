"""Unique keys: a second holder is found, and so is whoever was told something else about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.orders import UNIQUE, UNIQUE_POLICIES, OrderBook
from tests.chaos.verdict import Verdict
from tests.unit.chaos.story import BEGAN, RAN, Story

Break = Callable[[Story], object]
#: It took the content of another before it ran.
REPLACED = ((1, 1, 0), (1, 15, 0), (2, 2, 1), (3, 3, 1), (4, 4, 1))
CANCELLED = ((1, 1, 0), (6, 10, 0))
REPEATED = ((1, 17, 0), *RAN[1:])
CONFLICT = {"outcome": "fail", "reason": "UNIQUE_CONFLICT"}


def ask(story: Story, name: str, at: float, policy: str = "keep", **fields: Any) -> None:
    """A submission within a second, and what it was told."""
    said = {"unique": "k", "policy": policy, "begin": BEGAN + at, "end": BEGAN + at + 1}
    story.tell(name, **{**said, **fields})


def meet(
    story: Story, name: str, holder: str, at: float, policy: str = "keep", **more: Any
) -> None:
    """One that was told of the holder."""
    said = {"job": holder, "existing": True, "told_ref": f"ref-{holder}"}
    ask(story, name, at, policy, **{**said, **more})


def hold(story: Story, name: str, at: float, steps: Any = RAN, **order: Any) -> None:
    """One that got the key, a second after it was asked for."""
    story.job(name, steps, after=at, ledger=order.pop("ledger", None))
    story.evidence.history.pop()
    ask(story, name, at + 0.5, **{"existing": False, "told_ref": f"ref-{name}", **order})
    story.change(name, unique="k", created=BEGAN + at + 1, first_due=BEGAN + at + 1)


def replaced(story: Story, name: str, by: str, at: float, **told: Any) -> None:
    """One that was stored and then replaced."""
    given = f"S {name} 1 input-{by}\nE {name} 1 done"
    hold(story, name, at, REPLACED, ledger=given)
    story.change(name, ref=f"ref-{by}", first_due=BEGAN + at + 2)
    meet(story, by, name, at + 1.5, "replace", **{"told_ref": f"ref-{by}", **told})


def heard(story: Story, name: str, at: float) -> None:
    """A watcher was told of its end."""
    story.watch("w", *((name, version, state) for version, (state, *_) in enumerate(RAN, 1)))
    story.evidence.watches[-1]["at"] = BEGAN + at
    story.evidence.watches[0]["jobs"] = [name]


@pytest.fixture
def story() -> Story:
    """A key that was held four times, and those who met its holders."""
    story = Story()
    hold(story, "a", 0)
    meet(story, "kept", "a", 1.5)
    ask(story, "refused", 1.5, "refuse", holder="a", **CONFLICT)
    replaced(story, "b", "c", 6)
    hold(story, "gone", 12, CANCELLED, ledger="")
    story.op("cancel", "gone", cancelled=True, state=6, begin=BEGAN + 13.4, end=BEGAN + 14.1)
    hold(story, "again", 15, REPEATED, ledger="S again 1 input-gone\nE again 1 done")
    story.evidence.history.pop()
    story.change("again", ref="ref-gone", origin="gone")
    story.op("retry", "gone", made="again", existing=False)
    return story


def judge(story: Story) -> Verdict:
    """With handlers that ran when their rows say so."""
    for name, runs in story.evidence.ledger.runs.items():
        claims = {e.fence: e.time for e in story.evidence.events.get(name, ()) if e.reason == 2}
        for fence, run in runs.items():
            run.began = claims.get(fence, run.began)
    return check(story.evidence)


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in judge(story).violations}


def test_honest_holders_of_a_key_are_no_violations(story: Story) -> None:
    verdict = judge(story)
    assert (verdict.violations, verdict.invalid) == ([], [])


def _later(story: Story, name: str, seconds: float) -> None:
    """All that happened to a job after it was stored comes later."""
    events = story.evidence.events[name]
    events[1:] = [event._replace(time=event.time + seconds) for event in events[1:]]


def _stored(story: Story, name: str, at: float, **said: Any) -> None:
    hold(story, name, at)
    story.evidence.history[-1].update(said)


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "two hold it at once": (lambda s: hold(s, "x", 1), ("I14", "twins")),
    "one that nobody knew of ran beside its holder": (
        lambda s: hold(s, "x", 1, outcome="unknown"),
        ("I14", "twins"),
    ),
    "one was started over beside its holder": (
        lambda s: hold(s, "x", 16),
        ("I14", "twins"),
    ),
    "not stored, though its holder had ended": (
        lambda s: meet(s, "x", "a", 25),
        ("I14", "lost"),
    ),
    "not stored, though somebody had heard of the end of its holder": (
        lambda s: [heard(s, "a", 5), meet(s, "x", "a", 5.2)],
        ("I14", "lost"),
    ),
    "not stored for the sake of one that was not there yet": (
        lambda s: meet(s, "x", "b", 5),
        ("I14", "lost"),
    ),
    "not stored for the sake of one that has another key": (
        lambda s: [s.job("z"), meet(s, "x", "z", 2)],
        ("I14", "lost"),
    ),
    "told of a job that is in no shard": (lambda s: meet(s, "x", "nobody", 2), ("I14", "lost")),
    "refused, though its holder had ended": (
        lambda s: ask(s, "x", 25, "refuse", holder="a", **CONFLICT),
        ("I14", "lost"),
    ),
    "refused, though somebody had heard of the end of its holder": (
        lambda s: [heard(s, "a", 5), ask(s, "x", 5.2, "refuse", holder="a", **CONFLICT)],
        ("I14", "lost"),
    ),
    "refused for the sake of one that has another key": (
        lambda s: [s.job("z"), ask(s, "x", 2, "refuse", holder="z", **CONFLICT)],
        ("I14", "lost"),
    ),
    "refused, which it had not asked for": (
        lambda s: ask(s, "x", 2, "keep", holder="a", **CONFLICT),
        ("I14", "lost"),
    ),
    "to be refused, and told of the holder as its own": (
        lambda s: meet(s, "x", "a", 2, "refuse"),
        ("I14", "other"),
    ),
    "not started over, though the holder had ended": (
        lambda s: s.op("retry", "gone", holder="a", namespace="blue", begin=BEGAN + 36, **CONFLICT),
        ("I14", "lost"),
    ),
    "refused, and stored": (
        lambda s: _stored(s, "x", 20, holder="again", **CONFLICT),
        ("I1", "twins"),
    ),
    "told of another, and stored": (
        lambda s: _stored(s, "x", 20, job="again", existing=True),
        ("I14", "twins"),
    ),
    "told that it was stored long before": (
        lambda s: ask(s, "x", 30, job="a", existing=False),
        ("I14", "other"),
    ),
    "stored, and nobody submitted it": (
        lambda s: [hold(s, "x", 20), s.evidence.history.pop()],
        ("I1", "twins"),
    ),
    "stored under another idempotency key": (
        lambda s: [hold(s, "x", 20, key="mine"), s.change("x", key="other")],
        ("I2", "other"),
    ),
    "one submission is there twice": (
        lambda s: [hold(s, "x", 20), s.change("x", ref="ref-a")],
        ("I14", "twins"),
    ),
    "one was replaced, and stored as well": (
        lambda s: [hold(s, "c", 20, policy="replace")],
        ("I14", "twins"),
    ),
    "it has replaced another, and nothing was changed": (
        lambda s: meet(s, "x", "a", 1.5, "replace", told_ref="ref-x"),
        ("I14", "lost"),
    ),
    "it met one that waited, and did not replace it": (
        lambda s: [hold(s, "x", 20), _later(s, "x", 5), meet(s, "y", "x", 22, "replace")],
        ("I14", "lost"),
    ),
    "what it was replaced by is gone again": (
        lambda s: s.change("b", ref="ref-b"),
        ("I14", "lost"),
    ),
    "it was replaced by an earlier one": (
        lambda s: [meet(s, "x", "b", 0.1, "replace", outcome="ok"), s.change("b", ref="ref-x")],
        ("I14", "lost"),
    ),
    "it was replaced by one that asked to be kept": (
        lambda s: s.change("b", ref="ref-kept"),
        ("I14", "twins"),
    ),
    "it was replaced by one that was refused": (
        lambda s: [
            ask(s, "x", 7.5, "replace", outcome="fail", error="away"),
            s.change("b", ref="ref-x"),
        ],
        ("I14", "twins"),
    ),
    "it was replaced, and nobody asked then": (
        lambda s: s.evidence.history[4].update(begin=BEGAN + 8.5),
        ("I14", "other"),
    ),
    "it was replaced, and ran with what it had before": (
        lambda s: setattr(s.evidence.ledger.of("b")[1], "input", "input-b"),
        ("I8", "double"),
    ),
    "it was replaced, and is due before the time that was asked for": (
        lambda s: s.evidence.history[4].update(delay=3.0),
        ("I10", "other"),
    ),
    "what repeats it has no key": (lambda s: s.change("again", unique=None), ("I32", "other")),
    "it has ended, and still holds the key": (
        lambda s: s.evidence.held.append({"namespace": "blue", "key": "k", "job": "a"}),
        ("I27", "other"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_about_a_unique_key_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


def test_who_waited_for_the_end_of_the_holder_is_no_second_one(story: Story) -> None:
    """Its clock was read before it waited."""
    hold(story, "x", 20)
    _later(story, "x", 3)
    hold(story, "y", 19.5, outcome="unknown")
    _later(story, "y", 8)
    assert found(story) == set()


def test_who_was_told_when_it_had_ended_is_no_second_one(story: Story) -> None:
    hold(story, "x", 20, end=BEGAN + 90)
    hold(story, "y", 26)
    assert found(story) == set()


def test_an_end_may_be_seen_long_after_it_was_written(story: Story) -> None:
    """Its shard stood still before the commit."""
    meet(story, "x", "a", 5)
    assert found(story) == set()


def test_each_namespace_has_its_own_keys(story: Story) -> None:
    hold(story, "x", 1, namespace="red")
    story.change("x", namespace="red")
    assert found(story) == set()


def test_an_unknown_submission_may_have_been_stored_or_have_replaced_or_not(story: Story) -> None:
    hold(story, "y", 20, outcome="unknown")
    ask(story, "x", 7.4, "replace", outcome="unknown")
    assert found(story) == set()
    story.change("b", ref="ref-x")
    story.evidence.ledger.of("b")[1].input = "input-x"
    assert found(story) == set()


def test_what_is_sent_again_under_its_idempotency_key_may_have_ended(story: Story) -> None:
    hold(story, "x", 20, key="mine")
    story.change("x", key="mine")
    meet(story, "x", "x", 40, key="mine")
    assert found(story) == set()


def test_one_that_was_handed_out_before_is_not_replaced(story: Story) -> None:
    meet(story, "x", "a", 2.5, "replace")
    assert found(story) == set()


def test_what_repeats_a_job_may_be_replaced_as_well(story: Story) -> None:
    steps = (REPEATED[0], *REPLACED[1:])
    hold(story, "x", 20, steps, ledger="S x 1 input-y\nE x 1 done")
    story.evidence.history.pop()
    said = {"ref": "ref-y", "labels": {"ref": "ref-y"}, "first_due": BEGAN + 22}
    story.change("x", origin="gone", **said)
    story.op("retry", "gone", made="x", existing=False)
    meet(story, "y", "x", 21.5, "replace", told_ref="ref-y")
    assert found(story) == set()


UNPROVEN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "nobody was told of another job that holds its unique key": lambda op: op["ref"] == "ref-kept",
    "nobody was refused for a unique key": lambda op: op.get("reason") == "UNIQUE_CONFLICT",
}


@pytest.mark.parametrize("reason", UNPROVEN)
def test_a_policy_that_was_never_asked_proves_nothing(reason: str, story: Story) -> None:
    history = story.evidence.history
    history[:] = [op for op in history if not UNPROVEN[reason](op)]
    assert judge(story).invalid == [reason]


def test_a_key_that_was_held_once_proves_nothing() -> None:
    story = Story()
    hold(story, "a", 0)
    meet(story, "kept", "a", 1.5)
    ask(story, "refused", 1.5, "refuse", holder="a", **CONFLICT)
    assert judge(story).invalid == [
        "no job was replaced under its unique key",
        "no unique key was ever held again",
    ]


@pytest.mark.parametrize("kind", UNIQUE)
def test_every_policy_is_asked_for_by_several_at_once(kind: str) -> None:
    book = OrderBook(7, "ledger", ("blue",), {kind: 1})
    lots = list(book.lots(200, lambda: False))
    assert all(len({order.unique_key for order in lot}) == 1 for lot in lots)
    orders = [order for lot in lots for order in lot]
    assert {order.unique_policy for order in orders} == set(UNIQUE_POLICIES)
    assert {order.unique_policy for order in orders if order.key} == {"keep"}
    assert any(order.redrives and order.cancel_after is not None for order in orders)
    assert any(order.delay for order in orders)
