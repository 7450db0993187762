"""Ends calls whose time is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from services.mesh.rpc.http2.call import Call

#: Callers end their calls by themselves, in time; this frees what still works for them.
GRAIN: Final = 0.1


class Deadlines:
    """All calls under way that have a deadline, and one timer. A timer for each would be started
    and cancelled for nothing nearly always, and costs the loop a turn of its own.
    """

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0

    def add(self, call: Call) -> None:
        self._calls.add(call)
        assert call.deadline is not None
        if self._timer is None or call.deadline < self._wakes_at - GRAIN:
            self._wake_at(call.deadline)

    def discard(self, call: Call) -> None:
        self._calls.discard(call)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _wake_at(self, first: float) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        self._wakes_at = max(first, loop.time() + GRAIN)
        self._timer = loop.call_at(self._wakes_at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        late = [call for call in self._calls if call.deadline is None or call.deadline <= now]
        self._calls.difference_update(late)
        if self._calls:
            self._wake_at(min(call.deadline or 0.0 for call in self._calls))
        for call in late:
            call.expire()
