"""Refuses calls beyond what the process can carry.

gRPC's own limit would also turn health probes away and answer without details, so it is not used.

Some methods may take only a share of all: those that bring load, or can wait, leave room for those
that take load away (reports, heartbeats, cancels) and then for those that look at single jobs.
"""

from __future__ import annotations

from services.mesh.errors import Overloaded


class Admission:
    """Counts calls and streams under way over all methods of the process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0

    def enter(self, share: float = 1.0) -> None:
        """Count the call in, whatever follows; raise Overloaded if it is one too many."""
        self.in_flight += 1
        if self.in_flight > self._limit * share:
            raise Overloaded(f"{self.in_flight - 1} calls are under way already")

    def leave(self) -> None:
        self.in_flight -= 1
