"""What handlers ask for, told to those who make jobs of their types.

A job that is submitted by the name of its type knows nothing of the handler's decorator: so the
worker writes what its functions ask for into the settings of their types, where Enqueue and
schedules find it. The key is shared with operators, whose word goes first: only the handler's own
fields are touched, and never over a change that was not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.lease import Keys, Registry
from services.mesh.wire.type_settings import asked_by_handler, settings_message, settings_value

log = logging.getLogger(__name__)

#: How often a declaration is made again on settings that somebody else just changed.
TRIES = 10


class Declarations:
    """Made once per process and type: identities come and go, the handlers stay."""

    def __init__(
        self,
        registry: Registry,
        keys: Keys,
        asked: Mapping[str, TypeSettings],
    ) -> None:
        self._registry, self._prefix = registry, keys.type_settings
        self._left = dict(asked)

    async def make(self) -> None:
        """Declare what was not declared yet; DependencyUnavailable leaves the rest for later."""
        for type_, asked in list(self._left.items()):
            await self._declare(type_, asked)
            self._left.pop(type_, None)

    async def _declare(self, type_: str, asked: TypeSettings) -> None:
        try:
            written = await self._write(type_, asked)
        except ValueError as error:
            _warn(type_, str(error))
            return
        if written is None:
            _warn(type_, f"others changed them {TRIES} times meanwhile")
        elif written:
            log.info("handler's word declared", extra={"action": "declared", "type": type_})

    async def _write(self, type_: str, asked: TypeSettings) -> bool | None:
        """Whether that took a write; None if others were quicker each time. ValueError: the key
        holds something else than settings.
        """
        key = self._prefix + type_
        for _ in range(TRIES):
            entry = await self._registry.get(key)
            settings = TypeSettings() if entry is None else settings_message(entry)
            if asked_by_handler(settings) == asked:
                return False
            value = settings_value(settings, asked)
            revision = 0 if entry is None else entry.revision
            if await self._registry.replace(key, value, revision) is not None:
                return True
        return None


def _warn(type_: str, why: str) -> None:
    log.warning(
        "handler's word not declared: %s", why, extra={"action": "undeclared", "type": type_}
    )
