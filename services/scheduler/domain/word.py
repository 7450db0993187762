"""Word of work, as a nudge brings it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """What a nudge says."""

    shard: str
    types: Sequence[str]
    due_us: int = 0
    """When the earliest of the work is due, by the shard's clock; 0: now."""
    more: bool = False
    """There is more that is due soon after."""
    schedule: bool = False
    """The work is a schedule, new or changed."""
    long_due: bool = False
    """Some of it has been due for long."""

    @property
    def is_due(self) -> bool:
        return not (self.due_us or self.schedule)
