"""The settings of types in etcd: read, and written as a whole."""

from __future__ import annotations

import logging

from services.mesh.errors import EtagMismatch
from services.mesh.lease import Entry, Keys, Registry

log = logging.getLogger(__name__)


class TypeSettingsStore:
    """One key per type. What it holds passes through unopened; its etag is the key's revision."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._prefix = registry, keys.type_settings

    async def get(self, type_: str) -> Entry | None:
        """The settings as they stand; None if none were ever set."""
        return await self._registry.get(self._prefix + type_)

    async def set(self, type_: str, value: bytes, etag: str) -> Entry:
        """Replace the settings; with an etag, only those that the caller had read."""
        key = self._prefix + type_
        if not etag:
            revision: int | None = await self._registry.put(key, value)
        elif etag.isascii() and etag.isdecimal() and 0 < int(etag) < 1 << 63:
            revision = await self._registry.replace(key, value, int(etag))
        else:
            revision = None  # no etag of ours
        if revision is None:
            raise EtagMismatch("settings of type", type_)
        log.info("type settings changed", extra={"action": "type_settings_set", "type": type_})
        return Entry(key, value, revision)
