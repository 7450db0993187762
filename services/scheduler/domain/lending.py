"""Whom to lend workers' grabs to, and what is lent.

An Orchestrator that stores jobs of a type says with its nudges where it takes grabs of it on loan.
While nothing of the type waits, it makes better use of them than whoever parks them. Two that store
the same type would take them from each other: then nobody gets any for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

#: Types that are remembered; forgetting one costs the next job of it the usual way.
MOST_TYPES = 10_000
#: A loan ends there a little later than it does for us.
SLACK = 0.5
#: A nudge that comes so soon after a loan may have been written before the loan arrived.
CROSSING = 0.1


@dataclass(frozen=True, slots=True)
class LoanRules:
    """Times, in seconds."""

    lasts: float = 4.5
    """How long a loan lasts: less than a worker waits for an answer to its grab."""
    memory: float = 60.0
    """For how long after its last nudge an Orchestrator may be lent to. While loans serve a type
    there are no nudges of it."""
    contested: float = 1.0
    """For how long nothing is lent after two Orchestrators stored the same type within as long:
    taking turns they cost each other a message more than they gain."""


@dataclass(slots=True)
class _Borrower:
    at: str
    heard: float
    not_before: float = -inf
    lent_until: float = -inf


class LoanPlan:
    """What is known of borrowers, by type. Times are the caller's."""

    def __init__(self, rules: LoanRules) -> None:
        self.rules = rules
        self._borrowers: dict[str, _Borrower] = {}

    def heard(self, type_: str, at: str, now: float) -> None:
        """An Orchestrator has stored jobs of the type, which it could not hand out. If it had grabs
        of ours, it has sent them back.
        """
        known = self._borrowers.get(type_)
        if known is None:
            if len(self._borrowers) >= MOST_TYPES:
                self._borrowers.clear()
            self._borrowers[type_] = _Borrower(at, now)
            return
        if known.at == at:
            lent = known.lent_until - SLACK - self.rules.lasts
            if now > lent + CROSSING:
                known.lent_until = -inf
        elif now < known.heard + self.rules.contested:
            known.not_before = now + self.rules.contested
        known.at, known.heard = at, now

    def asked(self, type_: str, at: str, now: float) -> None:
        """The borrower has grabs of the type, and would keep them for longer. Not if another one
        was heard of since.
        """
        known = self._borrowers.get(type_)
        if known is not None and known.at == at:
            known.heard = now

    def borrower(self, type_: str, now: float) -> str | None:
        """Whom grabs of the type may be lent to now."""
        known = self._borrowers.get(type_)
        if known is None or now < known.not_before or now > known.heard + self.rules.memory:
            return None
        return known.at

    def lent(self, type_: str, now: float) -> None:
        """The borrower has grabs of the type."""
        self._borrowers[type_].lent_until = now + self.rules.lasts + SLACK

    def recall(self, type_: str, now: float) -> bool:
        """Grabs of the type are wanted; whether some may be out. They are not, from here on."""
        known = self._borrowers.get(type_)
        if known is None or now > known.lent_until:
            return False
        known.lent_until = -inf
        return True
