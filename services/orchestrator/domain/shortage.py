"""How long it is worth waiting for a worker's room.

A put that finds no room goes into the queue, and while both sides are busy the queue never empties
again: from then on each job costs a claim. Yet a worker with quick handlers has room again within
the time that a batch takes. So puts wait for it, some times as long as that took lately. Of a type
of which nothing is known they try it once. Who waited in vain, or long, costs its submitters more
than it gains: then none of the type waits for a moment, the next time for twice as long, and so on.

Large puts also wait for the right to hand jobs out, where they might get it: the queue has what the
last ones stored there, and as long as nothing is added to it, it may be empty soon.
"""

from __future__ import annotations

from dataclasses import dataclass

#: In seconds. How long to wait at least, and where nothing is known: a put of few jobs, of many.
LEAST, LEAST_OF_MANY = 0.05, 0.1
#: How long to wait for the right itself, with many.
RIGHT = 0.25
#: Room that usually takes longer to come is not waited for.
LONG = 0.06
#: Sometimes it takes longer than usual.
TIMES = 3.0
#: How much the newest one counts.
SHARE = 0.5
#: Without any wait, after the first time in vain and at most.
PAUSE, LONGEST_PAUSE = 0.25, 64.0
#: So many jobs gain more by being handed out than a wait costs them.
MANY = 50
#: Types that are remembered; forgetting one costs a wait.
MOST_TYPES = 10_000


@dataclass(slots=True)
class _Known:
    usual: float = 0.0
    pause: float = 0.0
    not_before: float = 0.0


class Shortages:
    """What is known of them, by type. Times are the caller's."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def patience(self, type_: str, jobs: int, now: float, *, has_right: bool = True) -> float:
        """How long a put of so many should wait that finds no room; 0: not at all."""
        known = self._known.get(type_)
        if known is not None and now < known.not_before:
            return 0.0
        if not has_right:
            return RIGHT if jobs >= MANY else 0.0
        least = LEAST_OF_MANY if jobs >= MANY else LEAST
        return least if known is None else max(least, TIMES * known.usual)

    def ended(self, type_: str, seconds: float, now: float) -> None:
        """Room came after so long."""
        known = self._of(type_)
        known.usual += SHARE * (seconds - known.usual)
        if known.usual > LONG:
            self._pause(known, now)
        elif now >= known.not_before:
            known.pause = 0.0

    def in_vain(self, type_: str, now: float) -> None:
        """None came in time. To be told once for all that waited."""
        self._pause(self._of(type_), now)

    def _pause(self, known: _Known, now: float) -> None:
        known.usual = 0.0
        known.pause = min(max(PAUSE, 2 * known.pause), LONGEST_PAUSE)
        known.not_before = now + known.pause

    def _of(self, type_: str) -> _Known:
        if type_ not in self._known and len(self._known) >= MOST_TYPES:
            self._known.clear()
        return self._known.setdefault(type_, _Known())
