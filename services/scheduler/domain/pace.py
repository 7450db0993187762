"""Pace: whether to claim at once or to let a batch form first.

A lone job must not wait, and a stream of small arrivals must not be claimed one by one: a statement
costs as much as dozens of rows in it. So the first claim after a rest goes at once; after that,
claims that bring little keep a distance that grows with how long they take. When the shard or the
machine is busy, claims take longer, the distance grows, and the batches with it. A claim that came
back full is followed at once: there is more, and waiting would not make the next one any fuller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaceRules:
    """How claims on one (type, shard) keep their distance."""

    factor: float = 2.0
    """Distance from begin to begin, in multiples of how long claims take lately."""
    least: float = 0.002
    most: float = 0.025
    plenty: int = 100
    """A claim that brought as much is worth its price, full or not."""


class Pace:
    """The recent claims on one (type, shard)."""

    __slots__ = ("_began", "_free", "_rules", "_seconds")

    def __init__(self, rules: PaceRules) -> None:
        self._rules = rules
        self._began = float("-inf")
        self._free = True
        self._seconds = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next claim may begin; 0: now."""
        if self._free:
            return 0.0
        return max(0.0, self._began + self.distance - now)

    def began(self, now: float) -> None:
        self._began = now

    def ended(self, now: float, brought: int, asked: int) -> None:
        """A claim ended; what it brought says whether the next one should keep its distance."""
        took = now - self._began
        self._seconds = took if not self._seconds else 0.7 * self._seconds + 0.3 * took
        self._free = brought >= min(asked, self._rules.plenty)

    @property
    def distance(self) -> float:
        rules = self._rules
        return min(rules.most, max(rules.least, rules.factor * self._seconds))
