"""Overlap policies: runs that met though they were not to, and times that got lost, are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.orders import OVERLAPPING
from tests.unit.chaos.story import BEGAN, RAN, Story

Break = Callable[[Story], object]
CANCELLED = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (6, 10, 1))
POLICIES = ("skip", "buffer_one", "buffer_all", "cancel_other")


def schedule(story: Story, policy: str, *waiting: float, next_: float, missed: int = 0) -> None:
    """One that was created a moment before the beginning, and fires every second."""
    said = {"op": "schedule.create", "name": policy, "outcome": "ok", "every": 1}
    story.evidence.history.append({**said, "overlap": policy, "input": policy})
    line = {"id": f"id-{policy}", "name": policy, "namespace": "blue", "paused": False}
    times = {"created": BEGAN - 0.5, "next": BEGAN + next_}
    line |= {**times, "missed": missed, "waiting": [BEGAN + time for time in waiting]}
    story.evidence.schedules.append(line)


def run(
    story: Story, policy: str, nominal: float, made: float, end: float, steps: Any = RAN
) -> None:
    """A run of it, by when it was made and ended."""
    name = f"{policy}-{nominal:g}"
    outcome = "done" if steps is RAN else "stop"
    text = f"S {name} 1 {policy}\nE {name} 1 {outcome}"
    story.job(name, steps, ledger=text)
    story.evidence.history.pop()
    said = {"schedule": f"id-{policy}", "nominal": BEGAN + nominal, "ref": ""}
    story.change(name, created=BEGAN + made, first_due=BEGAN + nominal, **said)
    times = [made, made + 0.1, made + 0.2, end]
    events = story.evidence.events[name]
    events[:] = [e._replace(time=BEGAN + t) for e, t in zip(events, times, strict=True)]


@pytest.fixture
def story() -> Story:
    """A schedule of each policy, two of whose runs were in the way of the next."""
    story = Story()
    schedule(story, "skip", next_=5, missed=2)
    run(story, "skip", 0, 0.1, 1.5)
    run(story, "skip", 2, 2.1, 3.5)
    run(story, "skip", 4, 4.1, 5.5)
    schedule(story, "buffer_one", 4, next_=5, missed=1)
    run(story, "buffer_one", 0, 0.1, 2.4)
    run(story, "buffer_one", 1, 2.6, 4.2)
    run(story, "buffer_one", 3, 4.4, 5.5)
    schedule(story, "buffer_all", 3, 4, next_=5)
    run(story, "buffer_all", 0, 0.1, 1.5)
    run(story, "buffer_all", 1, 1.6, 3.1)
    run(story, "buffer_all", 2, 3.3, 4.7)
    schedule(story, "cancel_other", next_=5, missed=1)
    run(story, "cancel_other", 0, 0.1, 0.9)
    run(story, "cancel_other", 1, 1.1, 3.15, CANCELLED)
    run(story, "cancel_other", 3, 3.1, 4.15, CANCELLED)
    run(story, "cancel_other", 4, 4.1, 5.5)
    return story


def settle(story: Story) -> None:
    """Handlers run when their rows say so."""
    for name, runs in story.evidence.ledger.runs.items():
        runs[1].began = story.evidence.events[name][1].time


def found(story: Story) -> set[tuple[str, str]]:
    settle(story)
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def test_honest_overlaps_are_no_violations(story: Story) -> None:
    settle(story)
    verdict = check(story.evidence)
    assert (verdict.violations, verdict.invalid) == ([], [])


def _line(story: Story, policy: str) -> dict[str, Any]:
    return next(line for line in story.evidence.schedules if line["name"] == policy)


def _end(story: Story, name: str, at: float) -> None:
    events = story.evidence.events[name]
    events[-1] = events[-1]._replace(time=BEGAN + at)


def _stall(story: Story, policy: str) -> None:
    """It leaves out everything from now on."""
    line = _line(story, policy)
    line["next"] += 60
    line["missed"] += 60 + len(line["waiting"])
    line["waiting"] = []


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "a run was made while the one before went on, though it was to be skipped": (
        lambda s: _end(s, "skip-0", 2.5),
        ("I14", "other"),
    ),
    "a run was made while the one before went on, though it was to wait": (
        lambda s: _end(s, "buffer_one-0", 3.0),
        ("I14", "other"),
    ),
    "a run was made while one in the line went on": (
        lambda s: _end(s, "buffer_all-1", 3.6),
        ("I14", "other"),
    ),
    "a run went on when the next one had begun, though it was to be cancelled": (
        lambda s: _end(s, "cancel_other-1", 3.6),
        ("I14", "other"),
    ),
    "a run never ended, and the next one was made": (
        lambda s: s.evidence.events["skip-0"].pop(),
        ("I14", "other"),
    ),
    "one in the line was made before its turn": (
        lambda s: [
            s.change("buffer_all-1", nominal=BEGAN + 2),
            s.change("buffer_all-2", nominal=BEGAN + 1),
        ],
        ("I14", "other"),
    ),
    "a time is gone": (lambda s: _line(s, "skip").update(missed=1), ("I13", "lost")),
    "a time that waited is gone": (
        lambda s: _line(s, "buffer_all").update(waiting=[BEGAN + 3]),
        ("I13", "lost"),
    ),
    "a time that was made is counted as left out, too": (
        lambda s: _line(s, "skip").update(missed=4),
        ("I13", "twins"),
    ),
    "a time was left out, though all were to wait": (
        lambda s: _line(s, "buffer_all").update(waiting=[BEGAN + 3], missed=1),
        ("I14", "lost"),
    ),
    "two wait, where one may": (
        lambda s: _line(s, "buffer_one").update(waiting=[BEGAN + 2, BEGAN + 4], missed=0),
        ("I14", "other"),
    ),
    "one waits, though it was to be skipped": (
        lambda s: _line(s, "skip").update(waiting=[BEGAN + 3], missed=1),
        ("I14", "other"),
    ),
    "a schedule skips for ever": (lambda s: _stall(s, "skip"), ("I14", "lost")),
    "a schedule leaves out for ever": (lambda s: _stall(s, "buffer_one"), ("I14", "lost")),
    "the newest time was left out": (
        lambda s: _line(s, "cancel_other").update(next=BEGAN + 6, missed=2),
        ("I14", "lost"),
    ),
    "cancelled, and nothing came after it": (
        lambda s: [
            run(s, "cancel_other", 5, 5.6, 6.5, CANCELLED),
            _line(s, "cancel_other").update(next=BEGAN + 6),
        ],
        ("I11", "lost"),
    ),
    "cancelled before the next one came": (
        lambda s: _end(s, "cancel_other-1", 2.5),
        ("I11", "lost"),
    ),
    "cancelled, though it was to be waited for": (
        lambda s: [
            run(s, "buffer_all", 3, 5, 6, CANCELLED),
            _line(s, "buffer_all").update(waiting=[BEGAN + 4]),
        ],
        ("I11", "lost"),
    ),
    "one time has two runs": (
        lambda s: s.change("skip-2", nominal=BEGAN),
        ("I13", "twins"),
    ),
    "a run was given the input of another schedule": (
        lambda s: setattr(s.evidence.ledger.of("skip-0")[1], "input", "buffer_all"),
        ("I8", "double"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_about_overlap_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


def test_times_that_come_late_together_overlap_each_other(story: Story) -> None:
    """Nobody fired for ten seconds: of all these times the first is run, or the last."""
    run(story, "skip", 5, 15.1, 16.5)
    _line(story, "skip").update(next=BEGAN + 16, missed=12)
    run(story, "cancel_other", 15, 15.1, 16.5)
    _line(story, "cancel_other").update(next=BEGAN + 16, missed=11)
    assert found(story) == set()


def test_an_end_may_be_seen_long_after_it_was_written(story: Story) -> None:
    """Its shard stood still before the commit, and went on with that and with the firing."""
    _line(story, "skip").update(next=BEGAN + 21, missed=18)
    assert found(story) == set()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_schedule_whose_runs_never_met_proves_nothing(policy: str) -> None:
    story = Story()
    schedule(story, policy, next_=2)
    run(story, policy, 0, 0.1, 0.5)
    run(story, policy, 1, 1.1, 1.5)
    settle(story)
    assert check(story.evidence).invalid == [f"no run of {policy} ever met another"]


def test_there_is_a_schedule_of_every_policy() -> None:
    assert {one.overlap for one in OVERLAPPING} == set(POLICIES)
