"""An event loop that does not wait: when nothing is ready, it is as late as the next timer wants.

Tests of patience are then about the order of things, not about how busy the machine is. Not for
tests with threads or connections: whatever those bring is overtaken by every timer.
"""

from __future__ import annotations

import asyncio
import selectors
from datetime import UTC, datetime, timedelta

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Counts the time that it would have waited."""

    def __init__(self) -> None:
        self.waited = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.waited


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        self._loop.waited += max(0.0, timeout)
        return super().select(0)


class LoopClock:
    """Time as the running loop counts it."""

    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.monotonic())

    def now_us(self) -> int:
        return round(self.now().timestamp() * 1_000_000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()
