"""Nominal times: aligned to the epoch, never drifting, and missed ones that never wedge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.cron import Cron
from services.mesh.jobs.recurrence import (
    EPOCH,
    MOST_LOOKED_AT,
    MOST_RUNS_AT_ONCE,
    AnyOf,
    CatchUp,
    CatchUpPolicy,
    Interval,
    plan_firing,
    recurrence_from_json,
    recurrence_to_json,
)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TICK = timedelta(microseconds=1)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SPANS = st.integers(1_000, 400 * 86_400_000_000).map(lambda us: timedelta(microseconds=us))
INTERVALS = st.builds(Interval, SPANS, SPANS)


@given(INTERVALS, TIMES)
def test_nominal_times_are_multiples_of_the_interval_from_the_epoch(rule, time):
    assert (rule.next_after(time) - EPOCH - rule.phase) % rule.every == timedelta(0)


@given(INTERVALS, TIMES)
def test_next_is_after_and_latest_is_not(rule, time):
    latest, upcoming = rule.latest_until(time), rule.next_after(time)
    assert latest <= time < upcoming
    assert upcoming - latest == rule.every
    assert rule.next_after(upcoming - TICK) == upcoming
    assert rule.latest_until(upcoming) == upcoming


@given(INTERVALS, TIMES, st.integers(0, 50))
def test_counting_agrees_with_stepping(rule, time, steps):
    first = last = rule.next_after(time)
    for _ in range(steps):
        last = rule.next_after(last)
    assert rule.count_between(first, last) == steps + 1
    assert rule.count_between(first + TICK, last) == steps
    assert rule.count_between(last + TICK, last) == 0


def test_a_phase_shifts_the_hour():
    rule = Interval(HOUR, 5 * MINUTE)
    noon = datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert rule.next_after(noon) == noon + 5 * MINUTE


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="millisecond"):
        Interval(timedelta(0))


@given(INTERVALS)
def test_intervals_read_back_from_json(rule):
    assert recurrence_from_json(recurrence_to_json(rule)) == rule


def test_an_unknown_kind_of_recurrence_is_refused():
    with pytest.raises(ValueError, match="lunar"):
        recurrence_from_json({"kind": "lunar"})


@given(st.lists(INTERVALS, min_size=1, max_size=4), TIMES)
def test_several_rules_name_the_nearest_of_their_times(rules, time):
    union = AnyOf(tuple(rules))
    assert union.next_after(time) == min(rule.next_after(time) for rule in rules)
    assert union.latest_until(time) == max(rule.latest_until(time) for rule in rules)


def test_counting_looks_at_few_times_however_many_are_left_out(monkeypatch):
    rule = AnyOf((Interval(SECOND),), (Cron("* 1-59 * * * *"), Cron("1-59 0 * * * *")))
    looks: list[datetime] = []
    excludes = AnyOf._excludes
    monkeypatch.setattr(AnyOf, "_excludes", lambda self, t: looks.append(t) or excludes(self, t))
    begin = datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert rule.count_between(begin, begin + HOUR) == 2
    looks.clear()
    assert 1 <= rule.count_between(begin, begin + 240 * HOUR) <= 241
    assert len(looks) <= MOST_LOOKED_AT + 1


# --- what a due schedule does

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTELY = Interval(MINUTE)


def fire(mode: CatchUp, next_time: datetime, now: datetime, rule: Interval = MINUTELY):
    return plan_firing(rule, CatchUpPolicy(mode), next_time, now)


@pytest.mark.parametrize("mode", [CatchUp.SKIP, CatchUp.LAST, CatchUp.ALL])
def test_a_schedule_on_time_runs_once(mode):
    firing = fire(mode, NOON, NOON + SECOND)
    assert firing.nominal_times == (NOON,)
    assert firing.next_time == NOON + MINUTE
    assert firing.missed == 0


def test_nothing_runs_before_its_time():
    firing = fire(CatchUp.LAST, NOON, NOON - TICK)
    assert (firing.nominal_times, firing.next_time) == ((), NOON)


def test_by_default_only_the_newest_missed_time_runs():
    firing = fire(CatchUp.LAST, NOON, NOON + 30 * MINUTE + SECOND)
    assert firing.nominal_times == (NOON + 30 * MINUTE,)
    assert firing.next_time == NOON + 31 * MINUTE
    assert firing.missed == 30


def test_skip_runs_none_that_is_later_than_the_grace():
    hourly = Interval(HOUR)
    firing = fire(CatchUp.SKIP, NOON, NOON + 5 * MINUTE, hourly)
    assert (firing.nominal_times, firing.missed) == ((), 1)
    assert firing.next_time == NOON + HOUR


def test_nothing_older_than_the_window_runs():
    daily = Interval(timedelta(days=1), 12 * HOUR)
    firing = fire(CatchUp.LAST, NOON, NOON + 2 * HOUR, daily)
    assert (firing.nominal_times, firing.missed) == ((), 1)


def test_all_runs_each_within_the_window_in_order():
    firing = fire(CatchUp.ALL, NOON - 3 * HOUR, NOON)
    assert firing.nominal_times == tuple(NOON - HOUR + n * MINUTE for n in range(61))
    assert firing.missed == 120


def test_all_is_capped_and_goes_on_where_it_stopped():
    secondly = Interval(SECOND)
    first = fire(CatchUp.ALL, NOON, NOON + 10 * MINUTE, secondly)
    assert len(first.nominal_times) == MOST_RUNS_AT_ONCE
    assert first.missed == 0
    second = fire(CatchUp.ALL, first.next_time, NOON + 10 * MINUTE, secondly)
    assert second.nominal_times[0] == first.nominal_times[-1] + SECOND


@given(
    INTERVALS,
    st.builds(CatchUpPolicy, st.sampled_from([CatchUp.SKIP, CatchUp.LAST, CatchUp.ALL]), SPANS),
    TIMES,
    st.integers(0, 10**15).map(lambda us: timedelta(microseconds=us)),
)
def test_firing_always_gets_ahead_and_accounts_for_every_time(rule, policy, time, late):
    next_time = rule.next_after(time)
    now = next_time + late
    firing = plan_firing(rule, policy, next_time, now)
    assert firing.next_time is not None
    assert all(next_time <= nominal <= now for nominal in firing.nominal_times)
    passed = rule.count_between(next_time, firing.next_time - TICK)
    assert passed == len(firing.nominal_times) + firing.missed
    assert passed >= 1
    if len(firing.nominal_times) < MOST_RUNS_AT_ONCE:
        assert firing.next_time > now
