"""The coming runs of a schedule: a strip of time, and a line per run in both zones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobmesh.cli import render
from jobmesh.times import human

if TYPE_CHECKING:
    from jobmesh.model import SchedulePreview
    from jobmesh.v1.schedule_pb2 import Schedule

COLUMNS = ("#", "LOCAL TIME", "SCHEDULE TIME", "IN", "NOTE")
WIDTH = 60
_FORMAT = "%a %Y-%m-%d %H:%M:%S %Z"


def zone_of(schedule: Schedule) -> tzinfo:
    """The zone of its first cron rule; UTC for intervals."""
    for rule in schedule.recurrences:
        if rule.HasField("cron") and rule.cron.time_zone:
            return named_zone(rule.cron.time_zone)
    return UTC


def named_zone(name: str) -> tzinfo:
    """UTC for a zone that this machine does not know."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def both(time: datetime | None, zone: tzinfo) -> str:
    """A time as clocks here show it, and those of the schedule, where they differ."""
    if time is None:
        return ""
    here, there = time.astimezone(), time.astimezone(zone)
    text = f"{here:{_FORMAT}}"
    return text if here.utcoffset() == there.utcoffset() else f"{text}  ({there:{_FORMAT}})"


def rows(preview: SchedulePreview, zone: tzinfo, now: datetime) -> list[tuple[str, ...]]:
    """One line per run; on the nights the clocks change, what that does."""
    notes = {time: change.effect for change in preview.clock_changes for time in change.times}
    return [
        (
            str(number),
            f"{time.astimezone():{_FORMAT}}",
            f"{time.astimezone(zone):{_FORMAT}}",
            render.ago(time, now).removeprefix("in "),
            f"clocks change: {notes[time]}" if time in notes else "",
        )
        for number, time in enumerate(preview.times, 1)
    ]


def strip(times: Sequence[datetime], now: datetime, width: int = WIDTH) -> str:
    """`now ├──●────●──…──●┤ +3d`: where the runs lie, as far as they reach."""
    if not times:
        return ""
    begin, end = min(now, times[0]), times[-1]
    span = max((end - begin).total_seconds(), 1.0)
    cells = [0] * width
    for time in times:
        cells[min(int((time - begin).total_seconds() / span * width), width - 1)] += 1
    line = "".join("─" if not n else "●" if n == 1 else str(n) if n < 10 else "#" for n in cells)
    start = "now" if begin == now else f"{begin.astimezone():%Y-%m-%d %H:%M}"
    return f"{start} ├{line}┤ +{human(span)}"


def skipped(preview: SchedulePreview) -> list[str]:
    """The nights without a run of their own, which no line of the table can tell of."""
    return [
        f"{change.time.astimezone(named_zone(change.time_zone)):%Y-%m-%d} {change.time_zone}:"
        f" {change.effect}"
        for change in preview.clock_changes
        if not change.times
    ]
