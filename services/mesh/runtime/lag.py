"""Watches the event loop: a handler that blocks shows up here before its callers complain."""

from __future__ import annotations

import asyncio
import logging

from services.mesh.runtime.beat import until_beat
from services.mesh.runtime.tally import Tally
from services.mesh.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LagWatch:
    """Measures how late a timer fires. Late by more than `warn_after` seconds is also logged.

    Every other second, on the beat: often enough to show a loop that blocks now and then, and an
    idle process is awake then anyhow (ten times a second was most of what an idle service used).
    """

    def __init__(self, metrics: Metrics, *, period: float = 2.0, warn_after: float = 0.5) -> None:
        self.name = "loop-lag"
        self._seconds = metrics.histogram(
            "event_loop_lag_seconds", "How late a timer of the event loop fired.", (), _BUCKETS
        )
        #: Measurements taken, for tests to wait on.
        self.taken = Tally()
        self._period, self._warn_after = period, warn_after
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + until_beat(self._period)
        self._timer = loop.call_at(due, self._fired, loop, due)

    def _fired(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = max(0.0, loop.time() - due)
        self._seconds.observe(lag)
        self.taken.add()
        if lag > self._warn_after:
            extra = {"action": "loop_lag", "seconds": round(lag, 3)}
            log.warning("the event loop was blocked", extra=extra)
        self._arm(loop)
