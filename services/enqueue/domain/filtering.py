"""A watch by filter as a pure data structure: what it wants, and how far it was delivered.

Each shard has an order of its events, and a watch has a place in each. It begins with a snapshot:
the place is taken first, the jobs are listed then, so nothing can fall between the two; what comes
from the order and was in the listed state already is left out, by its version. That memory is
needed until the place has passed everything the listing can have seen (`listed`); from then on the
places alone say where the watch is, and they are its token. A place is taken once: if a listing is
broken off and made again, what it showed the first time is followed by the order from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from services.mesh.jobs.model import Position

BEGINNING = Position(0, 0)


@dataclass(frozen=True, slots=True)
class WatchFilter:
    """Which transitions a watch wants. Empty fields do not restrict."""

    namespace: str
    types: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    states: frozenset[int] = frozenset()

    def wants(self, type_: str, state: int, labels: Mapping[str, str]) -> bool:
        """Whether a transition of its namespace matches."""
        return (
            (not self.types or type_ in self.types)
            and (not self.states or state in self.states)
            and all(labels.get(name) == value for name, value in self.labels)
        )

    def identity(self) -> bytes:
        """The same for the same filter: what a token is bound to."""
        parts = (self.namespace, sorted(self.types), sorted(self.labels), sorted(self.states))
        return repr(parts).encode()


class FilterProgress:
    """How far one watch was delivered, shard by shard."""

    __slots__ = ("_at", "_unlisted", "_unpassed", "_versions")

    def __init__(self) -> None:
        self._at: dict[str, Position] = {}
        self._unlisted: set[str] = set()
        self._unpassed: dict[str, int] = {}
        self._versions: dict[str, int] = {}

    @property
    def is_settled(self) -> bool:
        """Whether the places say everything: a token may be given out."""
        return not self._unlisted and not self._unpassed

    def expect(self, shard: str) -> None:
        """The shard's jobs are to be listed; until they are there is no token."""
        self._unlisted.add(shard)

    def is_listed(self, shard: str) -> bool:
        """Whether its events may be delivered: no job of it has yet to be shown."""
        return shard not in self._unlisted

    def begin(self, shard: str, at: Position) -> None:
        """What follows this place will come."""
        self._at[shard] = at

    def at(self, shard: str) -> Position:
        return self._at[shard]

    def places(self) -> Mapping[str, Position]:
        return self._at

    def snapshot(self, job_id: str, version: int) -> bool:
        """A job was listed; whether that is news. What was shown before goes on by its events."""
        if job_id in self._versions:
            return False
        self._versions[job_id] = version
        return True

    def listed(self, shard: str, next_xid: int) -> None:
        """The shard's jobs were listed; all that was listed was committed before this one."""
        self._unlisted.discard(shard)
        self._unpassed[shard] = next_xid

    def event(self, shard: str, at: Position, job_id: str, version: int) -> bool:
        """The order brought an event; whether it is news."""
        if at <= self._at[shard]:
            return False
        self._at[shard] = at
        if not self._versions:
            return True
        known = self._versions.get(job_id, 0)
        if version > known > 0:
            self._versions[job_id] = version
        return version > known

    def reached(self, shard: str, at: Position, passed: int = 0) -> None:
        """Every event up to this place was brought, and of all transactions before `passed`."""
        if at > self._at[shard]:
            self._at[shard] = at
        if passed >= self._unpassed.get(shard, math.inf):
            del self._unpassed[shard]
        if self.is_settled:
            self._versions.clear()
