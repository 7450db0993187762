"""What operators are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from services.mesh.jobs.credit import Grab


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard that this scheduler looks after."""

    shard: str
    slot_end: datetime | None
    waiting: int
    """Due times of the slot that have not come yet."""
    lag: float
    """Seconds by which slot grabbing is behind."""
    error: str


@dataclass(frozen=True, slots=True)
class View:
    """What this scheduler does."""

    scheduler_id: str
    members: Sequence[str]
    shards: Sequence[ShardView]
    parked: Sequence[Grab]
    paused: Sequence[str]


@dataclass(slots=True)
class TickReport:
    """What one round of every duty did."""

    counts: dict[str, int] = field(default_factory=dict)
    due_types: set[str] = field(default_factory=set)

    def add(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
