"""For how long a put waits for room, by what was seen of shortages."""

from __future__ import annotations

import pytest

from services.orchestrator.domain.shortage import (
    LEAST,
    LEAST_OF_MANY,
    LONG,
    LONGEST_PAUSE,
    MANY,
    PAUSE,
    RIGHT,
    Shortages,
)


def seen(*seconds: float) -> Shortages:
    shortages = Shortages()
    for one in seconds:
        shortages.ended("t", one, 0.0)
    return shortages


def test_where_nothing_is_known_a_moment_is_waited() -> None:
    assert Shortages().patience("t", 1, 0.0) == LEAST


@pytest.mark.parametrize(("usual", "wait"), [(0.001, LEAST), (0.04, 0.12)])
def test_a_wait_is_some_times_as_long_as_usual(usual, wait):
    assert seen(*[usual] * 10).patience("t", 1, 0.0) == pytest.approx(wait, rel=0.01)


def test_many_jobs_wait_longer_and_for_the_right_to_be_handed_out_too() -> None:
    shortages = seen(0.001)
    assert shortages.patience("t", MANY, 0.0) == LEAST_OF_MANY
    assert shortages.patience("t", MANY, 0.0, has_right=False) == RIGHT
    assert shortages.patience("t", MANY - 1, 0.0, has_right=False) == 0.0
    shortages.in_vain("t", 0.0)
    assert shortages.patience("t", MANY, 0.0, has_right=False) == 0.0


def test_room_that_takes_long_to_come_is_not_waited_for() -> None:
    shortages = seen(*[2 * LONG] * 10)
    assert shortages.patience("t", 1, 0.0) == 0.0
    assert shortages.patience("other", 1, 0.0) == LEAST


def test_who_waited_in_vain_tries_again_later_and_later() -> None:
    shortages, now, pauses = Shortages(), 0.0, []
    for _ in range(11):
        shortages.in_vain("t", now)
        pause = PAUSE
        while not shortages.patience("t", 1, now + pause):
            pause *= 2
        pauses.append(pause)
        now += pause
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert pauses[-1] == LONGEST_PAUSE


def test_room_that_came_in_time_makes_up_for_waits_in_vain() -> None:
    shortages = Shortages()
    for now in (0.0, 1.0, 3.0):
        shortages.in_vain("t", now)
    shortages.ended("t", 0.01, 10.0)
    shortages.in_vain("t", 20.0)
    assert shortages.patience("t", 1, 20.0 + PAUSE) > 0
