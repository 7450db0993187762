"""How far an exclusion reaches, so that a search need not look at every time it leaves out.

A minute's schedule that rests all summer has a hundred thousand times in between; an exclusion
that leaves nothing has no end of them. Where an exclusion names all that the rules can name in an
hour or in a day, the search goes on at the end of those hours or days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

from services.mesh.jobs.cron import Cron, DstGap, Fields, fields_of, names_wall
from services.mesh.jobs.zones import stretch_at

#: As far as a search looks at all: the rarest dates come every twelve years.
LONGEST_REST = timedelta(days=12 * 366)

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_HOURS, _SIXTY = frozenset(range(24)), frozenset(range(60))
ANY_SECOND = Fields(_HOURS, _SIXTY, _SIXTY)
ANY_MINUTE = Fields(_HOURS, _SIXTY, frozenset({0}))


def left_out_until(exclusion: Cron, rules: Sequence[Cron | Fields], time: datetime) -> datetime:
    """Up to when the exclusion, which names `time`, names all that the rules do; `time` itself if
    that is all there is to say. Of rules that are no cron, `Fields` says what they may name.
    """
    stretch = stretch_at(exclusion.time_zone, time)
    wall = stretch.wall(time)
    names = fields_of(exclusion.expression)
    may = [_may_name(rule, exclusion) for rule in rules]
    # In an hour that comes again its wall times may not count; what stands for others has none.
    named = exclusion.names(time) and names_wall(exclusion.expression, wall)
    if not named or not all(_in_an_hour(names, fields) for fields in may):
        return time
    if all(names.hours >= fields.hours for fields in may):
        end = _first_day_without(names, wall.date())
    else:
        end = wall.replace(minute=0, second=0) + _HOUR
    # What stands for times the clocks leave out has the last second of a stretch, and no wall time.
    return max(time, min(stretch.instant(end), stretch.end - _SECOND) - _MICROSECOND)


def _may_name(rule: Cron | Fields, exclusion: Cron) -> Fields:
    """What clocks in the exclusion's zone may show when the rule fires."""
    if isinstance(rule, Fields):
        return rule
    own = fields_of(rule.expression)
    if replace(rule, expression="") == replace(exclusion, expression=""):
        return own
    return ANY_MINUTE if own.seconds == {0} and rule.gap is not DstGap.RUN_BEFORE else ANY_SECOND


def _in_an_hour(names: Fields, may: Fields) -> bool:
    return names.minutes >= may.minutes and names.seconds >= may.seconds


def _first_day_without(names: Fields, day: date) -> datetime:
    last = day + LONGEST_REST
    while day < last and names.has_day(day):
        day += _DAY
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - a wall time
