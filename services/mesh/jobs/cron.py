"""Cron: the wall times that an expression names, and the instants they are.

The expression names wall times, without a zone (cronsim reads it and steps through a plain
calendar). Which instant a wall time is, is decided here, by the policies of the schedule:

* an hour that the clocks leave out: its times are dropped, or all become the instant of the change,
  or the last second before it;
* an hour that comes twice: its times count when they come first, or both times.

Times that fall together are one nominal time. Nothing is guessed from the expression's form: on the
night the clocks go back, "*/5 * * * *" pauses for an hour under ONCE, as the policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import IntEnum, unique
from functools import lru_cache

from cronsim import CronSim, CronSimError

from services.mesh.jobs.zones import Stretch, stretch_at, stretch_before

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: A rule that names nothing for so long names nothing at all.
HORIZON_YEARS = 40
_FIRST_YEAR = 1970

_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)


@unique
class DstGap(IntEnum):
    """What becomes of wall times that the clocks leave out."""

    UNSPECIFIED = 0
    SKIP = 1
    RUN_AT_SHIFT = 2
    """At the instant of the change. The default."""
    RUN_BEFORE = 3
    """In the last second before it."""


@unique
class DstOverlap(IntEnum):
    """What becomes of wall times that come twice."""

    UNSPECIFIED = 0
    ONCE = 1
    """When they come first. The default."""
    TWICE = 2


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone."""

    expression: str
    time_zone: str = "UTC"
    gap: DstGap = DstGap.RUN_AT_SHIFT
    overlap: DstOverlap = DstOverlap.ONCE

    def next_after(self, time: datetime) -> datetime | None:
        """The first nominal time strictly after `time`."""
        stretch = stretch_at(self.time_zone, time)
        last_year = time.year + HORIZON_YEARS
        while stretch.start.year <= last_year:
            found = self._first_in(stretch, time)
            if found is not None:
                return found
            stretch = stretch_at(self.time_zone, stretch.end)
        return None

    def latest_until(self, time: datetime) -> datetime | None:
        """The last nominal time at or before `time`."""
        stretch = stretch_at(self.time_zone, time)
        first_year = max(time.year - HORIZON_YEARS, _FIRST_YEAR)
        while stretch.start.year >= first_year:
            found = self._last_in(stretch, time)
            if found is not None:
                return found
            stretch = stretch_before(self.time_zone, stretch)
        return None

    def names(self, time: datetime) -> bool:
        """Whether `time` is one of its nominal times."""
        stretch = stretch_at(self.time_zone, time)
        wall = stretch.wall(time)
        if names_wall(self.expression, wall) and wall >= self._first_wall(stretch):
            return True
        return time in self._moved(stretch)

    def _first_in(self, stretch: Stretch, after: datetime) -> datetime | None:
        """The first in the stretch that is later than `after`."""
        wall = max(stretch.wall(after), self._first_wall(stretch) - _MICROSECOND)
        following = wall_after(self.expression, wall)
        times = self._moved(stretch)
        if following is not None:
            times.append(stretch.instant(following))
        return min((t for t in times if after < t < stretch.end), default=None)

    def _last_in(self, stretch: Stretch, until: datetime) -> datetime | None:
        """The last in the stretch that is not later than `until`."""
        wall = stretch.wall(min(until, stretch.end - _MICROSECOND))
        preceding = wall_until(self.expression, wall)
        times = [t for t in self._moved(stretch) if t <= until]
        if preceding is not None and preceding >= self._first_wall(stretch):
            times.append(stretch.instant(preceding))
        return max(times, default=None)

    def _first_wall(self, stretch: Stretch) -> datetime:
        """From which wall time on the stretch's own count: those that came before may not again."""
        offset = stretch.offset
        if self.overlap is not DstOverlap.TWICE:
            offset = max(offset, stretch.before)
        return stretch.start.replace(tzinfo=None) + offset

    def _moved(self, stretch: Stretch) -> list[datetime]:
        """The instants in the stretch that stand for wall times left out at either end of it."""
        moved: list[datetime] = []
        if self.gap is DstGap.RUN_AT_SHIFT and self.names_wall_between(
            stretch.start, stretch.before, stretch.offset
        ):
            moved.append(stretch.start)
        if self.gap is DstGap.RUN_BEFORE and self.names_wall_between(
            stretch.end, stretch.offset, stretch.after
        ):
            moved.append(stretch.end - _SECOND)
        return moved

    def names_wall_between(self, change: datetime, before: timedelta, after: timedelta) -> bool:
        """Whether it names a wall time that the clocks leave out at that change."""
        return after > before and _names_left_out(self.expression, change, before, after)


@lru_cache(maxsize=4096)
def _names_left_out(expression: str, change: datetime, before: timedelta, after: timedelta) -> bool:
    plain = change.replace(tzinfo=None)
    found = wall_after(expression, plain + before - _MICROSECOND)
    return found is not None and found < plain + after


@dataclass(frozen=True, slots=True)
class Fields:
    """The parts of a day that an expression names, and on which days."""

    hours: Set[int]
    minutes: Set[int]
    seconds: Set[int]
    has_day: Callable[[date], bool] = bool


@lru_cache(maxsize=4096)
def fields_of(expression: str) -> Fields:
    """The expression, part by part."""
    parsed = _parsed(expression)

    def has_day(day: date) -> bool:
        return day.month in parsed.months and bool(parsed.match_day(day))

    return Fields(
        frozenset(parsed.hours), frozenset(parsed.minutes), frozenset(parsed.seconds), has_day
    )


def names_wall(expression: str, wall: datetime) -> bool:
    """Whether the expression names a wall time."""
    fields = fields_of(expression)
    return (
        not wall.microsecond
        and wall.second in fields.seconds
        and wall.minute in fields.minutes
        and wall.hour in fields.hours
        and fields.has_day(wall.date())
    )


def wall_after(expression: str, wall: datetime) -> datetime | None:
    """The first wall time strictly after one; None if there is none for decades."""
    # Whole seconds: what has microseconds lies after the second it is in.
    return next(_steps(expression, wall.replace(microsecond=0), 1), None)


def wall_until(expression: str, wall: datetime) -> datetime | None:
    """The last wall time at or before one."""
    return next(_steps(expression, wall.replace(microsecond=0) + _SECOND, -1), None)


def check_expression(expression: str) -> None:
    """ValueError says what is wrong with it."""
    if expression.startswith("@") and expression.lower() not in ALIASES:
        raise ValueError(f"there is no alias {expression!r}; there are {', '.join(ALIASES)}")
    try:
        _parsed(expression)
    except (CronSimError, AssertionError) as error:
        raise ValueError(_complaint(expression, str(error))) from error
    if wall_after(expression, datetime(2024, 1, 1)) is None:  # noqa: DTZ001 - a wall time
        raise ValueError("it never fires: no date has these fields")


def _complaint(expression: str, error: str) -> str:
    fields = len(expression.split())
    if fields not in (5, 6):
        return f"expected five fields, or six with seconds first, or an alias; got {fields}"
    probe = expression.split()
    probe[-3] = "1"
    try:
        CronSim(" ".join(probe), datetime(2024, 1, 1))  # noqa: DTZ001 - a wall time
    except (CronSimError, AssertionError):
        return f"not a cron expression: {error.lower()}"
    try:
        probe[-3], probe[-2] = expression.split()[-3], "*"
        CronSim(" ".join(probe), datetime(2024, 1, 1))  # noqa: DTZ001 - a wall time
    except (CronSimError, AssertionError):
        return f"not a cron expression: {error.lower()}"
    return "it never fires: none of these months has such a day"


def _steps(expression: str, wall: datetime, direction: int) -> Iterator[datetime]:
    steps: CronSim = CronSim.__new__(CronSim)
    # Parsing costs more than a step: the parsed fields are shared, the place is our own.
    steps.__dict__.update(_parsed(expression).__dict__, dt=wall, tick_direction=direction)
    return steps


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> CronSim:
    text = ALIASES.get(expression.lower(), expression)
    return CronSim(text, datetime(2024, 1, 1))  # noqa: DTZ001 - a wall time
