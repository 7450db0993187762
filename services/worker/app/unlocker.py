"""Gives locks and places back, in batches that form by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: How long, in seconds, something that nobody waits for is kept for company: a transaction costs
#: about as much with a hundred as with one, and etcd writes each to its disk.
PATIENCE = 0.5
#: So many do not wait for more: they fill a transaction.
ENOUGH = 128


class Unlocker(Generic[T]):
    """While one batch is given back the next one gathers.

    What etcd does not confirm is repeated by `give_back` itself.
    """

    def __init__(self, give_back: Callable[[list[T]], Awaitable[None]]) -> None:
        self._give_back = give_back
        self._waiting: list[T] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, *things: T) -> None:
        """Give these back now, and with them what was patient."""
        self._waiting.extend(things)
        self._idle.clear()
        self._wake.set()

    def add_patient(self, thing: T) -> None:
        """Give this back soon: nobody waits for it."""
        self._waiting.append(thing)
        self._idle.clear()
        if len(self._waiting) >= ENOUGH:
            self._wake.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._wake.set)

    async def idle(self) -> None:
        """Return when nothing is left to give back; nothing is patient any more."""
        if self._waiting:
            self._wake.set()
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._stop_timer()
            batch, self._waiting = self._waiting, []
            await self._give_back(batch)
            if not self._waiting:
                self._idle.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
