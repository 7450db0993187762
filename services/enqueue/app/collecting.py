"""The collector of orphaned objects: uploads that were never submitted, outputs that were refused,
and everything of jobs that were deleted.

It lists the stores page by page, slowly. An object goes only if it is older than a safe age and an
Orchestrator says that no row refers to it; a shard that does not answer keeps everything. The age
is what makes it safe: between the look for references and the deletion somebody could submit the
very object. Whoever submits an input that is half as old gets a fresh copy (`Inputs.verify`), so a
job never comes to refer to one that is about to go. Outputs need no age: a row that does not exist
does not come back, and one that has moved on refuses the attempt.

One replica at a time: whoever holds the key in etcd. Two at once would do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from services.mesh.blob import BlobStore
from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.runtime import Counts, Loop
from services.mesh.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

PAGE = 500
#: How long one page may take, and the rest after it.
LEAST_REST = 0.2
REST_FACTOR = 4.0

#: Whether we are still the one; asked before each page.
Holds = Callable[[], bool]
#: Those of the keys that nobody refers to.
FindOrphans = Callable[[Sequence[str]], Awaitable[Sequence[str]]]


class Turns(Protocol):
    """Lets one collector of the mesh work at a time."""

    def turn(self) -> AbstractAsyncContextManager[Holds | None]:
        """None: another one is at it."""
        ...


@dataclass(frozen=True, slots=True)
class Shelf:
    """One store, and how to find what nobody refers to in it."""

    store: BlobStore
    orphans: FindOrphans


class Collector(Loop):
    """Goes through all stores once per pass."""

    def __init__(
        self,
        shelves: Mapping[str, Shelf],
        turns: Turns,
        clock: Clock,
        metrics: Metrics,
        *,
        interval: float,
        age: timedelta,
        dry_run: bool = False,
    ) -> None:
        super().__init__("collector", interval)
        self._shelves, self._turns, self._clock = shelves, turns, clock
        self._age, self._dry_run = age, dry_run
        self._seen = metrics.counter("objects_seen", "Objects looked at.", ("store",))
        self._collected = metrics.counter(
            "objects_collected", "Objects deleted that nobody refers to.", ("store",)
        )

    async def run_once(self) -> Counts:
        """One time through; what cannot be decided now is kept."""
        counts: Counter[str] = Counter()
        async with self._turns.turn() as holds:
            if holds is not None:
                for name, shelf in self._shelves.items():
                    counts.update(await self._walk(name, shelf, holds))
        return counts

    async def _walk(self, name: str, shelf: Shelf, holds: Holds) -> Counter[str]:
        counts: Counter[str] = Counter()
        async for keys, seen in self._pages(shelf.store):
            if not holds():
                break
            gone = await self._collect(shelf, keys)
            counts.update({"seen": seen, "collected": len(gone)})
            self._seen.labels(name).inc(seen)
            if not self._dry_run:
                self._collected.labels(name).inc(len(gone))
        if counts["collected"]:
            would = "would delete" if self._dry_run else "deleted"
            extra = {"action": "objects_collected", "store": name, "dry_run": self._dry_run}
            extra |= {"count": counts["collected"], "seen": counts["seen"]}
            log.info("%s objects that nobody refers to", would, extra=extra)
        return counts

    async def _pages(self, store: BlobStore) -> AsyncIterator[tuple[list[str], int]]:
        """The old keys of each page, and how many objects it had."""
        after = ""
        while True:
            began = self._clock.monotonic()
            page = await store.page(after, PAGE)
            oldest = self._clock.now() - self._age
            yield [one.key for one in page if one.time < oldest], len(page)
            if len(page) < PAGE:
                return
            after = page[-1].key
            took = self._clock.monotonic() - began
            await asyncio.sleep(max(LEAST_REST, REST_FACTOR * took))

    async def _collect(self, shelf: Shelf, keys: list[str]) -> Sequence[str]:
        if not keys:
            return ()
        try:
            orphans = await shelf.orphans(keys)
        except DependencyUnavailable:
            raise
        except MeshError as error:
            extra = {"action": "orphans_undecided", "count": len(keys), "error": str(error)}
            log.info("kept objects: not everybody could be asked", extra=extra)
            return ()
        if orphans and not self._dry_run:
            await shelf.store.delete(orphans)
        return orphans
