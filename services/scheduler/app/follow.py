"""A watch on one prefix of the registry, as a few calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from services.mesh.lease.port import Deleted, Entry, Put, Registry, Snapshot
from services.mesh.runtime import Tasks


class Follower:
    """Keeps track of the names under a prefix: `names` is what there is, as far as we know.

    Whoever changes a key here says so (`written`, `deleted`), to be heard at once. The watch tells
    it as well, and what came before it, only later: that undoes nothing.
    """

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
        self.prefix = prefix
        #: False until the first list has come.
        self.known = False
        self._registry, self._tasks = registry, tasks
        self._came, self._went, self._listed = came, went, listed
        self._revisions: dict[str, int] = {}
        #: Names that were written here, and that the watch has not come to yet.
        self._ahead: set[str] = set()
        #: How far the watch has come.
        self._reached = 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._revisions)

    async def start(self) -> None:
        self._tasks.spawn(self._follow(), self.name)

    async def stop(self) -> None:
        """Nothing to do: the watch ends with the process's tasks."""

    # --- what is done here

    def revision(self, name: str) -> int:
        """The newest write of the name that is known; 0 if it is not there."""
        return self._revisions.get(name, 0)

    def written(self, name: str, revision: int) -> None:
        """We wrote it ourselves."""
        if revision > self._reached:  # else the watch has told it already, and perhaps its end
            self._ahead.add(name)
            self._add(name, revision)

    def deleted(self, name: str, revision: int) -> None:
        """We deleted it ourselves, and knew this revision of it before."""
        if self.revision(name) == revision:  # else the watch tells what came first
            self._remove(name)

    # --- what the watch tells

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch(self.prefix)) as events:
            async for event in events:
                match event:
                    case Snapshot(entries):
                        for entry in entries.values():
                            self._was_put(entry)
                        self.known = True
                        self._listed()
                    case Put(entry):
                        self._was_put(entry)
                    case Deleted(entry, revision):
                        self._was_deleted(entry, revision)

    def _was_put(self, entry: Entry) -> None:
        name = self._name_of(entry)
        self._reached = entry.revision
        if not self._is_old(name, entry.revision):
            self._ahead.discard(name)
            self._add(name, entry.revision)

    def _was_deleted(self, entry: Entry, revision: int) -> None:
        name = self._name_of(entry)
        self._reached = revision
        if not self._is_old(name, revision):
            self._remove(name)

    def _is_old(self, name: str, revision: int) -> bool:
        """Whether we have written the name since. Of what the watch told, it knows best: a new etcd
        counts from one again.
        """
        return name in self._ahead and revision < self._revisions[name]

    def _name_of(self, entry: Entry) -> str:
        return entry.key.removeprefix(self.prefix)

    # --- what follows

    def _add(self, name: str, revision: int) -> None:
        new = name not in self._revisions
        self._revisions[name] = revision
        if new:
            self._came(name)

    def _remove(self, name: str) -> None:
        self._ahead.discard(name)
        if self._revisions.pop(name, None) is not None:
            self._went(name)
