"""Which claims begin with the namespaces in turn, so that one does not starve the others.

Claims take from the front of the line: highest priority, longest due. So a namespace that stores a
hundred thousand jobs of a type has the line to itself, and whoever comes later waits for all of
them. While claims come back full, some begin elsewhere: with the other namespaces in turn, from
each an equal part, and only what these leave is taken from the line. The namespace in front, whose
job was the last that the line gave, is passed over there: it has the line.

* One such claim follows each that is all the line's while there is one other namespace with more
  than its part; two if there are two, three at most. So up to four namespaces that always have work
  have equal shares, and the line, with all its priorities, at least a quarter of the claims.
* Priorities stand above namespaces: turns are for the priority at which the line was cut and those
  above. But one in eight is for all, since a namespace could have the high ones to itself.
* One that found nobody is followed by a pause, a hundred times what it took in the server: a type
  with a single namespace, which is the rule, pays at most a hundredth of that for it, and only
  while more of it waits than can run.

Where a turn stopped the next one goes on. So of any number of namespaces each has its turn after a
bounded number of claims, and the pause is bounded, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.mesh.jobs.turns import Turn, Turned


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Times in seconds."""

    most: int = 3
    """So many claims in a row may begin in turn."""
    all_in: int = 8
    """Of so many one is for all priorities."""
    factor: float = 100.0
    """One that found nobody is followed by so many times what it took without another."""
    longest: float = 1.0
    """And by no more than this."""


class Turns:
    """The turns of one (type, shard)."""

    __slots__ = (
        "_after",
        "_again_at",
        "_crowd",
        "_found",
        "_left",
        "_level",
        "_made",
        "_row",
        "_rules",
    )

    def __init__(self, rules: TurnRules) -> None:
        self._rules = rules
        #: The namespace in front, while claims come back full; "": they do not.
        self._crowd = ""
        self._level = 0
        #: Where turns go on: those for high priorities, and those for all.
        self._after = {False: "", True: ""}
        #: Namespaces that were found to have more than their part, since the walk began.
        self._found = 0
        #: How many claims in a row begin in turn, and how many of these are left.
        self._row, self._left = 1, 0
        self._made = 0
        self._again_at = float("-inf")

    def next(self, now: float) -> Turn | None:
        """How the next claim that looks at everything begins; None: with the line."""
        if not self._crowd or now < self._again_at:
            return None
        if not self._left:
            self._left = self._row
            return None
        self._left -= 1
        self._made += 1
        for_all = not self._level or self._made % self._rules.all_in == 0
        return Turn(self._after[for_all], self._crowd, None if for_all else self._level)

    def ended(self, crowd: str, lowest: int, *, full: bool) -> None:
        """The line gave a claim all that it did not begin with, down to that priority."""
        self._crowd, self._level = crowd if full else "", lowest

    def went(self, turn: Turn, turned: Turned, limit: int, now: float) -> None:
        """A claim of up to so many began in turn."""
        self._after[turn.least is None] = turned.last
        if turned.last and turned.last <= turn.after:  # it went round, before it found these
            self._went_round()
        if turned.jobs > limit - turned.namespaces:  # a remainder cannot be shared out
            self._found += turned.namespaces
            self._row = min(self._rules.most, max(self._row, self._found))
        else:
            self._found, self._row = 0, 1
        if not turned.last:
            self._went_round()
        if not turned.jobs:
            pause = min(self._rules.longest, self._rules.factor * turned.took)
            self._again_at = now + pause

    def _went_round(self) -> None:
        self._row = max(1, min(self._rules.most, self._found))
        self._found = 0
