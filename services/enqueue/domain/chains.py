"""The items of one batch that wait for each other, in rounds. Pure.

A job can only wait for what is stored, and its id is made when it is stored: so a batch whose items
name each other is stored round by round. The first round waits for nobody; each other one waits for
items of the rounds before it. An item may name only earlier ones, so there is no cycle to be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.mesh.errors import InvalidField

#: Rounds of one call: each takes the time of a submission, and a call must end.
MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Rounds:
    """The places of the items by round, and what is wrong with those that are in none."""

    rounds: Sequence[Sequence[int]]
    errors: Mapping[int, InvalidField]


def plan(parents: Sequence[Sequence[int]]) -> Rounds:
    """`parents` are the places that each item names."""
    rounds: list[list[int]] = []
    errors: dict[int, InvalidField] = {}
    depths: list[int] = []
    for place, named in enumerate(parents):
        error = _misnamed(place, named)
        # What waits for a bad item comes after it: it will be told that its parent is not there.
        depth = 0 if error else max((depths[parent] + 1 for parent in named), default=0)
        if error is None and depth >= MOST_ROUNDS:
            error = _bad(
                0, f"is the end of a chain of more than {MOST_ROUNDS} items in one message"
            )
        depths.append(depth)
        if error is not None:
            errors[place] = error
            continue
        while len(rounds) <= depth:
            rounds.append([])
        rounds[depth].append(place)
    return Rounds(rounds, errors)


def _misnamed(place: int, named: Sequence[int]) -> InvalidField | None:
    for number, parent in enumerate(named):
        if not 0 <= parent < place:
            text = f"names item {parent}; an item can wait only for those before it"
            return _bad(number, text)
        if parent in named[:number]:
            return _bad(number, f"names item {parent} again")
    return None


def _bad(number: int, text: str) -> InvalidField:
    return InvalidField(f"item_dependencies[{number}].item", text)
