"""The living workers, by their keys in etcd."""

from __future__ import annotations

from services.mesh.lease.keys import Keys
from services.mesh.lease.port import Registry


class RegisteredWorkers:
    """The port `Workers` over the mesh's registry."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._keys = registry, keys

    async def live(self) -> frozenset[str]:
        prefix = self._keys.workers
        entries = await self._registry.entries(prefix)
        return frozenset(entry.key.removeprefix(prefix) for entry in entries)
