"""What a schedule does next within its bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from services.mesh.jobs.planning import plan
from services.mesh.jobs.recurrence import CatchUp, CatchUpPolicy, Interval
from services.mesh.jobs.schedules import Definition, JobTemplate, ScheduleRecord

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTELY = Definition((Interval(MINUTE),), JobTemplate("t"))


def due(definition: Definition, next_time: datetime = NOON) -> ScheduleRecord:
    past = (0, 0, 1, NOON, NOON)
    return ScheduleRecord(
        UUID(int=1), "n", "s", definition, False, "", next_time, None, None, *past
    )


def until(end: datetime, mode: CatchUp = CatchUp.LAST, every: timedelta = MINUTE) -> Definition:
    rule = (Interval(every),)
    return replace(MINUTELY, recurrences=rule, catch_up=CatchUpPolicy(mode), end_time=end)


@pytest.mark.parametrize("mode", [CatchUp.SKIP, CatchUp.LAST, CatchUp.ALL])
def test_the_last_time_before_the_end_runs_though_it_is_late(mode):
    firing = plan(due(until(NOON + SECOND, mode, SECOND)), NOON + 5 * SECOND)
    assert (firing.nominal_times, firing.next_time, firing.missed) == ((NOON,), None, 0)


def test_what_was_missed_before_the_end_is_made_up_for_after_it():
    end = NOON + 3 * MINUTE
    firing = plan(due(until(end)), NOON + 20 * MINUTE)
    assert (firing.nominal_times, firing.next_time) == ((end - MINUTE,), None)
    assert firing.missed == 2, "what comes after the end is not missed"


def test_times_after_the_end_take_no_place_of_those_that_are_made_up_for():
    end = NOON + 3 * SECOND
    firing = plan(due(until(end, CatchUp.ALL, SECOND)), NOON + 40 * MINUTE)
    assert firing.nominal_times == tuple(NOON + n * SECOND for n in range(3))
    assert (firing.next_time, firing.missed) == (None, 0)


def test_what_is_older_than_the_window_stays_missed_after_the_end():
    end = NOON + 3 * MINUTE
    for mode in (CatchUp.LAST, CatchUp.ALL):
        firing = plan(due(until(end, mode)), NOON + 70 * MINUTE)
        assert (firing.nominal_times, firing.next_time, firing.missed) == ((), None, 3)
