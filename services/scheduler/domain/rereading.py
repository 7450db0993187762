"""When to read a slot out of turn.

Many jobs that are due soon may be stored in the slot that was read already. A nudge names the first
of their times; for the others the slot is read again, at once if a job due in 30 ms is to be on
time. In a stream of such nudges reading the slot each time would cost as much as the claims. So
readings that find nothing new keep a distance that doubles, up to a bound; one that finds
something, or a rest, starts over.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RereadRules:
    """Times in seconds."""

    apart: float = 0.02
    """Least time between two readings."""
    most_apart: float = 0.5
    """Where the doubling ends."""
    rest: float = 1.0
    """After so long without a request the next one is served at once."""


class Rereading:
    """The distance that the readings of one slot keep."""

    def __init__(self, rules: RereadRules) -> None:
        self._rules = rules
        self._distance = rules.apart
        self._read_at = float("-inf")
        self._asked_at = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds until the reading that is asked for now may begin."""
        if now - self._asked_at > self._rules.rest:
            self._distance = self._rules.apart
        self._asked_at = now
        return max(0.0, self._read_at + self._distance - now)

    def began(self, now: float) -> None:
        self._read_at = now

    def ended(self, found: int) -> None:
        """A reading out of turn found so many new due times."""
        doubled = min(self._rules.most_apart, 2 * self._distance)
        self._distance = self._rules.apart if found else doubled
