"""A count that can be waited on, so that tests need no sleeps."""

from __future__ import annotations

import asyncio


class Tally:
    """Counts up; `reached(n)` returns once the count is at least n. Free when nobody waits."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, amount: int = 1) -> None:
        self.count += amount
        if self._waiters:
            self._release()

    async def reached(self, count: int, timeout: float = 10.0) -> None:
        """Wait for the count; TimeoutError if it does not come."""
        if self.count >= count:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((count, waiter))
        async with asyncio.timeout(timeout):
            await waiter

    async def more(self, amount: int = 1, timeout: float = 10.0) -> None:
        """Wait until the count is that much higher than now."""
        await self.reached(self.count + amount, timeout)

    def _release(self) -> None:
        for count, waiter in self._waiters:
            if count <= self.count and not waiter.done():
                waiter.set_result(None)
        self._waiters = [entry for entry in self._waiters if not entry[1].done()]
