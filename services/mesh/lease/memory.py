"""The coordination store within one process, for tests: the same behaviour, no etcd.

`MemoryStore` is the etcd; leases in it end when a test says so, never by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import count
from random import Random
from uuid import UUID

from services.mesh.jobs.limits import Place
from services.mesh.lease.keys import Keys
from services.mesh.lease.places import Full, choose
from services.mesh.lease.port import (
    Deleted,
    Entry,
    Lease,
    LeaseLost,
    LeaseState,
    LockOwner,
    LockResult,
    Locks,
    LockTable,
    PlaceResult,
    Places,
    PlaceWish,
    Put,
    Registry,
    Snapshot,
    WatchEvent,
)


class MemoryStore:
    """Keys, leases and watchers."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, MemoryLease] = {}
        self._lease_ids = count(1)
        self._revisions = count(1)
        self._watchers: list[tuple[str, asyncio.Queue[WatchEvent]]] = []

    def grant(self) -> MemoryLease:
        lease = MemoryLease(self, next(self._lease_ids))
        self.leases[lease.lease_id] = lease
        return lease

    def put(self, key: str, value: bytes, lease_id: int) -> Entry:
        if lease_id and lease_id not in self.leases:
            raise LeaseLost(lease_id, "the store does not know it")
        entry = Entry(key, value, next(self._revisions), lease_id)
        self.entries[key] = entry
        self._publish(Put(entry))
        return entry

    def delete(self, key: str) -> bool:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._publish(Deleted(entry, next(self._revisions)))
        return entry is not None

    def revoke(self, lease_id: int) -> None:
        self.leases.pop(lease_id, None)
        for key in [k for k, entry in self.entries.items() if entry.lease_id == lease_id]:
            self.delete(key)

    async def follow(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        watcher = (prefix, queue)
        self._watchers.append(watcher)
        found = {key: entry for key, entry in self.entries.items() if key.startswith(prefix)}
        try:
            yield Snapshot(found)
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(watcher)

    def _publish(self, event: Put | Deleted) -> None:
        for prefix, queue in self._watchers:
            if event.entry.key.startswith(prefix):
                queue.put_nowait(event)


class MemoryLease(Lease):
    """A lease that lives until it is closed, or a test ends it with `expire`."""

    def __init__(self, store: MemoryStore, lease_id: int) -> None:
        self._store = store
        self._lease_id = lease_id
        self._state = LeaseState.HELD
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[LeaseState], None]] = []

    @property
    def lease_id(self) -> int:
        return self._lease_id

    @property
    def state(self) -> LeaseState:
        return self._state

    @property
    def alive(self) -> bool:
        return self._state is LeaseState.HELD

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    def on_change(self, callback: Callable[[LeaseState], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        if self._state is not LeaseState.CLOSED:
            self._store.revoke(self._lease_id)
            self._enter(LeaseState.CLOSED)

    def expire(self) -> None:
        """End the lease as the server does: its keys vanish and its holder learns of it."""
        self._store.revoke(self._lease_id)
        self._enter(LeaseState.LOST)
        self._lost.set()

    def doubt(self, doubtful: bool = True) -> None:
        """Cut the holder off from the store, or connect it again, within the TTL."""
        self._enter(LeaseState.DOUBTFUL if doubtful else LeaseState.HELD)

    def _enter(self, state: LeaseState) -> None:
        self._state = state
        for callback in self._callbacks:
            callback(state)


class MemoryRegistry(Registry):
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def get(self, key: str) -> Entry | None:
        return self._store.entries.get(key)

    async def entries(self, prefix: str) -> list[Entry]:
        found = self._store.entries
        return [found[key] for key in sorted(found) if key.startswith(prefix)]

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        return self._store.put(key, value, lease.lease_id if lease else 0).revision

    async def replace(
        self, key: str, value: bytes, revision: int, lease: Lease | None = None
    ) -> int | None:
        standing = self._store.entries.get(key)
        if (standing.revision if standing else 0) != revision:
            return None
        return await self.put(key, value, lease)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        standing = self._store.entries.get(key)
        if revision is not None and (standing is None or standing.revision != revision):
            return False
        return self._store.delete(key)

    def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        return self._store.follow(prefix)


class MemoryLocks(Locks, LockTable):
    """Both sides of the locks; one that only looks may give no lease."""

    def __init__(
        self, store: MemoryStore, keys: Keys, lease: Lease | None = None, worker_id: str = ""
    ) -> None:
        self._store = store
        self._keys = keys
        self._lease = lease
        self._worker_id = worker_id

    async def lock(self, fences: Mapping[bytes, int]) -> LockResult:
        lease = self._require_lease()
        held = {
            job: owner
            for job, owner in (await self.held(fences)).items()
            if self._store.entries[self._key(job)].lease_id != lease.lease_id
        }
        acquired = [job for job in fences if job not in held]
        for job in acquired:
            self._store.put(self._key(job), self._value(fences[job]), lease.lease_id)
        return LockResult(acquired, held)

    async def unlock(self, fences: Mapping[bytes, int]) -> None:
        for job, fence in fences.items():
            entry = self._store.entries.get(self._key(job))
            if entry and entry.value == self._value(fence):
                self._store.delete(entry.key)

    async def held(self, jobs: Iterable[bytes]) -> dict[bytes, LockOwner]:
        found = ((job, self._store.entries.get(self._key(job))) for job in jobs)
        return {job: LockOwner.parse(entry.value) for job, entry in found if entry}

    def _key(self, job: bytes) -> str:
        return self._keys.lock(UUID(bytes=job))

    def _value(self, fence: int) -> bytes:
        return f"{self._worker_id}/{fence}".encode()

    def _require_lease(self) -> Lease:
        if self._lease is None or not self._lease.alive:
            raise LeaseLost(*_why(self._lease))
        return self._lease


class MemoryPlaces(Places):
    def __init__(self, store: MemoryStore, keys: Keys, lease: Lease) -> None:
        self._store, self._keys, self._lease = store, keys, lease
        self._random = Random(0)

    async def take(self, wishes: Sequence[PlaceWish]) -> PlaceResult:
        if not self._lease.alive:
            raise LeaseLost(*_why(self._lease))
        result = PlaceResult()
        for choice in choose(wishes, self._held(), self._random):
            if isinstance(choice, Full):
                result.full[choice.owner] = choice.limit
                continue
            places = tuple(Place(self._keys.place(*p), choice.owner) for p in choice.places)
            for place in places:
                self._store.put(place.key, place.owner.encode(), self._lease.lease_id)
            result.taken[choice.owner] = places
        return result

    async def give_back(self, places: Iterable[Place]) -> None:
        for place in places:
            entry = self._store.entries.get(place.key)
            if entry is not None and entry.value == place.owner.encode():
                self._store.delete(place.key)

    def _held(self) -> dict[str, dict[int, str]]:
        held: dict[str, dict[int, str]] = {}
        for key, entry in self._store.entries.items():
            if key.startswith(self._keys.limits):
                name, _, number = key.removeprefix(self._keys.limits).rpartition("/")
                held.setdefault(name, {})[int(number)] = entry.value.decode()
        return held


def _why(lease: Lease | None) -> tuple[int, str]:
    return (lease.lease_id, lease.state.value) if lease else (0, "none was given")
