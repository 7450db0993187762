"""A decision about a pool, and the trail of those before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from services.scaler.domain.fleet import Fleet


class Reason(Enum):
    """The rule that decided; names and numbers are those of the contract's DecisionReason."""

    AT_REST = 1
    BACKLOG = 2
    EMPTY = 3
    SCALE_IN = 4
    COOLDOWN = 5
    AT_MAX = 6
    MANUAL = 7
    STALE_STATS = 8
    CRASH_LOOP = 9
    STEADY = 10
    LIMITED = 11
    PAUSED = 12


#: Rules that leave the count as it is, or that go by what waits: a pause goes before them.
FITTING = frozenset({Reason.AT_REST, Reason.STEADY, Reason.BACKLOG, Reason.AT_MAX, Reason.LIMITED})
#: Rules that do not go by the work.
REGARDLESS = frozenset({Reason.MANUAL, Reason.STALE_STATS})

#: Work that sways around a boundary goes back and forth between these; that is no news.
_KEEPING = frozenset({Reason.STEADY, Reason.COOLDOWN})

_UNUSUAL = frozenset(
    {Reason.AT_MAX, Reason.MANUAL, Reason.STALE_STATS, Reason.CRASH_LOOP, Reason.PAUSED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The desired count, the one before, why, and the numbers it was made from."""

    desired: int
    previous: int
    reason: Reason
    explanation: str
    time: datetime
    backlog: int = 0
    in_flight: int = 0
    oldest_age: timedelta = timedelta()

    @property
    def noteworthy(self) -> bool:
        """Whether an operator would want to read it: a change, or a reason to look."""
        return self.desired != self.previous or self.reason in _UNUSUAL

    def repeats(self, other: Decision) -> bool:
        """Whether it says the same as the other one, only with newer numbers."""
        if self.desired != other.desired:
            return False
        return self.reason is other.reason or {self.reason, other.reason} <= _KEEPING


@dataclass(frozen=True, slots=True)
class Alarm:
    """One of the two conditions a pool is watched for."""

    name: str
    ringing: bool
    condition: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What the acting Scaler found and decided; the others repeat it."""

    fleet: Fleet
    decision: Decision
    alarms: tuple[Alarm, ...]

    def same_news(self, other: PoolStatus) -> bool:
        """Whether an observer of the other one would learn nothing new from this one."""
        return (
            self.fleet == other.fleet
            and self.decision.repeats(other.decision)
            and [a.ringing for a in self.alarms] == [a.ringing for a in other.alarms]
        )


class Trail:
    """The current decision and the last different ones, newest first, never more than `limit`."""

    def __init__(self, decisions: Iterable[Decision] = (), limit: int = 20) -> None:
        self._limit = limit
        self._decisions = list(decisions)[:limit]

    def add(self, decision: Decision) -> bool:
        """Take in the newest decision; whether it differs from the one before."""
        if self._decisions and decision.repeats(self._decisions[0]):
            self._decisions[0] = decision
            return False
        self._decisions.insert(0, decision)
        del self._decisions[self._limit :]
        return True

    def newest_first(self) -> tuple[Decision, ...]:
        return tuple(self._decisions)
