"""When to ask for work, and for how much.

One grab is outstanding per type at a time, for as much as there is room for. Under load room
appears in crumbs, one finished attempt after the other, and asking for each crumb would melt the
batches that make the mesh fast. So a worker asks at once when a good share of its capacity is free,
and else waits a moment for more. A lone job never waits: a worker with nothing to do has all of its
capacity free.

A worker in full swing asks for more than it has room for, since some of what runs will have ended
before an answer comes. When it slows down while such a grab is out, it asks anew, for less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from services.worker.domain.foresight import Foresight

#: A worker with less capacity does not hold jobs whose time has not come in places that work which
#: is due was asked ahead for.
AMPLE = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a grab with this number and credit."""

    grab_no: int
    credit: int
    waits: bool = True
    """Jobs may be sent a moment before their time."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until`; None: until something changes."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class GrabSettings:
    """The pace of grabbing, in seconds."""

    patience: float = 6.0
    """How long an answer may take: longer than schedulers park a grab, for one may have died."""
    calm: float = 0.5
    """How long a grab is out before a scheduler that calls gets a new one instead. One with a live
    scheduler would have been answered, if the work that is called for could be had."""
    linger: float = 0.002
    """How long crumbs of room are gathered."""
    gather: float = 0.03
    """The same while at least half of what was asked for ahead still waits for its turn: nothing
    stands idle then, and what comes together costs less."""
    share: float = 0.25
    """The part of the capacity that is worth a grab at once."""
    ahead: float = 0.0
    """Work is asked for that will have room within so long."""
    stale: float = 0.25
    """A grab for more than there will be room for is out so long before it is replaced."""


class GrabPlan:
    """The state of grabbing one type. `next_step` decides; the caller does it and says so."""

    def __init__(
        self,
        capacity: int,
        settings: GrabSettings,
        backoff: Callable[[int], float],
        *,
        is_lent: bool = False,
    ) -> None:
        self._settings = settings
        self._backoff = backoff
        # What is lent comes and goes: any of it is worth a grab, and none can be foreseen.
        self._enough = 1 if is_lent else max(1, ceil(capacity * settings.share))
        self._foresight = Foresight(0.0 if is_lent else settings.ahead, capacity)
        self._is_small = capacity < AMPLE
        self._grab_no = self._credit = 0
        self._has_foreseen = False
        self._outstanding = False
        self._asked = self._heard = 0.0
        self._crumbs_since: float | None = None
        self._not_before = 0.0
        self._refusals = 0

    @property
    def is_outstanding(self) -> bool:
        return self._outstanding

    @property
    def grab_no(self) -> int:
        """The number of the latest grab."""
        return self._grab_no

    def ended(self) -> None:
        """A handler has ended."""
        self._foresight.ended()

    def foresee_nothing(self) -> None:
        """What comes holds places that others wait for: ask for what there is room for."""
        self._foresight.forget()

    def next_step(self, spare: int | None, now: float) -> Ask | Wait:
        """What to do with so much room; an Ask counts as sent. Below 0, so much was taken ahead of
        room; None: nothing may be taken.
        """
        soon = self._foresight.soon(now)
        room = 0 if spare is None else spare + soon
        if self._outstanding:
            patient_until = until = max(self._asked, self._heard) + self._settings.patience
            if self._has_foreseen:
                until = min(until, max(now, self._asked) + self._settings.stale)
            if now < patient_until:
                return Wait(until)
            self._outstanding = False
        if room <= 0:
            self._crumbs_since = None
            return Wait()
        if now < self._not_before:
            return Wait(self._not_before)
        if room < max(self._enough, soon // 2):
            ripe = self._ripe(soon, now)
            if now < ripe:
                return Wait(ripe)
        return self._ask(room, soon, now)

    def _ripe(self, soon: int, now: float) -> float:
        """When crumbs of room are asked for all the same."""
        if self._crumbs_since is None:
            self._crumbs_since = now
        return self._crumbs_since + (self._settings.gather if soon else self._settings.linger)

    def asks_too_much(self, spare: int | None, now: float) -> bool:
        """Whether there will be less room than the grab that is out has asked for. Then it does not
        count any more, and should be taken back.
        """
        if not self._outstanding or not self._has_foreseen or spare is None:
            return False
        room = spare + self._foresight.soon(now)
        if room >= self._credit or now < self._asked + self._settings.stale:
            return False
        self._outstanding = False
        return True

    def _ask(self, credit: int, soon: int, now: float) -> Ask:
        self._grab_no += 1
        self._outstanding = True
        self._asked, self._credit, self._has_foreseen = now, credit, soon > 0
        self._crumbs_since = None
        return Ask(self._grab_no, credit, waits=not (soon and self._is_small))

    def answered(self, grab_no: int) -> bool:
        """An answer came; False if it is to a grab that was given up before."""
        if grab_no != self._grab_no or not self._outstanding:
            return False
        self._outstanding = False
        self._refusals = 0
        return True

    def heard(self, grab_no: int, count: int, now: float) -> None:
        """So many attempts came of the grab that is out, and more may come."""
        if grab_no == self._grab_no and self._outstanding:
            self._heard, self._refusals = now, 0
            self._credit -= count

    def refused(self, grab_no: int, now: float) -> None:
        """Nobody heard the grab: ask again, but not at once."""
        if self._outstanding and grab_no == self._grab_no:
            self._outstanding = False
            self._refusals += 1
            self._not_before = now + self._backoff(self._refusals)

    def called(self, now: float) -> bool:
        """A scheduler calls for room; True if the grab that is out is given up for it."""
        if not self._outstanding or now < self._asked + self._settings.calm:
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        """Whoever had the grab is gone: ask again now."""
        self._outstanding = False
        self._not_before = 0.0
