"""The job types that somebody announced, followed in etcd."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, UnknownType
from services.mesh.lease import Deleted, Keys, Put, Registry, Snapshot
from services.mesh.runtime import Dependency, Tasks

#: A type that was just looked up and not found is not looked up again before this.
NEGATIVE_SECONDS = 0.5
#: Names of unknown types that are remembered at most; callers choose them.
NEGATIVES = 1000


class KnownTypes:
    """Knows every announced type. A type announced a moment ago is found by asking once more."""

    def __init__(
        self,
        registry: Registry,
        keys: Keys,
        tasks: Tasks,
        clock: Clock,
        ready: Dependency,
        *,
        accept_unknown: bool,
    ) -> None:
        self._registry, self._keys, self._tasks, self._clock = registry, keys, tasks, clock
        self._ready, self._accept_unknown = ready, accept_unknown
        self._types: set[str] = set()
        self._loaded = False
        self._missed: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def names(self) -> list[str]:
        return sorted(self._types)

    def is_known(self, type_: str) -> bool:
        """Whether the type can be accepted without asking anybody."""
        return type_ in self._types or self._accept_unknown

    async def check(self, type_: str) -> None:
        """Return if the type is known; UnknownType otherwise."""
        if self.is_known(type_):
            return
        if not self._loaded:
            raise DependencyUnavailable("etcd", "the known job types are not loaded yet")
        if not await self._announced(type_):
            raise UnknownType(type_)

    async def start(self) -> None:
        self._task = self._tasks.spawn(self._follow(), "known types")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _announced(self, type_: str) -> bool:
        """Ask etcd itself: the announcement may be on its way through the watch."""
        now = self._clock.monotonic()
        if now - self._missed.get(type_, -NEGATIVE_SECONDS) < NEGATIVE_SECONDS:
            return False
        if await self._registry.get(self._keys.type(type_)) is not None:
            self._types.add(type_)
            return True
        if len(self._missed) >= NEGATIVES:
            self._missed.clear()
        self._missed[type_] = now
        return False

    async def _follow(self) -> None:
        prefix = self._keys.types
        async with aclosing(self._registry.watch(prefix)) as changes:
            async for change in changes:
                if isinstance(change, Snapshot):
                    self._types = {key.removeprefix(prefix) for key in change.entries}
                elif isinstance(change, Put):
                    self._types.add(change.entry.key.removeprefix(prefix))
                elif isinstance(change, Deleted):
                    self._types.discard(change.entry.key.removeprefix(prefix))
                self._loaded = True
                self._ready.up()
