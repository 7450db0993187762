"""How often everything that waits is looked at.

What is due, overdue or to expire is found at the front of small tables. Where somebody holds a
transaction open, all that has left them since stays there and is walked over with each look, which
then takes longer and longer. So the next one comes after so many times what the last one took:
while looks are quick, which is the rule, that is at once and nothing changes; when they are slow
they take a small part of the server's time. One that does not come to its end is as slow as can be.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookRules:
    """Times in seconds."""

    factor: float = 30.0
    """A look is followed by so many times what it took without another."""
    quick: float = 0.01
    """One that took no longer than this may be had again at once."""
    most: float = 10.0
    """There is one this often, whatever it takes."""


class Slowness:
    """What looks take, but for one that took longer than those around it: a server that was frozen
    for a moment, or had no time for us, need not be spared.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: float | None = None

    def of(self, took: float) -> float:
        """The less of what this look and the one before took."""
        last, self._last = self._last, took
        return took if last is None else min(last, took)


class Looks:
    """The looks at one shard."""

    __slots__ = ("_again_at", "_rules", "_slowness")

    def __init__(self, rules: LookRules) -> None:
        self._rules = rules
        self._slowness = Slowness()
        self._again_at = float("-inf")

    def may(self, now: float) -> bool:
        """Whether everything may be looked at now."""
        return now >= self._again_at

    def gave_up(self, ended: float) -> None:
        """It took longer than a statement may: the next one likely does, too."""
        self._again_at = ended + self._rules.most

    def looked(self, ended: float, took: float) -> None:
        """Everything was looked at, for so long in the server."""
        took = self._slowness.of(took)
        rest = self._rules.factor * took if took > self._rules.quick else 0.0
        self._again_at = ended + min(self._rules.most, rest)
