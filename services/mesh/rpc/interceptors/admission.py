"""Refuses calls beyond what the process can carry.

gRPC's own limit would also turn health probes away and answer without details, so it is not used.
"""

from __future__ import annotations

from services.mesh.errors import Overloaded


class Admission:
    """Counts calls and streams under way over all methods of the process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0

    def enter(self) -> None:
        """Count the call in, whatever follows; raise Overloaded if it is one too many."""
        self.in_flight += 1
        if self.in_flight > self._limit:
            raise Overloaded(f"{self._limit} calls are under way already")

    def leave(self) -> None:
        self.in_flight -= 1
