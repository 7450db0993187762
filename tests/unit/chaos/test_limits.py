"""Limits by what handlers did: too many at once are found, those without a lease do not count."""

from __future__ import annotations

import pytest

from tests.chaos.checker import check
from tests.chaos.limit_rules import UNKNOWN_SECONDS
from tests.chaos.orders import LANE, LANES, LIMITED, PER_KEY, OrderBook
from tests.unit.chaos.story import BEGAN, RAN, RESCUED, Story


@pytest.fixture
def story() -> Story:
    """Two at a time of one key, one of another."""
    story = Story()
    limit = {"op": "limit", "type": LIMITED, "per_key": 2, "outcome": "ok"}
    story.evidence.history.append(limit)
    for name in "abc":
        story.job(name, ledger="", limit_key="k")
        story.change(name, type=LIMITED)
    story.write("S a 1\nS b 1\nE a 1 done\nS c 1\nE b 1 done\nE c 1 done")
    story.job("z", limit_key="other")
    story.change("z", type=LIMITED)
    return story


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def too_many(story: Story, *names: str, key: str = "k", namespace: str = "blue") -> None:
    """So many begin before the first of them ends."""
    for name in names:
        story.job(name, RAN, ledger="", limit_key=key, namespace=namespace)
        story.change(name, type=LIMITED, namespace=namespace)
    story.write("\n".join(f"S {name} 1" for name in names))
    story.write("\n".join(f"E {name} 1 done" for name in names))


def test_a_limit_that_was_kept_is_no_violation(story: Story) -> None:
    verdict = check(story.evidence)
    assert (verdict.violations, verdict.invalid) == ([], [])


def test_more_handlers_of_a_key_than_may_run_at_once_are_found(story: Story) -> None:
    too_many(story, "d", "e", "f")
    assert found(story) == {("I14", "other")}


def test_what_began_before_schedulers_can_have_heard_of_the_limit_does_not_count(
    story: Story,
) -> None:
    too_many(story, "d", "e", "f")
    began = min(runs[1].began for job, runs in story.evidence.ledger.runs.items() if job in "def")
    story.evidence.history[0]["end"] = began - UNKNOWN_SECONDS
    assert found(story) == {("I14", "other")}
    story.evidence.history[0]["end"] = began + UNKNOWN_SECONDS
    assert found(story) == set()


def test_each_key_and_each_namespace_has_its_own(story: Story) -> None:
    too_many(story, "d", "e", key="k2")
    too_many(story, "f", "g", namespace="red")
    assert found(story) == set()


def test_what_begins_when_another_ends_is_not_beside_it(story: Story) -> None:
    too_many(story, "d", "e")
    too_many(story, "f", "g")
    runs = story.evidence.ledger.runs
    runs["f"][1].began = runs["g"][1].began = max(runs[name][1].ended or 0 for name in "de")
    assert found(story) == set()


def test_whose_worker_lost_its_lease_has_no_place_any_more(story: Story) -> None:
    story.job("d", RESCUED, ledger="", limit_key="k")
    story.change("d", type=LIMITED)
    events = story.evidence.events["d"]
    events[:4] = [event._replace(worker="frozen") for event in events[:4]]
    events[1] = events[1]._replace(time=BEGAN + 1.5)
    story.write("S d 1\nS e 1\nS f 1\nE e 1 done\nE f 1 done\nS d 2\nE d 1 done\nE d 2 done")
    for name in "ef":
        story.job(name, RAN, ledger="", limit_key="k")
        story.change(name, type=LIMITED)
    assert check(story.evidence).word == "PASS"  # the others were counted, and reached the limit


def test_who_takes_work_by_another_name_has_lost_its_lease(story: Story) -> None:
    too_many(story, "d", "e", "f")
    events = story.evidence.events
    events["d"][1] = events["d"][1]._replace(worker="before", time=BEGAN + 1.5)
    assert check(story.evidence).word == "PASS"  # its process goes on as "w"


def test_what_ended_long_before_its_worker_lost_its_lease_counts(story: Story) -> None:
    too_many(story, "d", "e", "f")
    story.job("late", RESCUED, after=60)
    assert ("I14", "other") in found(story)


def test_a_limit_that_was_never_reached_proves_nothing(story: Story) -> None:
    story.evidence.history[0]["per_key"] = 3
    assert check(story.evidence).invalid == [f"the limit of {LIMITED} was never reached"]


def in_lanes(story: Story, *keys: str) -> None:
    """So many of a type with two limits at once, each with its key or without one."""
    limit = {"op": "limit", "type": LANE, "per_key": 2, "total": 3, "outcome": "ok"}
    story.evidence.history.append(limit)
    names = [f"lane-{number}" for number in range(len(keys))]
    for name, key in zip(names, keys, strict=True):
        story.job(name, RAN, ledger="", **({"limit_key": key} if key else {}))
        story.change(name, type=LANE)
    story.write("\n".join(f"S {name} 1" for name in names))
    story.write("\n".join(f"E {name} 1 done" for name in names))


def test_the_limit_of_a_type_is_for_all_of_them(story: Story) -> None:
    in_lanes(story, "k", "k", "")
    verdict = check(story.evidence)
    assert (verdict.violations, verdict.invalid) == ([], [])


@pytest.mark.parametrize(
    "keys", [("k", "k", "other", ""), ("k", "l", "m", "n"), ("", "", "", ""), ("k", "k", "k")]
)
def test_more_of_a_type_than_may_run_at_once_are_found(keys: tuple[str, ...], story: Story) -> None:
    in_lanes(story, *keys)
    assert found(story) == {("I14", "other")}


def test_the_limit_of_a_type_is_one_for_all_namespaces(story: Story) -> None:
    in_lanes(story, "k", "k", "", "")
    story.change("lane-3", namespace="red")
    story.evidence.history[-1]["namespace"] = "red"
    assert ("I14", "other") in found(story)


def test_limits_of_a_type_that_were_never_reached_prove_nothing(story: Story) -> None:
    in_lanes(story, "k", "")
    assert check(story.evidence).invalid == [
        f"the limit of {LANE} was never reached",
        f"the limit of all {LANE} was never reached",
    ]


def test_lots_for_lanes_have_some_with_a_key_and_some_without() -> None:
    book = OrderBook(7, "ledger", ("blue",), {"lane": 1})
    lots = list(book.lots(60, lambda: False))
    assert all(len(lot) > LANES and {order.type for order in lot} == {LANE} for lot in lots)
    assert {bool(order.limit_key) for lot in lots for order in lot} == {True, False}


def test_limited_jobs_come_in_lots_that_their_limit_does_not_hold() -> None:
    book = OrderBook(7, "ledger", ("blue",), {"limited": 1})
    for lot in book.lots(60, lambda: False):
        assert len(lot) > PER_KEY
        assert len({(order.type, order.limit_key) for order in lot}) == 1
        assert lot[0].type == LIMITED
        assert lot[0].limit_key
