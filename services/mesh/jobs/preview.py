"""What a schedule is going to do: its nominal times, and the nights on which the clocks change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from services.mesh.jobs.cron import Cron, DstGap, DstOverlap, wall_after
from services.mesh.jobs.planning import times_between
from services.mesh.jobs.schedules import Definition
from services.mesh.jobs.zones import Stretch, stretch_at, zone

_MICROSECOND = timedelta(microseconds=1)
_NAMED = 3


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A night on which the clocks of a zone change."""

    time: datetime
    time_zone: str
    shift: timedelta
    times: tuple[datetime, ...]
    """The nominal times of that day."""
    effect: str


@dataclass(frozen=True, slots=True)
class Preview:
    """Nominal times in order, and the nights among them."""

    times: tuple[datetime, ...]
    changes: tuple[ClockChange, ...]
    more: bool


def preview(definition: Definition, first: datetime, until: datetime, limit: int) -> Preview:
    """The nominal times in `[first, until)`, at most `limit`."""
    found = list(islice(times_between(definition, first, until), limit + 1))
    times = tuple(found[:limit])
    changes: list[ClockChange] = []
    if times:
        crons = [rule for rule in definition.recurrences if isinstance(rule, Cron)]
        for name in sorted({rule.time_zone for rule in crons}):
            rules = [rule for rule in crons if rule.time_zone == name]
            end = times[-1] if len(found) > limit else until
            changes += _changes(name, rules, times, first, end)
    changes.sort(key=lambda change: change.time)
    return Preview(times, tuple(changes), len(found) > limit)


def _changes(
    name: str, rules: Sequence[Cron], times: Sequence[datetime], first: datetime, last: datetime
) -> Iterator[ClockChange]:
    place = zone(name)
    days = [time.astimezone(place).date() for time in times]
    stretch = stretch_at(name, first)
    while stretch.end <= last:
        if stretch.after != stretch.offset:
            night = {
                moment.astimezone(place).date()
                for moment in (stretch.end - _MICROSECOND, stretch.end)
            }
            on_it = tuple(t for t, day in zip(times, days, strict=True) if day in night)
            effect = "; ".join(_effects(rules, stretch)) or "no time of it is affected"
            shift = stretch.after - stretch.offset
            yield ClockChange(stretch.end, name, shift, on_it, effect)
        stretch = stretch_at(name, stretch.end)


def _effects(rules: Sequence[Cron], stretch: Stretch) -> Iterator[str]:
    """What the change at the end of a stretch does to each rule."""
    plain = stretch.end.replace(tzinfo=None)
    before, after = plain + stretch.offset, plain + stretch.after
    for rule in rules:
        walls = _walls(rule.expression, min(before, after), max(before, after))
        if not walls:
            continue
        named = ", ".join(walls[:_NAMED]) + (", …" if len(walls) > _NAMED else "")
        if after > before:
            yield f"{named} left out by the clocks: {_fate(rule.gap, stretch)}"
        else:
            twice = rule.overlap is DstOverlap.TWICE
            yield f"{named} comes twice: runs {'both times' if twice else 'the first time'}"


def _walls(expression: str, first: datetime, last: datetime) -> list[str]:
    found: list[str] = []
    wall = wall_after(expression, first - _MICROSECOND)
    while wall is not None and wall < last and len(found) <= _NAMED:
        found.append(wall.strftime("%H:%M:%S" if wall.second else "%H:%M"))
        wall = wall_after(expression, wall)
    return found


def _fate(gap: DstGap, stretch: Stretch) -> str:
    if gap is DstGap.SKIP:
        return "no run"
    if gap is DstGap.RUN_BEFORE:
        last = stretch.wall(stretch.end.astimezone(UTC) - timedelta(seconds=1))
        return f"runs at {last:%H:%M:%S}"
    return f"runs at {stretch.end.replace(tzinfo=None) + stretch.after:%H:%M}"
