"""The transition table, held against a second one written down from the rules in words."""

from __future__ import annotations

from itertools import product

from services.mesh.jobs.states import (
    IN_FLIGHT,
    LIVE,
    TERMINAL,
    TRANSITIONS,
    Cause,
    JobState,
    allowed,
    is_terminal,
    sources_of,
)

S, D, R, B = JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING, JobState.BLOCKED


def test_states_have_the_numbers_of_the_wire():
    names = ["UNSPECIFIED", "SCHEDULED", "DISPATCHED", "RUNNING", "SUCCEEDED", "FAILED"]
    names += ["CANCELLED", "EXPIRED", "BLOCKED"]
    assert [JobState(number).name for number in range(9)] == names


def test_every_state_is_either_live_or_terminal():
    assert set(JobState) == LIVE | TERMINAL | {JobState.UNSPECIFIED}
    assert not LIVE & TERMINAL
    assert all(is_terminal(state) == (state in TERMINAL) for state in JobState)


def test_nothing_leaves_a_terminal_state():
    assert not [step for step in TRANSITIONS if step.source in TERMINAL]


def test_every_live_state_can_be_cancelled():
    assert sources_of(Cause.CANCELLED) == LIVE


def test_only_a_claim_dispatches_and_only_a_start_runs():
    assert {s.cause for s in TRANSITIONS if s.target is D} == {Cause.CLAIMED}
    assert {s.cause for s in TRANSITIONS if s.target is R} == {Cause.STARTED}
    assert sources_of(Cause.CLAIMED) == {S}
    assert sources_of(Cause.STARTED) == {D}


def test_a_sweep_takes_back_only_what_has_not_started():
    assert sources_of(Cause.SWEPT) == {D}
    assert sources_of(Cause.RESCUED) == IN_FLIGHT


def test_a_late_commit_succeeds_from_scheduled_only():
    steps = [step for step in TRANSITIONS if step.cause is Cause.LATE_COMMIT]
    assert [(step.source, step.target) for step in steps] == [(S, JobState.SUCCEEDED)]


def test_expiry_ends_only_what_waits():
    assert sources_of(Cause.EXPIRED) == {S, B}


def test_every_step_is_written_once_and_says_its_guard():
    keys = [(step.source, step.target, step.cause) for step in TRANSITIONS]
    assert len(set(keys)) == len(keys)
    assert all(step.guard for step in TRANSITIONS)


def test_allowed_is_the_table_and_nothing_else():
    legal = {(step.source, step.target, step.cause) for step in TRANSITIONS}
    for step in product([None, *JobState], JobState, Cause):
        assert allowed(*step) == (step in legal)


def test_every_state_can_be_reached_and_every_live_one_left():
    reached: set[JobState | None] = {None}
    for _ in JobState:
        reached |= {step.target for step in TRANSITIONS if step.source in reached}
    assert reached == set(JobState) - {JobState.UNSPECIFIED} | {None}
    assert {step.source for step in TRANSITIONS} == LIVE | {None}
