"""How much room there will be in a moment.

A worker that asks for work only when it has room stands idle while its grab travels, is claimed for
and comes back as dispatches to be locked: longer than many handlers run. Two plain functions at a
time would start a hundred jobs per second, however short they are. So it asks a moment ahead, for
as many as will have ended by then if the next ones end as fast as the last.

What slows down is noticed within a fraction of a second. What came for room that is not there then
waits its turn, and is handed back if that takes long (see `turns`).
"""

from __future__ import annotations

#: Endings are counted over so many seconds at least.
WINDOW = 0.02
#: How many seconds it takes to forget the pace of before.
MEMORY = 0.2
#: Many are worth a grab by themselves; a worker that runs more at once needs no foresight.
MANY = 64


def most_ahead(capacity: int) -> int:
    """How many may wait for room in a worker that runs so many at once."""
    return max(0, MANY - capacity)


class Foresight:
    """Counts the endings of one type."""

    __slots__ = ("_count", "_most", "_pace", "_seconds", "_since")

    def __init__(self, seconds: float, capacity: int) -> None:
        self._seconds, self._most = seconds, most_ahead(capacity)
        self._pace, self._count = 0.0, 0
        self._since: float | None = None

    def ended(self) -> None:
        """A handler has ended."""
        self._count += 1

    def forget(self) -> None:
        """Expect nothing of what was."""
        self._pace, self._count, self._since = 0.0, 0, None

    def soon(self, now: float) -> int:
        """How many will have ended in a moment."""
        if self._since is None:
            self._count, self._since = 0, now
        elapsed = now - self._since
        if elapsed >= WINDOW:
            newest = self._count / elapsed
            self._pace += (newest - self._pace) * min(1.0, elapsed / MEMORY)
            self._count, self._since = 0, now
        return min(self._most, int(self._pace * self._seconds))
