"""The due times of a shard's coming slot, each waiting to go off once.

Due times are rounded up to the millisecond and merged per type, so that a herd of jobs is one
timer. Slots overlap (each reaches beyond the beginning of the next), so the same due time is told
several times; it waits once. A slot that was read before a timer went off and arrives
after it sets it again: one empty claim, and the price of never missing a timer that went off early
because the shard's clock was set back.

Claims look a little ahead. One that saw the end of what there was up to some time has `covered` the
timers up to then, as far as it began after they were last told: they need not go off.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

MILLISECOND_US = 1000


class DueTimers:
    """Timers of one shard, in microseconds of the shard's clock; at most `most` of them. When a
    timer was set, and a claim begun, is the caller's time; only compared here.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._heap: list[tuple[int, str]] = []
        self._set_at: dict[tuple[int, str], float] = {}
        self._covered: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_times: Iterable[tuple[str, int]], now: float = 0.0) -> int:
        """Take in `(type, due time)` that somebody knew of by `now`; how many were new. What does
        not fit is left to a later slot.
        """
        added = 0
        for type_, due_us in due_times:
            timer = (_up_to_millisecond(due_us), type_)
            if timer in self._set_at:
                # It may stand for another job now, which no claim before has seen.
                self._set_at[timer] = max(self._set_at[timer], now)
                continue
            if len(self._heap) >= self._most:
                break
            heapq.heappush(self._heap, timer)
            self._set_at[timer] = now
            added += 1
        return added

    def covered(self, type_: str, until_us: int, began: float) -> None:
        """A claim that began then took all that is due until `until_us`."""
        self._covered[type_] = (until_us, began)

    def next(self) -> int | None:
        """When the next timer goes off."""
        while self._heap and self._is_covered(self._heap[0]):
            self._remove_first()
        return self._heap[0][0] if self._heap else None

    def pop(self, now_us: int) -> list[str]:
        """The types whose time has come, each once."""
        types: dict[str, None] = {}
        while (due_us := self.next()) is not None and due_us <= now_us:
            types[self._remove_first()] = None
        return list(types)

    def clear(self) -> None:
        """Forget all: another scheduler looks after the shard, or its clock was set back."""
        self._heap.clear()
        self._set_at.clear()
        self._covered.clear()

    def _is_covered(self, timer: tuple[int, str]) -> bool:
        covered = self._covered.get(timer[1])
        return covered is not None and timer[0] <= covered[0] and self._set_at[timer] < covered[1]

    def _remove_first(self) -> str:
        timer = heapq.heappop(self._heap)
        del self._set_at[timer]
        if not self._heap:
            self._covered.clear()  # nothing left to cover; types come and go
        return timer[1]


def _up_to_millisecond(due_us: int) -> int:
    return -(-due_us // MILLISECOND_US) * MILLISECOND_US
