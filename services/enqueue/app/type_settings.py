"""The settings of types in etcd: read, and written as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.mesh.errors import EtagMismatch
from services.mesh.lease import Entry, Keys, Registry

log = logging.getLogger(__name__)

#: How often a change without an etag is made again on settings that somebody else just changed.
TRIES = 10


class TypeSettingsStore:
    """One key per type. What it holds passes through unopened; its etag is the key's revision."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._prefix = registry, keys.type_settings

    async def get(self, type_: str) -> Entry | None:
        """The settings as they stand; None if none were ever set."""
        return await self._registry.get(self._prefix + type_)

    async def set(self, type_: str, value: Callable[[Entry | None], bytes], etag: str) -> Entry:
        """Replace the settings by what `value` makes of those that stand; with an etag, only those
        that the caller had read.

        Workers write here too (what a handler asks for): no write goes over one it has not seen.
        """
        key = self._prefix + type_
        for _ in range(TRIES):
            stands = await self._registry.get(key)
            revision = 0 if stands is None else stands.revision
            if etag and (stands is None or etag != str(revision)):
                break
            new = value(stands)
            written = await self._registry.replace(key, new, revision)
            if written is not None:
                log.info(
                    "type settings changed", extra={"action": "type_settings_set", "type": type_}
                )
                return Entry(key, new, written)
        raise EtagMismatch("settings of type", type_)
