"""A shard's gate: closed after a failure, open again after a sign of life.

A claim on a shard that does not answer holds a worker's credit until its deadline. That may happen
once per outage, not once per nudge: after the first failure nobody asks the shard for jobs until a
probe, which holds nothing, has been answered. An error that the shard itself told is an answer.
"""

from __future__ import annotations


class Gate:
    """Whether one shard may be asked. Closed until it has answered for the first time."""

    __slots__ = ("error", "failures")

    def __init__(self) -> None:
        self.failures = 1
        """In a row, since the last answer."""
        self.error = "not reached yet"
        """What went wrong last; empty while open."""

    @property
    def open(self) -> bool:
        return self.failures == 0

    def answered(self) -> bool:
        """The shard answered; True if that opens the gate."""
        opened = not self.open
        self.failures, self.error = 0, ""
        return opened

    def failed(self, error: str) -> bool:
        """The shard did not answer; True if that closes the gate."""
        closed = self.open
        self.failures += 1
        self.error = error
        return closed
