"""Exclusions: what they leave out is passed over quickly, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mesh.jobs.cron import Cron, DstGap, DstOverlap
from services.mesh.jobs.planning import has_times
from services.mesh.jobs.recurrence import AnyOf, Interval, Rule
from services.mesh.jobs.schedules import Definition, JobTemplate

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)

RULES = st.sampled_from(
    ["*/20 * * * *", "30 0,2,3 * * *", "59 23 * * *", "7 */10 * * * *", "0 1,2 * * SUN"]
)
LEFT_OUT = st.sampled_from(
    [
        *("* * * * *", "* * * * * *", "* 1-3 * * *", "*/10 * 28,31 * *", "30 2,3 * * *"),
        *("* * * 3 *", "* * * * SUN", "0 * * * *"),
    ]
)
#: Clocks change at two, at midnight, by half an hour, and by a whole day.
PLACES = st.sampled_from(
    [
        ("Europe/Berlin", datetime(2027, 3, 27, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2027, 10, 30, tzinfo=UTC)),
        ("America/Havana", datetime(2027, 3, 13, tzinfo=UTC)),
        ("America/Havana", datetime(2027, 11, 6, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2027, 4, 3, tzinfo=UTC)),
        ("Pacific/Apia", datetime(2011, 12, 29, tzinfo=UTC)),
    ]
)


@settings(max_examples=40)
@given(
    rule=st.one_of(RULES, st.sampled_from([7 * MINUTE, 90 * SECOND])),
    expressions=st.lists(LEFT_OUT, min_size=1, max_size=2),
    place=PLACES,
    abroad=st.booleans(),
    gap=st.sampled_from(list(DstGap)[1:]),
    overlap=st.sampled_from(list(DstOverlap)[1:]),
)
def test_a_search_passes_over_what_is_left_out_and_nothing_else(
    rule: str | timedelta,
    expressions: list[str],
    place: tuple[str, datetime],
    abroad: bool,
    gap: DstGap,
    overlap: DstOverlap,
) -> None:
    zone, start = place
    own = "Asia/Kolkata" if abroad else zone
    first: Rule = Cron(rule, own, gap, overlap) if isinstance(rule, str) else Interval(rule)
    left_out = tuple(Cron(expression, zone, gap, overlap) for expression in expressions)
    end = start + timedelta(days=2)
    every = AnyOf((first,)).between(start, end)
    expected = [time for time in every if not any(cron.names(time) for cron in left_out)]
    assert list(AnyOf((first,), left_out).between(start, end)) == expected


def made(rule: Rule, *left_out: str) -> Definition:
    return Definition((rule,), JobTemplate("echo"), exclusions=tuple(map(Cron, left_out)))


@pytest.mark.parametrize(
    "definition",
    [
        made(Cron("0 9 * * *"), "* * * * *"),
        made(Cron("* * * * *"), "* * * * *"),
        made(Cron("*/5 * * * *"), "*/5 * * * *"),
        made(Cron("* * * * * *"), "* * * * * *"),
        made(Interval(MINUTE), "* * * * *"),
        made(Interval(SECOND), "* * * * * *"),
    ],
    ids=str,
)
def test_exclusions_that_leave_nothing_are_told_in_a_moment(definition: Definition) -> None:
    began = process_time()
    assert not has_times(definition, NOW)
    assert process_time() - began < 2  # of the processor: seconds of work, not of waiting


def test_a_long_rest_is_not_taken_for_an_end() -> None:
    assert has_times(made(Cron("* * * * * *"), "* * * * 1-11 *"), datetime(2027, 1, 1, tzinfo=UTC))
    assert has_times(made(Cron("* * * * * *"), "* * 1-22 * * *"), NOW)
