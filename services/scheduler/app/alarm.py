"""An alarm clock: rings once, at the earliest time it was set to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` on the event loop. Set while it runs, it keeps the earlier of the two times."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.Handle | None = None
        self._when = 0.0

    def set(self, seconds: float) -> None:
        """Ring in so many seconds, or when it was going to anyway, if that is sooner."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._handle is not None:
            if self._when <= when:
                return
            self._handle.cancel()
        self._when, self._handle = when, loop.call_later(seconds, self._rung)

    def clear(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rung(self) -> None:
        self._handle = None
        self._ring()
