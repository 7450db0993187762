"""How much submitted work a process carries at once: not calls, but what is in them.

A thousand calls may carry a thousand jobs or a million. What costs memory and time is what was
admitted and not yet answered, so that is bounded: one more is refused before anything is done for
it, and costs next to nothing. Only work that adds to the load is counted here. What takes load away
(reports, cancels) and what looks at it is never refused for the sake of it.
"""

from __future__ import annotations

from services.mesh.errors import Overloaded
from services.mesh.telemetry.metrics import Metrics


class Admitted:
    """Work that is counted in for the length of a block."""

    __slots__ = ("_items", "_limit", "_size")

    def __init__(self, limit: WorkLimit, items: int, size: int) -> None:
        self._limit, self._items, self._size = limit, items, size

    def __enter__(self) -> None:
        self._limit.take(self._items, self._size)

    def __exit__(self, *error: object) -> None:
        self._limit.give_back(self._items, self._size)


class WorkLimit:
    """Bounds jobs and bytes that are admitted and not yet answered."""

    def __init__(self, items: int, size: int, metrics: Metrics | None = None) -> None:
        self._most_items, self._most_bytes = items, size
        self.items = self.bytes = 0
        if metrics is not None:
            admitted = metrics.gauge("admitted_jobs", "Jobs admitted and not yet answered.")
            admitted.set_function(lambda: self.items)
            held = metrics.gauge("admitted_bytes", "Bytes of the jobs admitted and not answered.")
            held.set_function(lambda: self.bytes)

    def admitted(self, items: int, size: int) -> Admitted:
        """Count the work in for the length of the block; Overloaded if it is too much."""
        return Admitted(self, items, size)

    def take(self, items: int, size: int) -> None:
        """Count the work in; Overloaded, and nothing counted, if it is too much."""
        self._check(items, size)
        self.items += items
        self.bytes += size

    def give_back(self, items: int, size: int) -> None:
        """The work is answered."""
        self.items -= items
        self.bytes -= size

    def _check(self, items: int, size: int) -> None:
        if not self.items:
            return  # what exceeds the limit alone still gets its turn
        if self.items + items > self._most_items:
            raise Overloaded(f"{self.items} jobs are being stored already")
        if self.bytes + size > self._most_bytes:
            raise Overloaded(f"{self.bytes} bytes of jobs are being stored already")
