"""The blocking twins of `types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from jobmesh.client.types import TypeChanges
from jobmesh.model import TypeSettings

if TYPE_CHECKING:
    from jobmesh.client.aio import AsyncClient
    from jobmesh.client.blocking import LoopThread


class BlockingTypes:
    """The part of Client that is about types."""

    _thread: LoopThread
    _client: AsyncClient

    def types(self) -> Sequence[str]:
        """The job types that workers or pools have announced."""
        return self._thread.run(self._client.types())

    def type_settings(self, type: str) -> TypeSettings:
        """What holds for all jobs of a type: defaults, limits, retention."""
        return self._thread.run(self._client.type_settings(type))

    def set_type_settings(
        self, type: str, *, etag: str = "", **changes: Unpack[TypeChanges]
    ) -> TypeSettings:
        """Changes what is said and nothing else; with an etag, only what was read with it."""
        return self._thread.run(self._client.set_type_settings(type, etag=etag, **changes))
