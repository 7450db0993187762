"""The shard's clock, seen from here.

The shard decides what is due, so a timer must go off when *its* clock shows the due time: not
before, since the claim would come back empty, and as little after as possible. A reading taken
between two looks at our monotonic clock bounds the offset from both sides:

    sent ──────── shard reads `now` ──────── received          (ours, monotonic)

    now - received  <=  offset  <=  now - sent

Timers go by the lower bound, hence never early. The best lower bound of the recent readings is the
one with the fastest answer. A reading whose upper bound lies below it contradicts it: the shard's
clock was set back, and only the new reading counts.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: How long a reading is believed: two clocks that are kept right drift apart by less than a
#: message takes.
BELIEVED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a shard's clock shows at least, and which clock that is."""

    us: int = 0
    clock: int = 0


class ShardClock:
    """An estimate of the shard's clock, in microseconds since the epoch, from below."""

    def __init__(self, believed: float = BELIEVED_SECONDS) -> None:
        self._believed = believed
        # When each was received, and its lower bound; a bound that a later one exceeds is dropped,
        # so the first is the best.
        self._bounds: deque[tuple[float, int]] = deque()
        self._number = _new_number()
        self._listeners: list[Callable[[], None]] = []

    @property
    def known(self) -> bool:
        return bool(self._bounds)

    def on_closer(self, listener: Callable[[], None]) -> None:
        """Call the listener when the estimate has come closer: what was set by it may be due
        sooner.
        """
        self._listeners.append(listener)

    def read(self, now_us: int, sent: float, received: float) -> None:
        """Take in a reading: what the shard showed between two local times, in seconds."""
        lower = now_us - _ceil_us(received)
        bounds = self._bounds
        closer = bool(bounds) and lower > bounds[0][1]
        if bounds and now_us - _floor_us(sent) < bounds[0][1]:
            bounds.clear()
            self._number = _new_number()
        while bounds and bounds[-1][1] <= lower:
            bounds.pop()
        bounds.append((received, lower))
        while bounds[0][0] < received - self._believed:
            bounds.popleft()
        if closer:
            for listener in self._listeners:
                listener()

    def at(self, local: float) -> int:
        """The least that the shard's clock shows at a local time."""
        return _floor_us(local) + self._offset

    def shown(self, local: float) -> Shown:
        """The same for others, who may compare what they are told of this clock over time."""
        return Shown(self.at(local), self._number)

    def local(self, shard_us: int) -> float:
        """The local time from which on the shard's clock surely shows `shard_us`."""
        # One microsecond on top: floats of this size are not exact to it.
        return (shard_us - self._offset + 1) / 1e6

    @property
    def _offset(self) -> int:
        assert self._bounds, "no reading yet"
        return self._bounds[0][1]


def micros(time: datetime) -> int:
    """Microseconds since the epoch."""
    return (time - EPOCH) // _MICROSECOND


def time_of(micros: int) -> datetime:
    """The other way round."""
    return EPOCH + micros * _MICROSECOND


def _new_number() -> int:
    return secrets.randbits(62) + 1


def _floor_us(seconds: float) -> int:
    return int(seconds * 1e6)


def _ceil_us(seconds: float) -> int:
    return int(seconds * 1e6) + 1
