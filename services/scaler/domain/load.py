"""What the shards say about the work of each type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one type: due jobs nobody runs (`backlog`) and jobs in workers' hands."""

    backlog: int = 0
    in_flight: int = 0
    oldest_age: timedelta = timedelta()
    #: When the next job is due, if none is due now.
    next_due: datetime | None = None
    #: `backlog` is only a lower bound.
    capped: bool = False

    @property
    def jobs(self) -> int:
        return self.backlog + self.in_flight

    def in_hand(self) -> Load:
        """The same without what waits, now or for later."""
        return Load(in_flight=self.in_flight)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The work of all types at one moment. A type without an entry has no work."""

    received_at: datetime
    loads: Mapping[str, Load] = field(default_factory=dict)
    #: Shards that did not answer: every count may be too low.
    missing_shards: tuple[str, ...] = ()

    def of(self, type_: str) -> Load:
        return self.loads.get(type_, _IDLE)


_IDLE = Load()
