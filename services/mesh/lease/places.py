"""Which places of limits to take: a pure choice over what is held.

A limit of N has the places 1 to N, and a place is a key that only one lease can hold, so that there
are never more than N. When a limit was lowered, places above the new N are still held for a while.
They count: as long as there are such, numbers do not tell how many are free, and nobody may have
taken a place since the look that the choice is based on (`Choice.alone`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from random import Random

from services.mesh.jobs.limits import Limit
from services.mesh.lease.port import PlaceWish

#: Draws at random before the free places are counted through.
DRAWS = 16

#: By limit: the held places, and who has each.
Held = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to take for one owner."""

    owner: str
    places: tuple[tuple[str, int], ...]
    """Limit and number."""
    alone: tuple[str, ...] = ()
    """Limits of which nobody may have taken a place meanwhile."""
    owned: bool = False
    """The owner has them already: an earlier answer was lost."""


@dataclass(frozen=True, slots=True)
class Full:
    """There is no place for the owner."""

    owner: str
    limit: str


def choose(wishes: Iterable[PlaceWish], held: Held, random: Random) -> list[Choice | Full]:
    """Places for each owner, no place twice; what an owner has already is chosen again."""
    now = {limit: dict(places) for limit, places in held.items()}
    return [_choose(wish, now, random) for wish in wishes]


def _choose(
    wish: PlaceWish, held: MutableMapping[str, dict[int, str]], random: Random
) -> Choice | Full:
    places: list[tuple[str, int]] = []
    for limit in wish.limits:
        number = _number(wish.owner, limit, held.setdefault(limit.name, {}), random)
        if number is None:
            return Full(wish.owner, limit.name)
        places.append((limit.name, number))
    owned = all(held[name].get(number) == wish.owner for name, number in places)
    for name, number in places:
        held[name][number] = wish.owner
    alone = tuple(limit.name for limit in wish.limits if max(held[limit.name]) > limit.places)
    return Choice(wish.owner, tuple(places), alone, owned)


def _number(owner: str, limit: Limit, held: Mapping[int, str], random: Random) -> int | None:
    for number, holder in held.items():
        if holder == owner:
            return number
    if len(held) >= limit.places:
        return None
    # At random: workers that look at the same time should not all want the same place.
    for _ in range(DRAWS):
        number = random.randint(1, limit.places)
        if number not in held:
            return number
    return next((n for n in range(1, limit.places + 1) if n not in held), None)
