"""Crashes, victims and the trail of decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from services.scaler.domain.crashes import CLEAN, FIRST_PAUSE, LONGEST_PAUSE
from services.scaler.domain.decision import Decision, PoolStatus, Reason, Trail
from services.scaler.domain.fleet import Candidate, Fleet, Worker, choose_victims

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_pause_doubles_with_each_round_up_to_its_ceiling() -> None:
    record, pauses = CLEAN, []
    for round_ in range(12):
        at = later(round_ * 100)
        record = record.after_crash(at, at, "exit code 1")
        assert record.retry_at is not None
        pauses.append(record.retry_at - at)
    assert pauses[:4] == [FIRST_PAUSE * factor for factor in (1, 2, 4, 8)]
    assert pauses[-1] == LONGEST_PAUSE


def test_workers_started_together_fail_as_one_round() -> None:
    record = CLEAN
    for moment in (1.0, 1.1, 1.2, 1.3):
        record = record.after_crash(NOON, later(moment), "exit code 1")
    assert record.rounds == 1
    assert record.after_crash(later(2), later(3), "exit code 1").rounds == 2


def test_a_clock_that_is_set_back_does_not_prolong_the_pause() -> None:
    record = CLEAN.after_crash(NOON, NOON, "exit code 1")
    assert record.start_limit(NOON, starting=0) == 0
    assert record.start_limit(later(-3600), starting=0) == 1
    assert record.start_limit(later(-3600), starting=1) == 0


def test_registration_lifts_the_hold_but_a_crash_after_it_still_counts() -> None:
    record = CLEAN.after_crash(NOON, NOON, "exit code 1").after_registration()
    assert record.retry_at is None
    again = record.after_crash(later(1), later(2), "killed by signal 9")
    assert (again.rounds, again.retry_at) == (2, later(2) + 2 * FIRST_PAUSE)


def test_clean_record_holds_nothing_back() -> None:
    assert CLEAN.start_limit(NOON, starting=3) is None
    assert CLEAN.after_registration() is CLEAN


def candidate(name: str, running: int | None, age: float = 0) -> Candidate:
    return Candidate(Worker(name, {"t": 1}, started_at=later(-age)), running)


def chosen(candidates: list[Candidate], count: int) -> list[str]:
    return [worker.worker_id for worker in choose_victims(candidates, count)]


def test_idle_workers_go_first_then_those_with_least_in_hand() -> None:
    crew = [candidate("busy", 5), candidate("idle", 0), candidate("some", 2)]
    assert chosen(crew, 3) == ["idle", "some", "busy"]
    assert chosen(crew, 1) == ["idle"]


def test_worker_that_does_not_answer_goes_last() -> None:
    assert chosen([candidate("silent", None), candidate("busy", 50)], 1) == ["busy"]


def test_youngest_goes_among_equals() -> None:
    assert chosen([candidate("old", 0, 60), candidate("new", 0, 1)], 1) == ["new"]


def test_nobody_goes_when_nobody_has_to() -> None:
    assert chosen([candidate("idle", 0)], -1) == []


def decision(desired: int, reason: Reason = Reason.STEADY, backlog: int = 0) -> Decision:
    return Decision(
        desired=desired, previous=0, reason=reason, explanation="", time=NOON, backlog=backlog
    )


def test_trail_keeps_the_last_different_decisions_newest_first() -> None:
    trail = Trail(limit=3)
    for desired in (0, 1, 1, 2, 3):
        trail.add(decision(desired))
    assert [d.desired for d in trail.newest_first()] == [3, 2, 1]


def test_trail_takes_newer_numbers_of_the_same_decision_over() -> None:
    trail = Trail([decision(1, backlog=5)])
    assert not trail.add(decision(1, Reason.COOLDOWN, backlog=7))
    assert [d.backlog for d in trail.newest_first()] == [7]


def test_status_is_news_when_a_count_or_the_decision_changes() -> None:
    status = PoolStatus(Fleet(live=1), decision(1), ())
    assert status.same_news(replace(status, decision=decision(1, backlog=9)))
    assert not status.same_news(replace(status, fleet=Fleet(live=2)))
    assert not status.same_news(replace(status, decision=decision(1, Reason.MANUAL)))


def test_changes_and_unusual_reasons_are_noteworthy() -> None:
    assert decision(1).noteworthy
    assert decision(0, Reason.CRASH_LOOP).noteworthy
    assert not decision(0, Reason.AT_REST).noteworthy
