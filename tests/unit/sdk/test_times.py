"""Spans, instants and retry policies as people write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from jobmesh import Retry
from jobmesh.cli.options import parse_past
from jobmesh.times import human, instant, seconds

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (5, 5),
        (0.5, 0.5),
        ("30s", 30),
        ("1h30m", 5400),
        ("2 d", 172800),
        ("250ms", 0.25),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_span_is_read(span: float | str | timedelta, expected: float) -> None:
    assert seconds(span) == expected


@pytest.mark.parametrize("span", ["", "5", "5x", "m5", "1h-3m", True, None])
def test_what_is_no_span_is_refused_with_an_example(span: object) -> None:
    with pytest.raises(ValueError, match="is not a span: use"):
        seconds(span)  # type: ignore[arg-type]


@pytest.mark.parametrize("span", [math.inf, math.nan, 10**400, "9" * 400 + "s", "99999999999w"])
def test_a_span_that_nobody_lives_to_see_is_refused(span: float | str) -> None:
    with pytest.raises(ValueError, match="is not a span: it is longer"):
        seconds(span)


@pytest.mark.parametrize("text", ["in 9000000d", "in 3652000d", "0001-01-01T00:00+14:00"])
def test_a_time_that_no_calendar_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (time|span)"):
        instant(text, NOW)
    with pytest.raises(ValueError, match="is no time in the past"):
        parse_past(text.removeprefix("in "))


def test_an_instant_is_iso_or_relative() -> None:
    assert instant("in 5m", NOW) == NOW + timedelta(minutes=5)
    assert instant("now", NOW) == NOW
    assert instant("2026-12-24T18:00+01:00", NOW) == datetime(2026, 12, 24, 17, tzinfo=UTC)
    assert instant("2026-12-24T18:00", NOW).tzinfo is UTC
    with pytest.raises(ValueError, match="is not a time: use"):
        instant("tomorrow-ish", NOW)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0.0071, "7 ms"),
        (3.24, "3.2 s"),
        (310, "5m 10s"),
        (7500, "2h 05m"),
        (273600, "3d 04h"),
        (-2, "-2.0 s"),
    ],
)
def test_a_span_is_said_briefly(span: float, text: str) -> None:
    assert human(span) == text


def test_retry_policies_count_attempts_including_the_first() -> None:
    assert Retry.none().attempts == 1
    assert Retry.fixed("30s", attempts=4).initial_seconds == 30
    assert Retry.waits(["1s", "5s"]).attempts == 3
    policy = Retry.exponential().within("1h").except_on("ValueError")
    assert (policy.factor, policy.window_seconds, policy.never_on) == (2, 3600, ("ValueError",))
    with pytest.raises(ValueError, match="at least 1"):
        Retry.fixed(attempts=0)
