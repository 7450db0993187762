"""What takes longer than it may, found by one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Generic[T]):
    """Calls `late` with each thing that is under way for `seconds`, once.

    All may take the same time, so the oldest is the first to be late, and one timer is enough. One
    for each would be started and cancelled for nothing nearly always, and costs the event loop a
    turn of its own.
    """

    def __init__(self, seconds: float, late: Callable[[T], None]) -> None:
        self._seconds, self._late = seconds, late
        #: When each will be late, the oldest first.
        self._under_way: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, thing: T) -> None:
        loop = asyncio.get_running_loop()
        self._under_way[thing] = due = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._look, loop)

    def end(self, thing: T) -> None:
        """It is over, late or not."""
        self._under_way.pop(thing, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._under_way:
            thing, due = next(iter(self._under_way.items()))
            if due > now:
                self._timer = loop.call_at(due, self._look, loop)
                return
            del self._under_way[thing]
            self._late(thing)
