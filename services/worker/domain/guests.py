"""Executors that are attached, how much each can take, and what each has in hand.

An executor gives one number: how many attempts it can have in hand at once, of all its types
together. An attempt is in its hands from when it is chosen for it until the executor says how it
ended. One that was stopped stays in hand as well: the worker is done with it, but the executor may
still be at it, and its room is taken until it says otherwise or leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Different types that may be attached to one worker in its life: each costs some memory for good.
MAX_TYPES = 1000

Hold = tuple[bytes, int]
"""An attempt by its key and fence."""


class Guest:
    """One attached executor, as far as counting goes."""

    def __init__(self, name: str, types: Iterable[str]) -> None:
        self.name = name
        self.types = frozenset(types)
        self.credit = 0
        self.in_hand: set[Hold] = set()

    @property
    def free(self) -> int:
        return max(0, self.credit - len(self.in_hand))


class GuestBook:
    """Who is attached."""

    def __init__(self) -> None:
        self._guests: dict[Guest, None] = {}
        self._known: set[str] = set()

    # --- coming and going

    def enter(self, guest: Guest) -> bool:
        """Take an executor in; False if that would be too many different types."""
        if len(self._known | guest.types) > MAX_TYPES:
            return False
        self._known |= guest.types
        self._guests[guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        self._guests.pop(guest, None)

    def __iter__(self) -> Iterator[Guest]:
        return iter(tuple(self._guests))

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def known(self) -> frozenset[str]:
        """All types that anybody ever attached with."""
        return frozenset(self._known)

    # --- what there is room for

    def capacity(self, type_: str) -> int:
        """How many attempts of the type could run at once, if nothing else did."""
        return sum(guest.credit for guest in self._guests if type_ in guest.types)

    def capacities(self) -> dict[str, int]:
        """The same for all types that somebody attached has."""
        types = {type_ for guest in self._guests for type_ in guest.types}
        return {type_: self.capacity(type_) for type_ in sorted(types)}

    def room(self, type_: str, waiting: int) -> int:
        """How many more of the type can be taken, when so many of all types wait for a guest."""
        free = sum(guest.free for guest in self._guests if type_ in guest.types)
        return max(0, free - waiting)

    @property
    def in_hand(self) -> int:
        return sum(len(guest.in_hand) for guest in self._guests)

    def choose(self, type_: str, hold: Hold) -> Guest | None:
        """The executor with the most room for the type, which has the attempt from now on."""
        fit = [guest for guest in self._guests if guest.free > 0 and type_ in guest.types]
        if not fit:
            return None
        guest = max(fit, key=lambda one: one.free)
        guest.in_hand.add(hold)
        return guest
