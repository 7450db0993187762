"""Which claims leave a backlog aside, so that what becomes due now has its share.

Claims take the highest priority first, and of equal ones the longest due. While a backlog of hours
is worked off, that would make each new job of the type wait for all of it. So while a type is
behind (claims come back full, of jobs that have waited for long), every fourth claim looks only at
jobs that became due lately. A share of a quarter, whatever the workers' room: the backlog is worked
off at three quarters of the type's speed, and a new job waits for a few claims. A type that is not
behind, which is the rule, notices nothing of this. Other types have workers and claims of their
own, in turn; they need no share.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareRules:
    """Times in seconds."""

    lately: float = 10.0
    """What has been due for longer is backlog."""
    one_in: int = 4
    """Of so many claims one is for what became due lately."""


class Share:
    """The recent claims on one (type, shard)."""

    __slots__ = ("_behind", "_claims", "_rules")

    def __init__(self, rules: ShareRules) -> None:
        self._rules = rules
        self._behind = False
        self._claims = 0

    def next(self) -> float | None:
        """How far back the next claim shall look, in seconds; None: as far as there is work."""
        if not self._behind:
            return None
        self._claims += 1
        return self._rules.lately if self._claims % self._rules.one_in == 0 else None

    def ended(self, waited: float, *, full: bool) -> None:
        """A claim that looked at everything brought jobs of which the oldest waited so long."""
        self._behind = full and waited > self._rules.lately
