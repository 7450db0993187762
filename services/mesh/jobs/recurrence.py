"""Nominal times of schedules, and what to do about those that were missed.

A nominal time is an instant a schedule names, whether or not anything ran then. Interval schedules
count from the epoch: every nominal time is `phase + n * every` after 1970-01-01 UTC, so no restart,
pause or late run makes them drift, and two services always agree on them. Cron schedules follow the
calendar of a place (`services.mesh.jobs.cron`). A schedule may have several rules, and others that
say what to leave out (`AnyOf`).

Everything here is bounded, however many times were missed or are left out: searches rest, counts
stop at a figure, and what is caught up has a cap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, unique
from itertools import islice
from typing import Any, Protocol

from services.mesh.jobs.cron import Cron, DstGap, DstOverlap, Fields
from services.mesh.jobs.exclusions import ANY_MINUTE, ANY_SECOND, LONGEST_REST, left_out_until

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Runs of one schedule made in one transaction.
MOST_RUNS_AT_ONCE = 100
#: Missed times that are made up for at most; older ones are passed over.
MOST_CAUGHT_UP = 1000
#: Times left out in a row after which a search rests.
LONGEST_SEARCH = 2000
#: Where times can only be counted one by one, more than this many are "at least so many".
MOST_COUNTED = 1000
#: The same for times that are looked at to count, be they left out.
MOST_LOOKED_AT = 5000

_MICROSECOND, _MINUTE = timedelta(microseconds=1), timedelta(minutes=1)


class Recurrence(Protocol):
    """A rule that names instants."""

    def next_after(self, time: datetime) -> datetime | None:
        """The first nominal time strictly after `time`, None if there is none.

        May rest at a time that is left out, so that no search is long: `names` tells.
        """

    def names(self, time: datetime) -> bool:
        """Whether `time` is a nominal time."""

    def latest_until(self, time: datetime) -> datetime | None:
        """The last nominal time at or before `time`, None if there is none."""

    def count_between(self, first: datetime, last: datetime) -> int:
        """How many nominal times lie in `[first, last]`; at least so many, where that is large."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so often, aligned to the epoch and shifted by `phase`."""

    every: timedelta
    phase: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if self.every < timedelta(milliseconds=1):
            raise ValueError("an interval lasts at least a millisecond")

    @property
    def fields(self) -> Fields:
        """What clocks may show at its times, wherever they hang."""
        whole = not self.every % _MINUTE and not self.phase % _MINUTE
        return ANY_MINUTE if whole else ANY_SECOND

    def next_after(self, time: datetime) -> datetime:
        """The first nominal time strictly after `time`."""
        return self._at(self._index(time) + 1)

    def names(self, time: datetime) -> bool:
        """Whether `time` is a nominal time."""
        return self.latest_until(time) == time

    def latest_until(self, time: datetime) -> datetime:
        """The last nominal time at or before `time`."""
        return self._at(self._index(time))

    def count_between(self, first: datetime, last: datetime) -> int:
        """How many nominal times lie in `[first, last]`."""
        return max(0, self._index(last) - self._index(first - _MICROSECOND))

    def _index(self, time: datetime) -> int:
        return (time - EPOCH - self.phase) // self.every

    def _at(self, index: int) -> datetime:
        return EPOCH + self.phase + index * self.every


Rule = Interval | Cron


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Every nominal time of every rule, but for those that an exclusion names too."""

    rules: tuple[Rule, ...]
    exclusions: tuple[Rule, ...] = ()

    def next_after(self, time: datetime) -> datetime | None:
        """The first nominal time strictly after `time`; rests after a long search."""
        found, last = self._following(time), time + LONGEST_REST
        for _ in range(LONGEST_SEARCH if self.exclusions else 0):
            if found is None or found > last or not self._excludes(found):
                break
            found = self._following(self._past_left_out(found))
        return found

    def names(self, time: datetime) -> bool:
        """Whether `time` is a nominal time."""
        return any(rule.names(time) for rule in self.rules) and not self._excludes(time)

    def latest_until(self, time: datetime) -> datetime | None:
        """The last nominal time at or before `time`; None if none is found in a long search."""
        found = self._preceding(time)
        for _ in range(LONGEST_SEARCH):
            if found is None or not self._excludes(found):
                return found
            found = self._preceding(found - _MICROSECOND)
        return None

    def count_between(self, first: datetime, last: datetime) -> int:
        """How many nominal times lie in `[first, last]`: exact for an interval, else capped."""
        if not self.exclusions and len(self.rules) == 1 and isinstance(self.rules[0], Interval):
            return self.rules[0].count_between(first, last)
        looked_at = islice(self._looked_at(first, last), MOST_LOOKED_AT)
        return sum(1 for _ in islice(filter(None, looked_at), MOST_COUNTED))

    def between(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """The nominal times in `[first, last]`, in order."""
        return filter(None, self._looked_at(first, last))

    def _looked_at(self, first: datetime, last: datetime) -> Iterator[datetime | None]:
        """The same, and None for each time in between that had to be looked at and is left out."""
        time = self._following(first - _MICROSECOND)
        while time is not None and time <= last:
            yield None if self._excludes(time) else time
            time = self._following(self._past_left_out(time))

    def _following(self, time: datetime) -> datetime | None:
        found = [t for rule in self.rules if (t := rule.next_after(time)) is not None]
        return min(found, default=None)

    def _preceding(self, time: datetime) -> datetime | None:
        found = [t for rule in self.rules if (t := rule.latest_until(time)) is not None]
        return max(found, default=None)

    def _past_left_out(self, time: datetime) -> datetime:
        """From where to search on: all that the rules name from `time` until there is left out."""
        rules = [rule if isinstance(rule, Cron) else rule.fields for rule in self.rules]
        reached = (
            left_out_until(exclusion, rules, time)
            for exclusion in self.exclusions
            if isinstance(exclusion, Cron)
        )
        return max(reached, default=time)

    def _excludes(self, time: datetime) -> bool:
        return any(rule.names(time) for rule in self.exclusions)


@unique
class CatchUp(IntEnum):
    """What to do about nominal times that passed unserved (schedulers away, schedule paused)."""

    UNSPECIFIED = 0
    SKIP = 1
    """Run none of them; wait for the next one."""
    LAST = 2
    """Run once, for the newest of them. The default."""
    ALL = 3
    """Run each that is not older than the window."""


@dataclass(frozen=True, slots=True)
class CatchUpPolicy:
    """How to treat missed times."""

    mode: CatchUp = CatchUp.LAST
    window: timedelta = timedelta(hours=1)
    """Nominal times older than this are never run."""
    grace: timedelta = timedelta(seconds=60)
    """Later than this is missed; until then it is merely late, and SKIP still runs it."""


DEFAULT_CATCH_UP = CatchUpPolicy()


@dataclass(frozen=True, slots=True)
class Firing:
    """What one due schedule does now."""

    nominal_times: tuple[datetime, ...]
    next_time: datetime | None
    missed: int
    """Nominal times passed over for good."""


def plan_firing(
    recurrence: Recurrence,
    policy: CatchUpPolicy,
    next_time: datetime,
    now: datetime,
    last: datetime | None = None,
) -> Firing:
    """Decide the runs of a schedule whose `next_time` has come. Costs are bounded, however many
    times were missed. What the rule names after `last` is none of its times.
    """
    if next_time > now:
        return Firing((), next_time, 0)
    last = now if last is None else min(last, now)
    latest = recurrence.latest_until(last)
    if latest is None or latest < next_time:  # it rested at a time that is left out
        return Firing((), recurrence.next_after(now), 0)
    if policy.mode is CatchUp.ALL:
        return _all(recurrence, next_time, max(next_time, now - policy.window), last)
    due = recurrence.count_between(next_time, latest)
    tolerated = policy.grace if policy.mode is CatchUp.SKIP else policy.window
    runs = (latest,) if now - latest <= tolerated else ()
    return Firing(runs, recurrence.next_after(latest), due - len(runs))


def _all(recurrence: Recurrence, next_time: datetime, oldest: datetime, last: datetime) -> Firing:
    oldest = _newest(recurrence, oldest, last)
    runs: list[datetime] = []
    candidate = recurrence.next_after(oldest - _MICROSECOND)
    while candidate is not None and candidate <= last and len(runs) < MOST_RUNS_AT_ONCE:
        if recurrence.names(candidate):
            runs.append(candidate)
        candidate = recurrence.next_after(candidate)
    missed = recurrence.count_between(next_time, min(oldest - _MICROSECOND, last))
    return Firing(tuple(runs), candidate, missed)


def _newest(recurrence: Recurrence, oldest: datetime, last: datetime) -> datetime:
    """Where to begin, so that no more than the newest `MOST_CAUGHT_UP` times are run."""
    begin = last
    for _ in range(MOST_CAUGHT_UP):
        latest = recurrence.latest_until(begin)
        if latest is None or latest < oldest:
            return oldest
        begin = latest - _MICROSECOND
    return begin + _MICROSECOND


def recurrence_to_json(recurrence: Rule) -> dict[str, Any]:
    """The form in the row. `kind` names the rule; a new kind needs no new column."""
    if isinstance(recurrence, Cron):
        return {
            "kind": "cron",
            "expression": recurrence.expression,
            "time_zone": recurrence.time_zone,
            "gap": int(recurrence.gap),
            "overlap": int(recurrence.overlap),
        }
    return {
        "kind": "interval",
        "every_us": recurrence.every // _MICROSECOND,
        "phase_us": recurrence.phase // _MICROSECOND,
    }


def recurrence_from_json(data: Mapping[str, Any]) -> Rule:
    """Read what `recurrence_to_json` wrote; an unknown kind is a ValueError."""
    if data["kind"] == "cron":
        policies = DstGap(data["gap"]), DstOverlap(data["overlap"])
        return Cron(data["expression"], data["time_zone"], *policies)
    if data["kind"] != "interval":
        raise ValueError(f"unknown kind of recurrence: {data['kind']!r}")
    return Interval(data["every_us"] * _MICROSECOND, data["phase_us"] * _MICROSECOND)
