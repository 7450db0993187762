"""Time as a parameter.

The database's clock decides what is due; a service's clock only decides when to ask, how long to
wait and what to write into a log. Code that looks at the time takes a `Clock` in its constructor,
so that a test can move it by hand.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def now_us(self) -> int:
        """The same in microseconds since 1970, which costs a fraction."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime(2030, 1, 1, tzinfo=UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def now_us(self) -> int:
        return round(self._now.timestamp() * 1_000_000)

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward together."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
