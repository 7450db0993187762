"""What etcd knows about a type: its workers, its pool, its limits, whether it is paused."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from google.protobuf.message import DecodeError
from jobmesh.v1 import pool_pb2, worker_service_pb2

from services.enqueue.domain.explaining import LimitView, PoolView, Surroundings
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.limits import key_limit, type_limit
from services.mesh.lease import Entry, Keys, Registry
from services.mesh.wire.type_settings import type_settings_from_entry


class EtcdSurroundings:
    """Implements `ports.TypeSurroundings`. Asked for one job at a time, so it keeps nothing."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._keys = registry, keys

    async def of(self, type_: str, key: UUID | None = None) -> Surroundings:
        try:
            paused = await self._registry.get(self._keys.paused + type_)
            status = await self._registry.get(self._keys.pool_statuses + type_)
            workers = await self._registry.entries(self._keys.workers)
            limits = await self._limits(type_, key)
        except DependencyUnavailable:
            return Surroundings(known=False)
        serving, room, draining = _serving(workers, type_)
        return Surroundings(
            workers=serving,
            room=room,
            draining=draining,
            pool=_pool(status) if status is not None else None,
            paused=paused.value.decode(errors="replace") if paused is not None else None,
            limits=limits,
        )

    async def _limits(self, type_: str, key: UUID | None) -> tuple[LimitView, ...]:
        entry = await self._registry.get(self._keys.type_settings + type_)
        settings = None if entry is None else type_settings_from_entry(entry)
        if settings is None:
            return ()
        found = []
        if settings.max_running:
            held = await self._held(type_limit(type_))
            found.append(LimitView(held, settings.max_running))
        if settings.max_running_per_key and key is not None:
            held = await self._held(key_limit(type_, key))
            found.append(LimitView(held, settings.max_running_per_key, of_key=True))
        return tuple(found)

    async def _held(self, limit: str) -> int:
        return len(await self._registry.entries(f"{self._keys.limits}{limit}/"))


def _serving(entries: Sequence[Entry], type_: str) -> tuple[int, int, int]:
    """Workers that take jobs of the type, their room, and those that no longer do."""
    serving = room = draining = 0
    for entry in entries:
        try:
            worker = worker_service_pb2.WorkerInfo.FromString(entry.value)
        except DecodeError:
            continue  # not from us
        for served in worker.types:
            if served.type == type_ and worker.draining:
                draining += 1
            elif served.type == type_:
                serving, room = serving + 1, room + served.capacity
    return serving, room, draining


def _pool(entry: Entry) -> PoolView | None:
    try:
        pool = pool_pb2.Pool.FromString(entry.value)
    except DecodeError:
        return None
    return PoolView(pool.desired, pool.actual, pool.starting, pool.decision.explanation)
