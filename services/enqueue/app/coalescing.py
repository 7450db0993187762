"""Batches that form by themselves: what arrives while one is under way becomes the next one.

A batch costs about as much as dozens of its items, on every hop behind this one, and it stays whole
all the way. So how large batches are decides what single calls cost the mesh:

* While batches are small, an item goes at once, beside up to three others, if the last one began
  twice as long ago as they take. Items that come faster share a batch: what each of them would
  cost alone, in eight processes, is more than the machine has at some hundreds a second
  (docs/adr/0017).
* Where the last ones were large, many callers wait for each answer and come back together. Then one
  batch is under way at a time, and the next one is held back a moment, for those who were just
  answered to get on it (see `domain.patience`). It does not wait behind one that takes long.

A batch that hangs, as with a neighbour that stands still, keeps its place for a moment only: four
of them would hold up all others else, though the next neighbour is well.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Generic, TypeVar

from services.enqueue.domain.patience import Patience
from services.mesh.runtime import Overdue, Tasks

T = TypeVar("T")
R = TypeVar("R")

Send = Callable[[Sequence[T]], Awaitable[Sequence[R]]]
#: An item, how many jobs it is, and its bytes.
_Waiting = tuple[T, int, int]

#: Jobs per batch.
MOST_JOBS = 500
#: Bytes per batch: what is added on the way, and framing, still fits into one message.
MOST_BYTES = 7 * 1024 * 1024 // 2
#: From so many items a batch on, lately, callers are many.
MANY = 8.0
#: How much of the average is old.
MEMORY = 0.5
#: Small batches begin so many times what they take after each other, but no later than this.
PACE, PACE_SECONDS = 2.0, 0.02
#: How much of the average of what they take is old.
PACE_MEMORY = 0.8
#: A batch that takes so many times what the last one took, and longer than this, holds up no more.
LATE_FACTOR = 2.0
#: Many times what a batch takes; less than it takes to find out that a neighbour stands still.
HANGS_SECONDS = 0.5
LATE_SECONDS = 0.05


def _one(_: object) -> int:
    return 1


class _Way:
    """Of a batch, until it is answered."""

    __slots__ = ("hangs",)

    def __init__(self) -> None:
        self.hangs = False


class Coalescer(Generic[T, R]):
    """Sends items in batches, at most `under_way` at once; alone, an item is sent at once.

    No batch has more than `most` jobs (of which an item is one, unless `jobs` says how many it is),
    nor more than `most_bytes`, by `size`, unless it is one item. An error of a batch is the error
    of each of its items. A caller that goes away does not hurt the others of its batch. What is
    not a full batch waits as long as `pause` says.
    """

    def __init__(
        self,
        send: Send[T, R],
        tasks: Tasks,
        *,
        size: Callable[[T], int],
        jobs: Callable[[T], int] | None = None,
        most: int = MOST_JOBS,
        most_bytes: int = MOST_BYTES,
        under_way: int = 4,
        hangs: float = HANGS_SECONDS,
        pause: Callable[[], float] = lambda: 0.0,
        on_begin: Callable[[], None] = lambda: None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._send, self._tasks, self._size_of = send, tasks, size
        self._jobs_of = jobs or _one
        self._most, self._most_bytes, self._free = most, most_bytes, under_way
        self._under_way = 0
        #: Batches that hang, beside those under way.
        self._hanging = 0
        self._hangs: Overdue[_Way] = Overdue(hangs, self._pass_by)
        self._pause, self._on_begin, self._on_idle = pause, on_begin, on_idle
        self._size = 0.0
        self._expected = 0
        self._seconds = 0.0
        self._usual_seconds = 0.0
        self._began = -inf
        self._patience = Patience()
        #: By the future of each result, in the order in which they came.
        self._waiting: OrderedDict[asyncio.Future[R], _Waiting[T]] = OrderedDict()
        self._jobs = self._bytes = 0
        self._held: asyncio.TimerHandle | None = None

    async def submit(self, item: T) -> R:
        """The result for this item; if its caller goes away before it is sent, it never is."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = item, self._jobs_of(item), self._size_of(item)
        self._waiting[future] = waiting
        self._jobs += waiting[1]
        self._bytes += waiting[2]
        self._pump()
        try:
            return await future
        finally:
            if future in self._waiting:
                # Else the dead would be kept, and go before the living.
                self._pop(future)
                self._tell_if_idle()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not (self._waiting or self._under_way or self._hanging)

    def _tell_if_idle(self) -> None:
        if self.is_idle:
            self._on_idle()

    def _pump(self) -> None:
        while self._free and self._waiting:
            hold = self._hold_seconds()
            if hold > 0:
                if self._held is None:
                    loop = asyncio.get_running_loop()
                    self._held = loop.call_later(hold, self._let_go)
                return
            self._begin()

    def _hold_seconds(self) -> float:
        """How long the next batch waits for more; 0: not at all."""
        if (pause := self._pause()) > 0 and not self._is_full():
            return pause
        if self._size < MANY:
            if self._is_full():
                return 0.0
            pace = min(PACE * self._usual_seconds, PACE_SECONDS)
            return self._began + pace - asyncio.get_running_loop().time()
        if self._under_way:
            return max(LATE_SECONDS, LATE_FACTOR * self._seconds)
        if len(self._waiting) >= self._expected or self._is_full():
            return 0.0
        return self._patience.seconds(self._seconds)

    def _is_full(self) -> bool:
        """Whether whoever comes now would not get on the next batch."""
        return self._bytes >= self._most_bytes or self._jobs >= self._most

    def _let_go(self) -> None:
        self._held = None
        if self._free and self._waiting:
            self._begin()
            self._pump()

    def _begin(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
        full = self._is_full()
        batch = self._take()
        count = len(batch)
        if self._size >= MANY and not self._under_way:
            self._patience.went(count, count if full else min(self._most, self._expected))
        self._on_begin()
        self._began = asyncio.get_running_loop().time()
        self._free -= 1
        self._under_way += 1
        self._size = MEMORY * self._size + (1 - MEMORY) * count
        way = _Way()
        self._hangs.begin(way)
        self._tasks.spawn(self._run(batch, way), "coalesced batch", vital=False)

    def _pass_by(self, way: _Way) -> None:
        """A batch hangs: its place is for the next."""
        way.hangs = True
        self._hanging += 1
        self._leave()
        self._pump()

    def _leave(self) -> None:
        self._free += 1
        self._under_way -= 1
        if self._held is not None and not self._under_way:
            # It was held back by this one: from now on it only gathers.
            self._held.cancel()
            self._held = None

    def _take(self) -> list[tuple[asyncio.Future[R], T]]:
        """The oldest, as many as one batch carries; at least one."""
        batch: list[tuple[asyncio.Future[R], T]] = []
        room, most_left = self._most_bytes, self._most
        while self._waiting:
            future, (item, jobs, size) = next(iter(self._waiting.items()))
            if batch and (size > room or jobs > most_left):
                break
            self._pop(future)
            batch.append((future, item))
            room -= size
            most_left -= jobs
        return batch

    def _pop(self, future: asyncio.Future[R]) -> None:
        _, jobs, size = self._waiting.pop(future)
        self._jobs -= jobs
        self._bytes -= size

    async def _run(self, batch: Sequence[tuple[asyncio.Future[R], T]], way: _Way) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            results = await self._send([item for _, item in batch])
        except Exception as error:
            for future, _ in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for (future, _), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._hangs.end(way)
            if way.hangs:
                self._hanging -= 1
            else:
                self._seconds = took = loop.time() - began
                self._usual_seconds += (1 - PACE_MEMORY) * (took - self._usual_seconds)
                self._expected = len(self._waiting) + len(batch)
                self._leave()
                self._pump()
            self._tell_if_idle()
