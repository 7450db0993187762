"""Leadership: whoever created the key under a living lease leads.

It promises efficiency, not exclusion: a leader that is cut off goes on believing until its trust
window ends. Work that must not be done twice is guarded where it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from itertools import count

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.port import (
    Deleted,
    Entry,
    Leadership,
    Lease,
    LeaseLost,
    Put,
    Registry,
    Snapshot,
    WatchEvent,
)
from services.mesh.runtime import Backoff

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.1, ceiling=1.0)


class Election(Leadership):
    """One candidate for one key. The key's value is the candidate's name."""

    def __init__(self, registry: Registry, lease: Lease, key: str, candidate: str) -> None:
        self._registry = registry
        self._lease = lease
        self._key = key
        self._candidate = candidate
        self._holder: Entry | None = None
        self._announced = False
        self._callbacks: list[Callable[[bool], None]] = []
        self._task: asyncio.Task[None] | None = None
        lease.on_change(lambda _: self._announce())

    @property
    def is_leader(self) -> bool:
        return self._holds_key and self._lease.alive

    @property
    def leader(self) -> str:
        """The candidate that leads, as far as we know; empty if nobody does."""
        return self._holder.value.decode(errors="replace") if self._holder else ""

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call back with `is_leader` whenever it changes."""
        self._callbacks.append(callback)

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"election-{self._key}")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self._resign()

    @property
    def _holds_key(self) -> bool:
        return self._holder is not None and self._holder.lease_id == self._lease.lease_id

    async def _run(self) -> None:
        async with aclosing(self._registry.watch(self._key)) as events:
            async for event in events:
                self._learn(event)
                if self._holder is None and not await self._campaign():
                    return

    def _learn(self, event: WatchEvent) -> None:
        match event:
            case Snapshot(entries):
                self._holder = entries.get(self._key)
            case Put(entry) if entry.key == self._key:
                self._holder = entry
            case Deleted(entry) if entry.key == self._key:
                self._holder = None
        self._announce()

    async def _campaign(self) -> bool:
        """Try to create the key until etcd says yes or no; False if there is no lease to create it
        under.
        """
        value = self._candidate.encode()
        for failures in count(1):
            try:
                revision = await self._registry.replace(self._key, value, 0, self._lease)
            except LeaseLost:
                return False
            except DependencyUnavailable:
                # If it was applied all the same, the next try finds the key there and the watch
                # says whose it is.
                await asyncio.sleep(BACKOFF.delay(failures))
                continue
            if revision is not None:
                self._holder = Entry(self._key, value, revision, self._lease.lease_id)
                self._announce()
            return True
        raise AssertionError("unreachable: the count does not end")

    async def _resign(self) -> None:
        holder, self._holder = self._holder, None
        self._announce()
        if holder is not None and holder.lease_id == self._lease.lease_id:
            # If it fails, the key ends with the lease.
            with suppress(DependencyUnavailable):
                await self._registry.delete(self._key, holder.revision)

    def _announce(self) -> None:
        leading = self.is_leader
        if leading == self._announced:
            return
        self._announced = leading
        log.info(
            "now leading" if leading else "no longer leading",
            extra={"action": "leadership_changed", "key": self._key, "leading": leading},
        )
        for callback in self._callbacks:
            try:
                callback(leading)
            except Exception:
                log.exception("leadership callback failed", extra={"action": "callback_failed"})
