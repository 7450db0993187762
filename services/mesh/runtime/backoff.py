"""How long to wait before trying again: exponential, capped, with full jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`delay(n)`, after n failures in a row, lies in [least, min(ceiling, first * factor^(n-1))].

    The jitter is full, so that replicas that lost the same dependency do not come back in step; the
    floor keeps a run of small random numbers from becoming a busy loop.
    """

    first: float = 0.1
    factor: float = 2.0
    ceiling: float = 15.0
    least: float = 0.02

    def delay(self, failures: int, rand: Callable[[], float] = random.random) -> float:
        exponent = min(max(failures, 1) - 1, 60)
        top = min(self.ceiling, self.first * self.factor**exponent)
        return max(self.least, rand() * top)
