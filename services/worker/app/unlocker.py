"""Gives locks and places back, in batches that form by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Unlocker(Generic[T]):
    """While one batch is given back the next one gathers.

    What etcd does not confirm is repeated by `give_back` itself.
    """

    def __init__(self, give_back: Callable[[list[T]], Awaitable[None]]) -> None:
        self._give_back = give_back
        self._waiting: list[T] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, *things: T) -> None:
        self._waiting.extend(things)
        self._idle.clear()
        self._wake.set()

    async def idle(self) -> None:
        """Return when nothing is left to give back."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            await self._give_back(batch)
            if not self._waiting:
                self._idle.set()
