"""A prefix of the registry, followed and decoded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from services.mesh.lease.port import Deleted, Entry, Put, Registry, Snapshot
from services.mesh.runtime import Tally, Tasks

T = TypeVar("T")
log = logging.getLogger(__name__)


class RegistryMirror(Generic[T]):
    """Everything under a prefix, by the rest of its key. What cannot be decoded is left out."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        prefix: str,
        decode: Callable[[Entry], T],
        tasks: Tasks,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_synced` is called once, when everything that there was has been read."""
        self.name = f"{name} mirror"
        self._registry, self._prefix, self._decode, self._tasks = registry, prefix, decode, tasks
        self._items: dict[str, T] = {}
        self._synced, self._on_synced = False, on_synced
        self._callbacks: list[Callable[[str], None]] = []
        self._task: asyncio.Task[None] | None = None
        #: Events taken in, for tests to wait on.
        self.events = Tally()

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def items(self) -> Mapping[str, T]:
        return self._items

    def learn(self, entry: Entry) -> None:
        """What we have just written ourselves: known at once, before the watch brings it."""
        self._tell(self._store(entry))

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        if self._task is None:
            self._task = self._tasks.spawn(self._follow(), self.name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch(self._prefix)) as events:
            async for event in events:
                match event:
                    case Snapshot(entries):
                        names = [self._store(entry) for entry in entries.values()]
                        self._synced = True
                        self._on_synced()
                        self._tell(*names)
                    case Put(entry):
                        self._tell(self._store(entry))
                    case Deleted(entry):
                        name = entry.key.removeprefix(self._prefix)
                        self._items.pop(name, None)
                        self._tell(name)
                self.events.add()

    def _store(self, entry: Entry) -> str:
        name = entry.key.removeprefix(self._prefix)
        try:
            self._items[name] = self._decode(entry)
        except Exception:
            self._items.pop(name, None)
            extra = {"action": "entry_unreadable", "key": entry.key}
            log.warning("cannot read an entry", exc_info=True, extra=extra)
        return name

    def _tell(self, *names: str) -> None:
        for callback in self._callbacks:
            for name in names:
                callback(name)
