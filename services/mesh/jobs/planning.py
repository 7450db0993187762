"""What a schedule does next, by its definition, its bounds and what it did so far."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from services.mesh.jobs.exclusions import LONGEST_REST
from services.mesh.jobs.recurrence import Firing, plan_firing
from services.mesh.jobs.schedules import Definition, ScheduleRecord

_MICROSECOND = timedelta(microseconds=1)
#: How often a search for a time may go on; after that the exclusions leave nothing.
_MOST_RESTS = 25


def first_time(definition: Definition, now: datetime) -> datetime | None:
    """The first nominal time after now and not before the start, None if that is past the end."""
    begin = now
    if definition.start_time is not None and definition.start_time > now:
        begin = definition.start_time - _MICROSECOND
    return _until_end(definition, definition.calendar.next_after(begin))


def has_times(definition: Definition, now: datetime) -> bool:
    """Whether there is any nominal time from now on, as far as a long search can tell."""
    found = first_time(definition, now)
    now = max(now, definition.start_time or now)
    for _ in range(_MOST_RESTS):
        if found is None or found > now + LONGEST_REST or definition.calendar.names(found):
            break
        found = _until_end(definition, definition.calendar.next_after(found))
    return found is not None and definition.calendar.names(found)


def resumed_time(
    schedule: ScheduleRecord, definition: Definition, now: datetime
) -> datetime | None:
    """The next nominal time once the definition is changed; what is due already is not lost."""
    upcoming = schedule.next_time
    if schedule.paused or upcoming is None or upcoming > now:
        # Some may have been made ahead of their time.
        return first_time(definition, max(now, schedule.last_time or now))
    return first_time(definition, upcoming - _MICROSECOND)


def plan(schedule: ScheduleRecord, now: datetime, ahead: timedelta = timedelta(0)) -> Firing:
    """What a schedule does now, within its bounds; the number of runs is not looked at.

    With `ahead`, the times of that span come too: they are not missed yet, so each is run.
    """
    definition = schedule.definition
    if schedule.next_time is None:
        return Firing((), None, 0)
    calendar, end = definition.calendar, definition.end_time
    # Else the times after its end would pass for the newest that were missed.
    last = None if end is None else end - _MICROSECOND
    firing = plan_firing(calendar, definition.catch_up, schedule.next_time, now, last)
    coming, next_time = [*firing.nominal_times], firing.next_time
    while next_time is not None and now < next_time <= now + ahead:
        coming += [next_time] if calendar.names(next_time) else []
        next_time = calendar.next_after(next_time)
    times = tuple(t for t in coming if _until_end(definition, t) is not None)
    return Firing(times, _until_end(definition, next_time), firing.missed)


def times_between(definition: Definition, first: datetime, until: datetime) -> Iterator[datetime]:
    """The nominal times in `[first, until)`, within its bounds."""
    if definition.start_time is not None:
        first = max(first, definition.start_time)
    if definition.end_time is not None:
        until = min(until, definition.end_time)
    return definition.calendar.between(first, until - _MICROSECOND)


def room(schedule: ScheduleRecord) -> int | None:
    """How many more jobs it may make; None: as many as it likes."""
    limit = schedule.definition.max_runs
    return max(0, limit - schedule.runs - len(schedule.waiting)) if limit else None


def _until_end(definition: Definition, time: datetime | None) -> datetime | None:
    ended = time is not None and definition.end_time is not None and time >= definition.end_time
    return None if ended else time
