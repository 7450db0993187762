"""The book of attempts: what the worker has in hand, and what it may still take.

An attempt is *in hand* from the moment its dispatch arrives until its handler has ended; only that
takes up capacity. More may be in hand than may run at once: they were asked for a moment ahead of
room. From its end until the row's verdict an attempt is *unsettled*: its report, and its lock, are
kept. Both numbers are bounded, so that an Orchestrator that is away fills no memory: the worker
ceases to take work when too much is unsettled. What is in hand at that moment comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import HandedBack
from services.worker.domain.foresight import most_ahead

#: How many ended attempts are remembered, to recognise a dispatch that arrives a second time: so
#: many at least, and twice as many at most.
MEMORY = 16_384
RETURN_SECONDS = 1.0
#: How many times the bound on unsettled attempts is still given back, and not simply dropped.
FLOOD = 4


@dataclass(frozen=True, slots=True)
class Taken:
    """Run it."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The same dispatch was here before; it starts at most once."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Give it back. `superseded` is an older attempt of the job that still runs here."""

    ending: HandedBack
    superseded: Attempt | None = None


Admission = Taken | Ignored | Refused

_TAKEN = Taken()
_IGNORED = Ignored()
_UNKNOWN_TYPE = Refused(HandedBack("unknown type", RETURN_SECONDS))
_NO_ROOM = Refused(HandedBack("no room"))


def _no_room(type_: str) -> int:
    return 0


class AttemptBook:
    """Who is here. Callers say what happens; the book does the counting."""

    def __init__(
        self, capacity: Mapping[str, int], max_unsettled: int, memory: int = MEMORY
    ) -> None:
        self.capacity = dict(capacity)
        self._max_unsettled = max_unsettled
        self._memory = memory
        self._in_hand: dict[bytes, Attempt] = {}
        self._count = dict.fromkeys(capacity, 0)
        self._unsettled: set[Attempt] = set()
        #: Types that attached executors run, and who knows how many more of them they can take.
        self._lent: frozenset[str] = frozenset()
        self._lender: Callable[[str], int] = _no_room
        #: Newest fence of jobs whose attempts ended or were refused here: the last ones, and those
        #: before. Forgetting half at once takes neither order nor a search for the oldest.
        self._ended: dict[bytes, int] = {}
        self._ended_before: dict[bytes, int] = {}

    # --- what happens

    def admit(self, attempt: Attempt) -> Admission:
        """Decide about a dispatch that arrived. Taken, it is in hand; Refused, it is unsettled."""
        decision = self._decide(attempt)
        if isinstance(decision, Taken):
            self._in_hand[attempt.key] = attempt
            self._count[attempt.type] += 1
        elif isinstance(decision, Refused):
            self._unsettled.add(attempt)
            self._remember(attempt)
        return decision

    def _decide(self, attempt: Attempt) -> Admission:
        here = self._in_hand.get(attempt.key)
        if here is not None:
            if here.fence >= attempt.fence:
                return _IGNORED
            # Ours was given up by the mesh. It must end before the job may run here again: the two
            # would share a lock.
            return Refused(HandedBack("older attempt runs here", RETURN_SECONDS), here)
        if self._last_fence(attempt.key) >= attempt.fence:
            return _IGNORED
        if len(self._unsettled) >= FLOOD * self._max_unsettled:
            # Nobody was asked for these. Not even giving them back is free; the sweep finds them.
            return _IGNORED
        if attempt.type not in self.capacity:
            return _UNKNOWN_TYPE
        return _TAKEN if self._may_take(attempt.type) else _NO_ROOM

    def _may_take(self, type_: str) -> bool:
        if type_ in self._lent:
            return self.room(type_) > 0
        capacity = self.capacity[type_]
        has_place = self._count[type_] < capacity + most_ahead(capacity)
        return has_place and len(self._unsettled) < self._max_unsettled

    def end(self, attempt: Attempt) -> None:
        """Its handler ended, or will never start: frees its room. It is unsettled from now on."""
        if self._in_hand.get(attempt.key) is not attempt:
            return
        del self._in_hand[attempt.key]
        self._count[attempt.type] -= 1
        self._unsettled.add(attempt)
        self._remember(attempt)

    def _remember(self, attempt: Attempt) -> None:
        key = attempt.key
        self._ended[key] = max(attempt.fence, self._last_fence(key))
        if len(self._ended) >= self._memory:
            self._ended, self._ended_before = {}, self._ended

    def _last_fence(self, key: bytes) -> int:
        """Of the newest dispatch of this job that ended here; -1: not known."""
        fence = self._ended.get(key)
        return self._ended_before.get(key, -1) if fence is None else fence

    def settle(self, attempt: Attempt) -> bool:
        """Nothing more is to be said about it. True if that makes room for every type."""
        was_full = len(self._unsettled) >= self._max_unsettled
        self._unsettled.discard(attempt)
        return was_full

    def lend(self, capacity: Mapping[str, int], room: Callable[[str], int]) -> bool:
        """What attached executors can take, by type, instead of what was said before.

        `room` knows how many more of such a type can be taken at any moment. True if that changes
        what the worker offers.
        """
        before = dict(self.capacity)
        for type_ in self._lent:
            del self.capacity[type_]
        self._lent, self._lender = frozenset(capacity), room
        self.capacity.update(capacity)
        for type_ in capacity:
            self._count.setdefault(type_, 0)
        return self.capacity != before

    # --- what is

    @property
    def lends(self) -> bool:
        """Whether executors ever attached."""
        return self._lender is not _no_room

    @property
    def lent(self) -> frozenset[str]:
        """The types that attached executors run."""
        return self._lent

    def is_lent(self, type_: str) -> bool:
        """Whether attached executors run the type."""
        return type_ in self._lent

    def sharing(self, type_: str) -> Collection[str]:
        """The types that there may be room for when an attempt of this one has ended."""
        if type_ in self.capacity and type_ not in self._lent:
            return (type_,)
        # An attached executor has one room for all its types; what waits for one that left, too.
        return self._lent

    def room(self, type_: str) -> int:
        """How many more attempts of the type may be taken now."""
        return max(0, self.spare(type_))

    def spare(self, type_: str) -> int:
        """The same; below 0, so many were taken ahead of room."""
        if type_ in self._lent:
            free = self._lender(type_)
        else:
            free = self.capacity.get(type_, 0) - self._count[type_]
        return min(free, self._max_unsettled - len(self._unsettled))

    def may_run(self, type_: str) -> int:
        """How many attempts of the type may run at once; who lends knows that by itself."""
        if type_ in self._lent or type_ not in self.capacity:
            return self._max_unsettled
        return self.capacity[type_]

    def in_hand(self, type_: str | None = None) -> int:
        return len(self._in_hand) if type_ is None else self._count[type_]

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    @property
    def is_full(self) -> bool:
        """Whether so much is unsettled that nothing may be taken, wherever there is room."""
        return len(self._unsettled) >= self._max_unsettled

    def find(self, key: bytes, fence: int = 0) -> Attempt | None:
        """The attempt of a job in hand; of that fence, if one is given."""
        attempt = self._in_hand.get(key)
        if attempt is None or fence not in (0, attempt.fence):
            return None
        return attempt

    def __iter__(self) -> Iterator[Attempt]:
        """The attempts in hand, oldest first."""
        return iter(tuple(self._in_hand.values()))
