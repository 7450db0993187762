"""How many workers the limit of a type can use.

A type may have a limit of attempts at once in the whole mesh. Workers beyond what that fills would
only wait. How much one worker takes is what those that are registered say; before the first has
said it, one is started to hear it.

A limit per key is no ceiling: how many keys wait is not known.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of attempts at once, and the room of one worker for the type; 0: not known."""

    at_once: int
    room: int = 0

    def workers(self, in_hand: int) -> int:
        """How many it can use. What is in hand counts, also beyond a limit that was lowered."""
        if not self.room:
            return 1
        return -(-max(self.at_once, in_hand) // self.room)
