"""Retry decisions: bounded waits, bounded attempts, and losses that cost nothing up to a budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.retry import (
    DEFAULT_POLICY,
    LOSS_BUDGET,
    Backoff,
    Failure,
    FailureKind,
    GiveUp,
    NoCost,
    Retry,
    RetryPolicy,
    backoff,
    decide,
)

SECOND = timedelta(seconds=1)
NOW = timedelta(0)
DELAYS = st.integers(0, 86_400_000).map(lambda ms: timedelta(milliseconds=ms))
LONG = st.integers(0, 30 * 86_400_000).map(lambda ms: timedelta(milliseconds=ms))
SEED = st.integers(0, 1 << 32).map(Random)
TYPES = st.frozensets(st.sampled_from(["ValueError", "KeyError", "OSError"]))
EXITS = st.frozensets(st.integers(-2, 2))
POLICIES = st.builds(
    RetryPolicy,
    kind=st.sampled_from(Backoff),
    max_attempts=st.integers(0, 1000),
    initial_delay=DELAYS,
    max_delay=LONG,
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    delays=st.lists(LONG, max_size=5).map(tuple),
    window=st.none() | LONG,
    non_retryable=TYPES,
    retryable=TYPES,
    non_retryable_exits=EXITS,
    retryable_exits=EXITS,
)
FAILURES = st.builds(
    Failure,
    type=st.sampled_from(["ValueError", "OSError"]),
    message=st.text(max_size=5),
    kind=st.sampled_from(FailureKind),
    exit_code=st.none() | st.integers(-3, 3),
)
ERROR = Failure("OSError", "no")
LOST = Failure("WorkerLost", "gone", kind=FailureKind.LOST)


@given(POLICIES, st.integers(1, 2000), SEED)
def test_a_wait_is_never_negative_nor_above_the_maximum(policy, attempt, random):
    assert timedelta(0) <= backoff(policy, attempt, random) <= policy.max_delay


@given(POLICIES, st.integers(1, 200), SEED)
def test_waits_never_shrink_without_jitter(policy, attempt, random):
    policy = replace(policy, jitter=0.0, delays=tuple(sorted(policy.delays)))
    assert backoff(policy, attempt, random) <= backoff(policy, attempt + 1, random)


@given(POLICIES, st.integers(1, 50), SEED)
def test_jitter_stays_within_its_fraction(policy, attempt, random):
    exact = backoff(replace(policy, jitter=0.0), attempt, random)
    wait = backoff(policy, attempt, random)
    slack = timedelta(microseconds=2)
    assert exact * (1 - policy.jitter) - slack <= wait <= exact * (1 + policy.jitter) + slack


def test_jitter_spreads_waits_over_the_whole_range():
    policy = RetryPolicy(Backoff.FIXED, 5, initial_delay=100 * SECOND, jitter=0.5)
    random = Random(4)
    waits = [backoff(policy, 1, random).total_seconds() for _ in range(2000)]
    assert min(waits) < 52
    assert max(waits) > 148
    assert 97 < sum(waits) / len(waits) < 103


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(Backoff.FIXED, 9, initial_delay=SECOND), [1, 1, 1]),
        (RetryPolicy(Backoff.LINEAR, 9, initial_delay=2 * SECOND), [2, 4, 6]),
        (RetryPolicy(Backoff.EXPONENTIAL, 9, initial_delay=SECOND, factor=3), [1, 3, 9]),
        (RetryPolicy(Backoff.EXPONENTIAL, 9, SECOND, max_delay=5 * SECOND, factor=3), [1, 3, 5]),
        (RetryPolicy(Backoff.LIST, 9, delays=(7 * SECOND, 3 * SECOND)), [7, 3, 3]),
        (RetryPolicy(Backoff.LIST, 9), [0, 0, 0]),
    ],
)
def test_waits_of_each_kind(policy, waits):
    found = [backoff(policy, attempt, Random(1)).total_seconds() for attempt in (1, 2, 3)]
    assert found == waits


@given(POLICIES, FAILURES, SEED)
def test_a_job_never_has_more_attempts_than_its_policy_grants(policy, failure, random):
    attempt, losses, starts = 1, 0, 1
    while not isinstance(decision := decide(policy, attempt, losses, failure, random, NOW), GiveUp):
        if isinstance(decision, NoCost):
            losses += 1
        else:
            attempt += 1
        starts += 1
        assert attempt <= policy.attempts
        assert starts <= policy.attempts + LOSS_BUDGET


def test_without_a_policy_a_failure_is_final():
    assert DEFAULT_POLICY.attempts == 1
    assert isinstance(decide(DEFAULT_POLICY, 1, 0, ERROR, Random(1), NOW), GiveUp)


def test_kind_none_grants_one_attempt_whatever_the_count_says():
    assert RetryPolicy(Backoff.NONE, 5).attempts == 1


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.INFRASTRUCTURE])
def test_losses_cost_nothing_up_to_the_budget_and_then_spend_attempts(kind):
    failure = Failure("X", "", kind=kind)
    policy = RetryPolicy(Backoff.FIXED, 2)
    fates = [decide(policy, 1, losses, failure, Random(1), NOW) for losses in range(5)]
    assert [type(fate) for fate in fates] == [NoCost] * LOSS_BUDGET + [Retry] * 2
    assert isinstance(decide(policy, 2, LOSS_BUDGET, failure, Random(1), NOW), GiveUp)


def test_a_lost_worker_delays_its_jobs_no_further():
    assert decide(DEFAULT_POLICY, 1, 0, LOST, Random(1), NOW) == NoCost(timedelta(0))


def test_a_dependency_that_is_away_is_given_more_time_each_time():
    away = Failure("S3", "", kind=FailureKind.INFRASTRUCTURE)
    fates = [decide(DEFAULT_POLICY, 1, losses, away, Random(1), NOW) for losses in range(3)]
    assert fates == [NoCost(SECOND), NoCost(2 * SECOND), NoCost(4 * SECOND)]


def test_permanent_and_listed_failures_end_the_job_at_once():
    policy = RetryPolicy(Backoff.FIXED, 9, non_retryable=frozenset({"OSError"}))
    assert isinstance(decide(policy, 1, 0, ERROR, Random(1), NOW), GiveUp)
    permanent = Failure("X", "", kind=FailureKind.PERMANENT)
    assert isinstance(decide(policy, 1, 0, permanent, Random(1), NOW), GiveUp)


@pytest.mark.parametrize(
    ("rules", "exit_code", "goes_on"),
    [
        ({"retryable": {"OSError"}}, None, True),
        ({"retryable": {"KeyError"}}, None, False),
        ({"retryable": {"OSError"}, "non_retryable": {"OSError"}}, None, False),
        ({"non_retryable_exits": {2}}, 2, False),
        ({"non_retryable_exits": {2}}, 3, True),
        ({"non_retryable_exits": {2}}, None, True),
        ({"retryable_exits": {75}}, 75, True),
        ({"retryable_exits": {75}}, 1, False),
        ({"retryable_exits": {75}}, 0, False),
        ({"retryable_exits": {75}}, None, True),
        ({"retryable_exits": {75}, "retryable": {"KeyError"}}, 75, False),
        ({"retryable_exits": {-9}}, -9, True),
    ],
)
def test_types_and_exit_codes_choose_what_is_tried_again(rules, exit_code, goes_on):
    lists = {name: frozenset(rule) for name, rule in rules.items()}
    policy = RetryPolicy(Backoff.FIXED, 9, **lists)
    fate = decide(policy, 1, 0, replace(ERROR, exit_code=exit_code), Random(1), NOW)
    assert isinstance(fate, Retry) is goes_on


@given(POLICIES, FAILURES, SEED)
def test_whatever_is_tried_again_passed_every_rule(policy, failure, random):
    if isinstance(decide(policy, 1, 0, failure, random, NOW), Retry):
        assert failure.type not in policy.non_retryable
        assert not policy.retryable or failure.type in policy.retryable
        assert failure.exit_code not in policy.non_retryable_exits
        assert not policy.retryable_exits or failure.exit_code in {None, *policy.retryable_exits}


def test_a_loss_is_not_measured_by_the_lists_of_what_is_retryable():
    policy = RetryPolicy(
        Backoff.FIXED, 9, retryable=frozenset({"OSError"}), retryable_exits=frozenset({1})
    )
    lost = replace(LOST, exit_code=-9)
    assert isinstance(decide(policy, 1, 0, lost, Random(1), NOW), NoCost)
    assert isinstance(decide(policy, 1, LOSS_BUDGET, lost, Random(1), NOW), Retry)


def test_a_policy_without_the_newer_rules_is_stored_as_it_always_was():
    assert set(RetryPolicy().to_json()) == {
        "kind", "attempts", "max_attempts", "initial_ms", "max_ms", "factor", "jitter",
        "delays_ms", "window_ms", "non_retryable",
    }  # fmt: skip


def test_no_retry_begins_after_the_window():
    policy = RetryPolicy(Backoff.FIXED, 9, initial_delay=10 * SECOND, window=60 * SECOND)
    assert isinstance(decide(policy, 1, 0, ERROR, Random(1), 50 * SECOND), Retry)
    assert isinstance(decide(policy, 1, 0, ERROR, Random(1), 51 * SECOND), GiveUp)


@given(POLICIES)
def test_policies_read_back_from_json(policy):
    assert RetryPolicy.from_json(policy.to_json()) == policy


@given(FAILURES)
def test_failures_read_back_from_json(failure):
    assert Failure.from_json(failure.to_json()) == failure


def test_a_failure_of_a_newer_version_is_read_as_far_as_known():
    assert Failure.from_json({"type": "E", "shade": "red"}) == Failure("E", "")
