"""A watch on one prefix of the registry, as a few calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from services.mesh.lease.port import Deleted, Entry, Put, Registry, Snapshot
from services.mesh.runtime import Tasks


class Follower:
    """Keeps track of the names under a prefix: `names` is what there is, as far as we know."""

    def __init__(
        self,
        registry: Registry,
        prefix: str,
        tasks: Tasks,
        *,
        came: Callable[[str], None] = lambda name: None,
        went: Callable[[str], None] = lambda name: None,
        listed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = f"follow-{prefix}"
        self.names: set[str] = set()
        #: False until the first list has come.
        self.known = False
        self._registry, self._prefix, self._tasks = registry, prefix, tasks
        self._came, self._went, self._listed = came, went, listed

    async def start(self) -> None:
        self._tasks.spawn(self._follow(), self.name)

    async def stop(self) -> None:
        """Nothing to do: the watch ends with the process's tasks."""

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch(self._prefix)) as events:
            async for event in events:
                match event:
                    case Snapshot(entries):
                        for entry in entries.values():
                            self._add(entry)
                        self.known = True
                        self._listed()
                    case Put(entry):
                        self._add(entry)
                    case Deleted(entry):
                        self._remove(entry)

    def _add(self, entry: Entry) -> None:
        name = entry.key.removeprefix(self._prefix)
        if name not in self.names:
            self.names.add(name)
            self._came(name)

    def _remove(self, entry: Entry) -> None:
        name = entry.key.removeprefix(self._prefix)
        if name in self.names:
            self.names.discard(name)
            self._went(name)
