"""The bucket map: loaded from etcd or created there, and followed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import count
from uuid import UUID

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.ids import bucket_for_key, bucket_of
from services.mesh.jobs.topology import BucketMap, Shard
from services.mesh.lease import Entry, Keys, Put, Registry, Snapshot
from services.mesh.runtime import Backoff, Dependency, Tasks

log = logging.getLogger(__name__)

#: Between tries to write the map: nothing is routed before it is known.
BACKOFF = Backoff(first=0.1, ceiling=1.0)


class TopologyKeeper:
    """Holds the newest map. Before the first one has come, nothing can be routed."""

    def __init__(
        self,
        registry: Registry,
        keys: Keys,
        shards: Sequence[str],
        tasks: Tasks,
        ready: Dependency,
    ) -> None:
        self._registry, self._key, self._shards = registry, keys.topology, list(shards)
        self._tasks, self._ready = tasks, ready
        self._map: BucketMap | None = None
        self._listeners: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def map(self) -> BucketMap:
        if self._map is None:
            raise DependencyUnavailable("etcd", "the bucket map is not known yet: etcd is away")
        return self._map

    def shard_of(self, job_id: UUID) -> str:
        return self.map.shard_of(bucket_of(job_id))

    def shard_for_key(self, namespace: str, key: str) -> str:
        return self.map.shard_of(bucket_for_key(namespace, key))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the map changes; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self) -> None:
        self._task = self._tasks.spawn(self._follow(), "topology")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch(self._key)) as changes:
            async for change in changes:
                if isinstance(change, Snapshot):
                    await self._meet(change.entries.get(self._key))
                elif change.entry.key != self._key:
                    continue
                elif isinstance(change, Put):
                    self._take(BucketMap.from_json(change.entry.value))
                else:
                    # etcd was wiped: jobs lie where our map says, so it is still the right one.
                    await self._meet(None)

    async def _meet(self, entry: Entry | None) -> None:
        """Take the map that is there; create the first one, or add shards it does not know."""
        known = BucketMap.from_json(entry.value) if entry is not None else self._map
        wanted = self._with_configured(known)
        if entry is None or wanted is not known:
            revision = entry.revision if entry is not None else 0
            if not await self._write(wanted, revision):
                # Another Orchestrator was faster; its map comes through the watch.
                return
        self._take(wanted)

    async def _write(self, wanted: BucketMap, revision: int) -> bool:
        """Whether the map was written; keeps trying while etcd is away."""
        for failures in count(1):
            try:
                value = wanted.to_json().encode()
                written = await self._registry.replace(self._key, value, revision)
            except DependencyUnavailable as error:
                self._ready.down(error)
                await asyncio.sleep(BACKOFF.delay(failures))
                continue
            if written is not None:
                extra = {"action": "topology_written", "epoch": wanted.epoch}
                log.info("wrote the bucket map", extra=extra)
            return written is not None
        raise AssertionError("unreachable")

    def _with_configured(self, known: BucketMap | None) -> BucketMap:
        if known is None:
            return BucketMap.even(self._shards)
        names = {shard.name for shard in known.shards}
        for name in self._shards:
            if name not in names:
                known = known.with_shard(Shard(name))
        return known

    def _take(self, found: BucketMap) -> None:
        self._ready.up()
        if self._map is not None and found.epoch <= self._map.epoch:
            return
        self._map = found
        for listener in self._listeners:
            listener()
