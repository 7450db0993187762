"""How much room there will be in a moment.

A worker that asks for work only when it has room stands idle while its grab travels, is claimed for
and comes back as dispatches to be locked: longer than many handlers run. Two plain functions at a
time would start a hundred jobs per second, however short they are. So it asks a moment ahead, for
as many as will have ended by then if the next ones end as fast as the last.

A worker that runs many at once has batches, and those should stay whole: each costs seven processes
more than a job does. So it asks for a whole batch more, to be claimed and locked while the last one
runs, or for nothing: as long as its handlers are quick enough to make room for that in a moment.

What slows down is noticed within a fraction of a second. What came for room that is not there then
waits its turn, and is handed back if that takes long (see `turns`).
"""

from __future__ import annotations

#: Endings are counted over so many seconds at least.
WINDOW = 0.02
#: How many seconds it takes to forget the pace of before.
MEMORY = 0.2
#: Many are worth a grab by themselves: a worker that runs so many at once asks for whole batches.
MANY = 64
#: What one claim brings at most.
BATCH = 500
#: A whole batch is asked for when so much of it would have room in a moment.
SHARE = 0.25


def most_ahead(capacity: int) -> int:
    """How many may wait for room in a worker that runs so many at once."""
    return MANY - capacity if capacity < MANY else min(capacity, BATCH)


class Foresight:
    """Counts the endings of one type."""

    __slots__ = ("_count", "_most", "_pace", "_seconds", "_since", "_whole")

    def __init__(self, seconds: float, capacity: int) -> None:
        self._seconds, self._most = seconds, most_ahead(capacity)
        self._whole = capacity >= MANY
        self._pace, self._count = 0.0, 0
        self._since: float | None = None

    def ended(self) -> None:
        """A handler has ended."""
        self._count += 1

    def forget(self) -> None:
        """Expect nothing of what was."""
        self._pace, self._count, self._since = 0.0, 0, None

    def soon(self, now: float) -> int:
        """How many to ask for that have no room yet."""
        if self._since is None:
            self._count, self._since = 0, now
        elapsed = now - self._since
        if elapsed >= WINDOW:
            newest = self._count / elapsed
            self._pace += (newest - self._pace) * min(1.0, elapsed / MEMORY)
            self._count, self._since = 0, now
        expected = int(self._pace * self._seconds)
        if self._whole:
            return self._most if expected >= SHARE * self._most > 0 else 0
        return min(self._most, expected)
