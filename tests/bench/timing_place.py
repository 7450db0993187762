"""Where the figures of time are measured, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localmesh.harness import RunningMesh

from tests.bench import cpu
from tests.bench.ground import percentile
from tests.bench.load import Load


@dataclass(frozen=True, slots=True)
class Place:
    """A mesh with a client; `size` 1 is what the figures' names say."""

    mesh: RunningMesh
    load: Load
    size: float

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.size))


def lateness(starts: Sequence[tuple[datetime, datetime]]) -> dict[str, Any]:
    """Milliseconds from due to start."""
    late = [(start - due).total_seconds() * 1e3 for due, start in starts]
    return {
        "p50_ms": round(percentile(late, 0.5), 2),
        "p99_ms": round(percentile(late, 0.99), 2),
        "max_ms": round(max(late), 2),
        "early": sum(value < 0 for value in late),
    }


async def percent_of_a_core(mesh: RunningMesh, seconds: float) -> dict[str, float]:
    """What each process spends while nothing is asked of it."""
    before = cpu.read(mesh, by_unit=True)
    await asyncio.sleep(seconds)
    spent = cpu.read(mesh, by_unit=True).since(before)
    del spent["client"]
    percent = {name: round(100 * value / seconds, 2) for name, value in sorted(spent.items())}
    return percent | {"all": round(sum(percent.values()), 2)}
