"""Which claims leave something aside, so that everything due has its share.

Claims take the highest priority first, and of equal ones the longest due. Alone, that starves:

* While a backlog of hours is worked off, each new job of the type would wait for all of it. So
  while a type is behind (claims come back full, of jobs that have waited for long), every fourth
  claim looks only at jobs that became due lately. The backlog is worked off at three quarters of
  the type's speed, and a new job waits for a few claims.
* While there is more of a high priority than the type can run, lower ones would wait for ever. So
  while claims come back full of jobs above the lowest priority, every eighth begins below them; and
  if that is full again, the next such one below those, and so on down. Each priority moves on,
  if slowly, whatever is above it. One that finds nothing there is followed by fewer for a while.
* While one namespace has more than can run, others would wait for all of it. So while claims come
  back full, some begin with the other namespaces in turn (`turns`). These leave nothing aside.

A type that is neither behind nor crowded, which is the rule, notices nothing of this. Other types
have workers and claims of their own, in turn; they need no share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.mesh.jobs.turns import Turn, Turned
from services.scheduler.domain.turns import TurnRules, Turns


@dataclass(frozen=True, slots=True)
class ShareRules:
    """Times in seconds."""

    lately: float = 10.0
    """What has been due for longer is backlog."""
    one_in: int = 4
    """Of so many claims one is for what became due lately."""
    lower_in: int = 8
    """Of so many claims one begins below the priorities that fill the others."""
    rest: int = 4
    """So many times fewer after one that found nothing there."""
    turns: TurnRules = field(default_factory=TurnRules)


@dataclass(frozen=True, slots=True)
class Aside:
    """What a claim leaves aside, and where it begins."""

    recent: float | None = None
    """What has been due for more seconds."""
    below: int | None = None
    """This priority and those above."""
    turn: Turn | None = None
    """With namespaces in turn; None: at the front of the line."""

    @property
    def is_nothing(self) -> bool:
        """Whether it looks at everything, wherever it begins."""
        return self.recent is None and self.below is None


NOTHING = Aside()


class Share:
    """The recent claims on one (type, shard)."""

    __slots__ = ("_behind", "_claims", "_crowded", "_deeper", "_rested", "_rules", "_turns")

    def __init__(self, rules: ShareRules) -> None:
        self._rules = rules
        self._behind = False
        self._claims = 0
        #: The lowest priority in claims that come back full; 0: nothing is below.
        self._crowded = 0
        #: The same of the last claim that began below it.
        self._deeper = 0
        self._rested = 1
        self._turns = Turns(rules.turns)

    def next(self, now: float) -> Aside:
        """What the next claim leaves aside, or where it begins."""
        aside = self._next()
        return Aside(turn=self._turns.next(now)) if aside.is_nothing else aside

    def _next(self) -> Aside:
        if not self._behind and not self._crowded:
            return NOTHING
        self._claims += 1
        if self._crowded and self._claims % (self._rules.lower_in * self._rested) == 0:
            return Aside(below=self._deeper or self._crowded)
        if self._behind and self._claims % self._rules.one_in == 0:
            return Aside(recent=self._rules.lately)
        return NOTHING

    def ended(self, waited: float, lowest: int, crowd: str, *, full: bool) -> None:
        """A claim that left nothing aside brought jobs of which the oldest waited so long, and of
        those from the line the last had that priority and was of that namespace.
        """
        self._turns.ended(crowd, lowest, full=full)
        self._behind = full and waited > self._rules.lately
        self._crowded = lowest if full else 0

    def went_below(self, brought: int, lowest: int, *, full: bool) -> None:
        """A claim that began below a priority brought so many, down to that priority."""
        self._deeper = lowest if full else 0
        self._rested = 1 if brought else self._rules.rest

    def went_in_turn(self, turn: Turn, turned: Turned, limit: int, now: float) -> None:
        """A claim of up to so many began with namespaces in turn."""
        self._turns.went(turn, turned, limit, now)
