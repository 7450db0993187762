"""Backlog and load per type, read only while somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.mesh.clock import Clock
from services.mesh.errors import MeshError
from services.mesh.jobs.model import BacklogStat
from services.mesh.runtime import DrainSignal, until_beat
from services.orchestrator.app.shards import Shards

ZERO = timedelta(0)

#: A read may take at most this share of the time: a huge backlog is read less often.
DUTY = 0.05
#: Where nothing waits, the next read may come so many times later: jobs that come one by one and
#: are run at once change the load all the time, and each read is a statement per shard.
CALM = 2.5


@dataclass(frozen=True, slots=True)
class TypeLoad:
    """The load of one type, summed over shards."""

    type: str
    backlog: int
    in_flight: int
    oldest_age: timedelta
    next_due_time: datetime | None
    capped: bool


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the mesh at one moment. `missing` are shards that did not answer."""

    types: list[TypeLoad]
    time: datetime
    missing: list[str]

    @property
    def calm(self) -> bool:
        """Whether no job waits, as far as all shards know."""
        return not self.missing and not any(stat.backlog for stat in self.types)


def merge(stats: Iterable[BacklogStat]) -> list[TypeLoad]:
    """Sum the statistics of several shards by type."""
    merged: dict[str, TypeLoad] = {}
    for stat in stats:
        known = merged.get(stat.type) or TypeLoad(stat.type, 0, 0, ZERO, None, False)
        merged[stat.type] = TypeLoad(
            type=stat.type,
            backlog=known.backlog + stat.due,
            in_flight=known.in_flight + stat.dispatched + stat.running,
            oldest_age=max(known.oldest_age, stat.oldest_age),
            next_due_time=_earliest(known.next_due_time, stat.next_due_time),
            capped=known.capped or stat.capped,
        )
    return sorted(merged.values(), key=lambda load: load.type)


def _earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


class Statistics:
    """Reads the load when it changed, when a job becomes due, and at least on an interval."""

    def __init__(
        self, shards: Shards, clock: Clock, drain: DrainSignal, spacing: float, cap: int
    ) -> None:
        self._shards, self._clock, self._drain = shards, clock, drain
        self._spacing, self._cap = spacing, cap
        self._changes: set[asyncio.Event] = set()

    def changed(self) -> None:
        """Something was committed; cheap, called after every write."""
        for change in self._changes:
            change.set()

    async def stream(self, interval: float) -> AsyncGenerator[Load, None]:
        """The load now, then as it changes; ends when the process drains."""
        change = asyncio.Event()
        self._changes.add(change)
        try:
            while not self._drain.is_set():
                began = self._clock.monotonic()
                # Cleared before the read: what changes during it is for the next one.
                change.clear()
                load = await self.read()
                yield load
                took = self._clock.monotonic() - began
                await self._drain.sleep(max(self._spacing_after(load), took / DUTY))
                await self._until_change(change, self._pause(load, interval))
        finally:
            self._changes.discard(change)

    async def read(self) -> Load:
        names = self._shards.names

        async def one(name: str) -> list[BacklogStat] | None:
            try:
                return await self._shards.store(name).backlog(self._cap)
            except MeshError:
                return None

        answers = await asyncio.gather(*(one(name) for name in names))
        missing = [name for name, answer in zip(names, answers, strict=True) if answer is None]
        types = merge(stat for answer in answers if answer is not None for stat in answer)
        return Load(types, self._clock.now(), missing)

    def _spacing_after(self, load: Load) -> float:
        return self._spacing * CALM if load.calm else self._spacing

    def _pause(self, load: Load, interval: float) -> float:
        """Until the next job is due, or the interval is over."""
        waits = [
            (stat.next_due_time - load.time).total_seconds()
            for stat in load.types
            if stat.next_due_time is not None
        ]
        return max(0.0, min([until_beat(interval), *waits]))

    async def _until_change(self, change: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._drain.first(change.wait())
        except TimeoutError:
            return
