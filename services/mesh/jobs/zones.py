"""Time zones as stretches of one offset.

Between two changes of its clocks a zone is a constant offset, and there a wall time is one instant.
So questions about wall times are asked stretch by stretch; what happens between two of them (hours
that are left out or come twice) is then plain to see, and up to whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

_DAY, _SECOND = timedelta(days=1), timedelta(seconds=1)
#: Names that are no places: copies of the host's setting, and zones that count leap seconds.
_NOT_ZONES = ("right/", "posix/", "localtime", "posixrules")


@dataclass(frozen=True, slots=True)
class Stretch:
    """`[start, end)`, with one offset from UTC; it ends with the year if not before."""

    start: datetime
    end: datetime
    offset: timedelta
    before: timedelta
    """The offset up to `start`."""
    after: timedelta
    """The offset from `end` on."""

    def wall(self, instant: datetime) -> datetime:
        """What a clock on the wall shows, by this stretch's offset."""
        return instant.replace(tzinfo=None) + self.offset

    def instant(self, wall: datetime) -> datetime:
        """The instant at which it shows that, by this stretch's offset."""
        return (wall - self.offset).replace(tzinfo=UTC)


def zone(name: str) -> ZoneInfo:
    """The zone of that IANA name; ValueError says what is wrong with another."""
    if not name.startswith(_NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    close = get_close_matches(name.title(), sorted(available_timezones()), 1, 0.8)
    hint = f"; did you mean {close[0]}?" if close else "; use a name such as Europe/Berlin"
    raise ValueError(f"there is no time zone {name!r}{hint}")


def stretch_at(name: str, instant: datetime) -> Stretch:
    """The stretch that an instant (in UTC) lies in."""
    stretches = _stretches(name, instant.year)
    return next(each for each in stretches if instant < each.end)


def stretch_before(name: str, stretch: Stretch) -> Stretch:
    """The one that ends where this one begins."""
    return stretch_at(name, stretch.start - _SECOND)


@lru_cache(maxsize=4096)
def _stretches(name: str, year: int) -> tuple[Stretch, ...]:
    place = zone(name)
    first, last = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    bounds = [first, *_changes(place, first, last), last]
    return tuple(
        Stretch(
            start,
            end,
            offset=_offset(place, start),
            before=_offset(place, start - _SECOND),
            after=_offset(place, end),
        )
        for start, end in pairwise(bounds)
    )


def _changes(place: ZoneInfo, first: datetime, last: datetime) -> list[datetime]:
    """The instants in `(first, last)` from which on another offset holds."""
    found: list[datetime] = []
    day, offset = first, _offset(place, first)
    while day < last:
        following = day + _DAY
        if (then := _offset(place, following)) != offset:
            change = _first_with(place, then, day, following)
            found += [change] if change < last else []
        day, offset = following, then
    return found


def _first_with(place: ZoneInfo, offset: timedelta, low: datetime, high: datetime) -> datetime:
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        low, high = (low, middle) if _offset(place, middle) == offset else (middle, high)
    return high


def _offset(place: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(place).utcoffset() or timedelta(0)
