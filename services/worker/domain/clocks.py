"""What the shards' clocks show, as far as messages tell.

Each batch says what its shard's clock showed at least when it was sent. When it arrives, the clock
shows at least that: a bound from below, too low by as long as the message took. So of the batches
that read the same clock the quickest is believed, and a slow message makes no job late. A bound
loses a little with age, more than the rates of two clocks that are kept right can differ.
"""

from __future__ import annotations

#: Microseconds per second: the most by which two clocks drift apart.
DRIFT = 100
#: Clocks that are remembered; each scheduler reads each shard's anew when it starts.
MOST_CLOCKS = 1000


class ShardClocks:
    """The best bound of each clock, as its offset to our monotonic one."""

    def __init__(self) -> None:
        self._best: dict[int, tuple[float, float]] = {}

    def seen(self, clock: int, now_us: int, at: float) -> int:
        """A batch that arrived at the local time `at` says that the clock showed `now_us`: what it
        shows now, at least, in microseconds.
        """
        offset = now_us - at * 1e6
        best = self._best.get(clock)
        if best is not None:
            kept = best[0] - DRIFT * (at - best[1])
            if kept > offset:
                return int(at * 1e6 + kept)
        elif len(self._best) >= MOST_CLOCKS:
            del self._best[next(iter(self._best))]
        self._best[clock] = (offset, at)
        return now_us
