"""Word of work, as a nudge brings it, and of its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    number: int = 0
    """The name of the nudge; 0: it has none."""
    lend_at: str = ""
    """Where whoever stored the work takes grabs on loan; empty: nowhere."""

    @property
    def is_due(self) -> bool:
        return not (self.due_us or self.schedule)


@dataclass(frozen=True, slots=True)
class Served:
    """Word of another scheduler that it took work, and all that some nudges told of."""

    type: str
    shard: str
    nudges: Collection[int] = ()
