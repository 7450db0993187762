"""The time bounds of one running attempt.

Three of them: how long the handler may run, which it may extend; how long it may be silent; and
what is left of its job's total time, which nothing extends. Most attempts have none, and then there
is no such object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.worker.domain.attempt import Stop


class Limits:
    """Begins to count when it is made; says `stop` once, with the bound that was passed."""

    def __init__(
        self,
        stop: Callable[[Stop], object],
        *,
        run: float | None,
        silence: float | None,
        total_left: float | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._began = self._sign = self._loop.time()
        self._seconds = {Stop.TIMEOUT: run, Stop.SILENCE: silence, Stop.TOTAL: None}
        self._total_end = None if total_left is None else self._began + total_left
        #: Checkpoints under way: a handler that waits for the mesh is not silent.
        self._waiting = 0
        self._is_over = False
        self._end_timer: asyncio.TimerHandle | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._set_end()
        if silence is not None:
            self._silence_timer = self._loop.call_later(silence, self._listen)

    def seconds(self, stop: Stop) -> float | None:
        """The bound that was passed; None where there is no number to tell."""
        return self._seconds.get(stop)

    def sign(self) -> None:
        """The handler lives."""
        self._sign = self._loop.time()

    def extend(self, seconds: float) -> None:
        """It may run for so long from now. Without a bound there is nothing to extend."""
        if self._seconds[Stop.TIMEOUT] is not None and not self._is_over:
            self._seconds[Stop.TIMEOUT] = round(self._loop.time() - self._began + seconds, 3)
            self._set_end()

    def wait(self, begins: bool) -> None:
        """The handler waits for the mesh, or does so no longer."""
        self._waiting += 1 if begins else -1
        self.sign()

    def end(self) -> None:
        """The handler has ended, or is being stopped; what it left behind may still speak."""
        self._is_over = True
        for timer in (self._end_timer, self._silence_timer):
            if timer is not None:
                timer.cancel()

    def _set_end(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
        run = self._seconds[Stop.TIMEOUT]
        ends = [] if run is None else [(self._began + run, Stop.TIMEOUT)]
        if self._total_end is not None:
            ends.append((self._total_end, Stop.TOTAL))
        if ends:
            end, why = min(ends, key=lambda pair: pair[0])
            self._end_timer = self._loop.call_at(end, self._stop, why)

    def _listen(self) -> None:
        """Heartbeats are many: they only note the time, and the timer looks when it is due."""
        silence = self._seconds[Stop.SILENCE]
        assert silence is not None
        now = self._loop.time()
        due = now + silence if self._waiting else self._sign + silence
        if due > now:
            self._silence_timer = self._loop.call_at(due, self._listen)
        else:
            self._stop(Stop.SILENCE)
