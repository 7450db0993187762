"""The checker finds each violation in a history made by hand, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.evidence import Row
from tests.chaos.verdict import Verdict
from tests.unit.chaos.story import RAN, RESCUED, Story

Break = Callable[[Story], object]


def told(story: Story) -> Verdict:
    return check(story.evidence)


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in told(story).violations}


@pytest.fixture
def story() -> Story:
    """Jobs that ended in every honest way."""
    story = Story()
    story.job("a")
    story.job("b", ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1)), fails=99)
    cancelled = ((1, 1, 0), (2, 2, 1), (6, 10, 1))
    story.job("c", cancelled)
    story.op("cancel", "c", cancelled=True, state=6)
    story.job("d", ((1, 1, 0), (7, 11, 0)), expires=True)
    retried = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 5, 1), *RESCUED[4:])
    story.job("e", retried, attempts=3, fails=1)
    late = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 9, 1), (4, 16, 1))
    story.job("f", late)
    story.tell("g", "unknown", job="")
    story.tell("h", "fail", job="")
    return story


def test_honest_ends_are_no_violations(story: Story) -> None:
    verdict = told(story)
    assert verdict.violations == []
    assert (verdict.word, verdict.exit_code, verdict.jobs) == ("PASS", 0, 6)


def _lose(story: Story) -> None:
    story.evidence.rows[:] = [row for row in story.evidence.rows if row.id != "a"]


def _copy(story: Story, **fields: object) -> None:
    row = next(row for row in story.evidence.rows if row.id == "a")
    story.evidence.rows.append(replace(row, **fields))  # type: ignore[arg-type]
    if "id" in fields:
        other = str(fields["id"])
        story.evidence.events[other] = story.evidence.events["a"]
        story.write(f"S {other} 1\nE {other} 1 done")
        story.change(other, output=f'{{"job": "{other}", "fence": 1}}'.encode())


def _end_again(story: Story) -> None:
    events = story.evidence.events["a"]
    events.append(events[-1]._replace(version=5))
    story.change("a", version=5)


def _rewrite(job: str, version: int, **fields: Any) -> Break:
    def broken(story: Story) -> None:
        events = story.evidence.events[job]
        events[version - 1] = events[version - 1]._replace(**fields)

    return broken


def _large(key: str, **said: object) -> Break:
    def broken(story: Story) -> None:
        story.change("a", output=None, output_ref={"key": key, "sha256": "aa"})
        if said:
            story.evidence.objects[key] = {"job": "a", "fence": 1, "sha256": "aa", **said}

    return broken


def _ended_before(story: Story) -> None:
    row = next(row for row in story.evidence.rows if row.id == "a")
    story.evidence.earlier["a"] = replace(row, state=5)


def _skip_version(story: Story) -> None:
    del story.evidence.events["a"][1]


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "an acknowledged job is in no shard": (_lose, ("I1", "lost")),
    "a job is on two shards": (lambda s: _copy(s, shard="s1"), ("I1", "twins")),
    "a submission became two jobs": (lambda s: _copy(s, id="z"), ("I1", "twins")),
    "a job that nobody submitted": (lambda s: _copy(s, id="z", ref="?"), ("I1", "twins")),
    "a refused job is stored": (lambda s: _copy(s, id="z", ref="ref-h"), ("I1", "twins")),
    "a key was acknowledged twice": (lambda s: s.tell("a", job="z"), ("I2", "twins")),
    "a key is that of two jobs": (
        lambda s: [s.change(name, key="k") for name in "ab"],
        ("I2", "twins"),
    ),
    "it is in another namespace": (lambda s: s.change("a", namespace="red"), ("I19", "other")),
    "it ended twice": (_end_again, ("I3", "double")),
    "its end changed later": (_ended_before, ("I3", "double")),
    "a version is missing": (_skip_version, ("I4", "gaps")),
    "the row is behind its events": (lambda s: s.change("a", version=3), ("I4", "gaps")),
    "an illegal step": (_rewrite("a", 3, reason=4), ("I4", "other")),
    "a success without a start": (_rewrite("a", 3, state=1, reason=7), ("I4", "other")),
    "a commit with an older fence": (_rewrite("e", 7, fence=1), ("I5", "double")),
    "the row's fence is not that of its claims": (
        lambda s: s.change("a", fence=2),
        ("I5", "other"),
    ),
    "an effect of a later dispatch than the result": (
        lambda s: s.write("S a 2\nE a 2 done"),
        ("I6", "double"),
    ),
    "the output is another attempt's": (
        lambda s: s.change("a", output=b'{"job": "a", "fence": 9}'),
        ("I6", "double"),
    ),
    "succeeded, but no handler did": (
        lambda s: s.job("x", ledger=""),
        ("I8", "double"),
    ),
    "its output object does not exist": (_large("blue/outputs/a/1/x"), ("I8", "lost")),
    "its output object has other bytes": (
        _large("blue/outputs/a/1/x", sha256="bb"),
        ("I8", "lost"),
    ),
    "its output object is under another fence": (
        _large("blue/outputs/a/2/x", fence=1),
        ("I8", "double"),
    ),
    "it began before its time": (lambda s: s.change("a", first_due=5000.0), ("I10", "other")),
    "cancelled, they said": (
        lambda s: s.op("cancel", "a", cancelled=True, state=6),
        ("I11", "double"),
    ),
    "ended otherwise, they said": (
        lambda s: s.op("cancel", "a", cancelled=False, state=5),
        ("I11", "double"),
    ),
    "cancelled, and nobody asked": (
        lambda s: s.job("x", ((1, 1, 0), (6, 10, 0))),
        ("I11", "lost"),
    ),
    "expired without an expire time": (
        lambda s: s.job("x", ((1, 1, 0), (7, 11, 0))),
        ("I11", "lost"),
    ),
    "failed with attempts left": (
        lambda s: s.job("x", ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1)), attempts=3, fails=99),
        ("I12", "lost"),
    ),
    "failed after one lost worker": (
        lambda s: s.job("x", ((1, 1, 0), (2, 2, 1), (5, 9, 1))),
        ("I12", "lost"),
    ),
    "failed, though its handler did not": (
        lambda s: s.job("x", ((1, 1, 0), (2, 2, 1), (3, 3, 1), (5, 6, 1)), ledger="S x 1"),
        ("I12", "other"),
    ),
    "succeeded, though its handler cannot": (
        lambda s: s.job("x", RAN, fails=99),
        ("I12", "double"),
    ),
    "more attempts than it has": (lambda s: s.change("a", attempt=2), ("I12", "other")),
    "a dispatch ran that the row does not know": (lambda s: s.write("S a 2"), ("I15", "other")),
    "a dispatch was started twice": (lambda s: s.write("S a 1"), ("I15", "double")),
    "an acknowledged job was not found": (
        lambda s: s.op("get", "a", outcome="fail"),
        ("I17", "lost"),
    ),
    "a client saw an older version": (
        lambda s: [s.op("get", "a", version=version) for version in (3, 2)],
        ("I17", "gaps"),
    ),
    "a whole list is not whole": (
        lambda s: s.op("list", "a", lot="lot", jobs=["b"], partial=False),
        ("I18", "gaps"),
    ),
    "still open": (lambda s: s.job("x", ((1, 1, 0),)), ("I22", "stuck")),
    "its input is gone": (lambda s: s.change("a", input_ref={"key": "k"}), ("I26", "lost")),
    "a service ended by itself": (lambda s: s.evidence.deaths.append("u"), ("I28", "other")),
    "a lock was left behind": (lambda s: s.evidence.locks.append("k"), ("I27", "other")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_is_found(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)
    assert told(story).exit_code == 1


# --- zombies


def test_a_zombie_that_was_fenced_is_counted_and_is_no_violation(story: Story) -> None:
    story.job("z", RESCUED, ledger="S z 1\nS z 2\nE z 1 done\nE z 2 done")
    verdict = told(story)
    assert (verdict.word, verdict.zombies, verdict.fenced) == ("PASS", 1, 1)


def test_a_zombie_that_commits_is_a_double_commit(story: Story) -> None:
    steps = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 9, 1), (2, 2, 2), (3, 3, 2), (4, 4, 1))
    story.job("z", steps, ledger="S z 1\nS z 2\nE z 1 done\nE z 2 done")
    verdict = told(story)
    assert (verdict.zombies, verdict.fenced) == (1, 0)
    assert {("I7", "double"), ("I5", "double")} <= found(story)


# --- schedules


def _schedule(story: Story, *times: float) -> None:
    story.evidence.schedules.append(
        {"id": "s", "name": "every-second", "created": 1000.5, "missed": 0}
    )
    pause = {"op": "schedule.pause", "name": "every-second", "begin": 1008.0}
    story.evidence.history.append(pause)
    for number, time in enumerate(times):
        story.job(f"tick-{number}")
        story.change(f"tick-{number}", schedule="s", nominal=time, first_due=0.0)


def test_a_nominal_time_with_one_job_each_is_fine(story: Story) -> None:
    _schedule(story, 1001, 1002, 1003, 1004, 1005)
    assert found(story) <= {("I1", "lost")}  # ticks are not submitted by anyone


def test_a_missing_nominal_time_is_found(story: Story) -> None:
    _schedule(story, 1001, 1002, 1004, 1005)
    assert ("I13", "lost") in found(story)


def test_a_doubled_nominal_time_is_found(story: Story) -> None:
    _schedule(story, 1001, 1002, 1003, 1003, 1004, 1005)
    assert ("I13", "twins") in found(story)


# --- watches


def _all(story: Story, row: Row) -> list[tuple[str, int, int]]:
    return [(row.id, event.version, event.state) for event in story.evidence.events[row.id]]


def test_watchers_that_heard_everything_once_are_fine(story: Story) -> None:
    heard = [item for row in story.evidence.rows for item in _all(story, row)]
    story.watch("all", *heard)
    story.watch("some", ("a", 2, 2), ("a", 3, 3), ("a", 4, 4), ids=["a"])
    assert told(story).violations == []


@pytest.mark.parametrize(
    "versions", [(1, 2, 4), (1, 2, 2, 3, 4), (1, 3, 2, 4), (1, 2, 3), (2, 3, 4), ()]
)
def test_a_gap_a_repetition_or_a_missing_end_is_found(
    story: Story, versions: tuple[int, ...]
) -> None:
    others = [item for row in story.evidence.rows if row.id != "a" for item in _all(story, row)]
    story.watch("all", *others, *[("a", version, version) for version in versions])
    assert found(story) == {("I16", "gaps")}


def test_a_watch_of_ids_that_never_heard_the_end_is_found(story: Story) -> None:
    story.watch("some", ("a", 1, 1), ids=["a"])
    assert found(story) == {("I16", "gaps")}


def test_a_refused_token_is_a_gap(story: Story) -> None:
    story.watch("some", *_all(story, story.evidence.rows[0]), ids=["a"])
    line = {"watcher": "some", "at": 3.0, "error": "token refused: RESUME_TOKEN_EXPIRED"}
    story.evidence.watches.append(line)
    assert found(story) == {("I16", "gaps")}


def test_an_event_of_another_namespace_is_found(story: Story) -> None:
    story.job("r", namespace="red")
    story.change("r", namespace="red")
    story.watch("some", ("r", 4, 4), ids=["r"])
    assert found(story) == {("I19", "other")}


# --- coverage


def test_a_run_whose_faults_did_not_fire_under_load_is_invalid(story: Story) -> None:
    story.evidence.plan = {"kinds": ["kill.worker", "kill.nats"]}
    story.evidence.faults = [
        {"kind": "kill.worker", "in_flight": 3},
        {"kind": "kill.nats", "in_flight": 0},
    ]
    verdict = told(story)
    assert (verdict.word, verdict.exit_code) == ("INVALID", 2)
    assert len(verdict.invalid) == 1


def test_a_run_in_which_no_job_was_handed_out_as_it_was_stored_is_invalid(story: Story) -> None:
    story.evidence.plan = {"kinds": [], "handed": True}
    assert check(story.evidence).invalid == ["no job was handed out as it was stored"]
    created, claimed, *rest = story.evidence.events["a"]
    story.evidence.events["a"] = [created, claimed._replace(time=created.time), *rest]
    assert check(story.evidence).invalid == []


def test_a_run_that_should_have_zombies_and_has_none_is_invalid(story: Story) -> None:
    story.evidence.plan = {"kinds": [], "zombies": True}
    assert told(story).word == "INVALID"


def test_a_violation_weighs_more_than_a_missing_fault(story: Story) -> None:
    story.evidence.plan = {"kinds": ["kill.nats"]}
    _lose(story)
    assert told(story).word == "FAIL"
