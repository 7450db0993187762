"""The present state of all pools, for whoever asks or watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager

from services.scaler.domain.decision import Decision, PoolStatus
from services.scaler.domain.pool import PoolRecord
from services.scaler.ports import Mirror, StatusStore


class Board:
    """Pools as they are known here.

    The acting Scaler puts up its own findings (`show`); a standing-by one shows what the acting one
    wrote to the shared store. A watcher that reads slowly skips states, never pools.
    """

    def __init__(
        self, pools: Mirror[PoolRecord], statuses: Mirror[PoolStatus], store: StatusStore
    ) -> None:
        self._pools, self._statuses, self._store = pools, statuses, store
        self._own: dict[str, PoolStatus] = {}
        self._trails: dict[str, tuple[Decision, ...]] = {}
        self._watchers: set[_Changes] = set()
        pools.on_change(self._changed)
        statuses.on_change(self._repeated)

    def status(self, type_: str) -> PoolStatus | None:
        return self._own.get(type_) or self._statuses.items.get(type_)

    async def trail(self, type_: str) -> tuple[Decision, ...]:
        """The current decision and the ones before it, newest first."""
        own = self._trails.get(type_)
        return own if own is not None else await self._store.trail(type_)

    def show(self, type_: str, status: PoolStatus, trail: tuple[Decision, ...]) -> None:
        """Put up what this process found and decided."""
        before = self._own.get(type_)
        self._own[type_], self._trails[type_] = status, trail
        if before is None or not status.same_news(before):
            self._changed(type_)

    def remove(self, type_: str) -> None:
        self._own.pop(type_, None)
        self._trails.pop(type_, None)

    def clear(self) -> None:
        """Another process acts now: what it writes counts."""
        self._own.clear()
        self._trails.clear()

    async def watch(
        self, types: Collection[str]
    ) -> AsyncGenerator[tuple[str, PoolRecord | None], None]:
        """Every pool as it is, then each one at every change; None when it was deleted."""
        with self._watching() as changes:
            shown: set[str] = set()
            changes.add(*self._pools.items)
            while True:
                for type_ in await changes.take():
                    record = self._pools.items.get(type_)
                    wanted = not types or type_ in types
                    if wanted and (record is not None or type_ in shown):
                        (shown.add if record else shown.discard)(type_)
                        yield type_, record

    @contextmanager
    def _watching(self) -> Iterator[_Changes]:
        changes = _Changes()
        self._watchers.add(changes)
        try:
            yield changes
        finally:
            self._watchers.discard(changes)

    def _repeated(self, type_: str) -> None:
        """The store has a new status; if it is ours, watchers know it already."""
        if type_ not in self._own:
            self._changed(type_)

    def _changed(self, type_: str) -> None:
        for watcher in self._watchers:
            watcher.add(type_)


class _Changes:
    """The types that changed since the watcher last looked; as many as there are, never more."""

    def __init__(self) -> None:
        self._types: dict[str, None] = {}
        self._event = asyncio.Event()

    def add(self, *types: str) -> None:
        self._types.update(dict.fromkeys(types))
        if types:
            self._event.set()

    async def take(self) -> list[str]:
        await self._event.wait()
        self._event.clear()
        types, self._types = list(self._types), {}
        return types
