"""Batches that form by themselves: what arrives while one is under way becomes the next one.

A batch costs about as much as dozens of its items, on every hop behind this one, and it stays whole
all the way. So how large batches are decides what single calls cost the mesh:

* While batches are small, nobody waits: an item goes at once, beside up to three others.
* Where the last ones were large, many callers wait for each answer and come back together. Then one
  batch is under way at a time, and the next one is held back a moment, for those who were just
  answered to get on it (see `domain.patience`). It does not wait behind one that takes long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from services.enqueue.domain.patience import Patience
from services.mesh.runtime import Tasks

T = TypeVar("T")
R = TypeVar("R")

Send = Callable[[Sequence[T]], Awaitable[Sequence[R]]]

#: From so many items a batch on, lately, callers are many.
MANY = 8.0
#: How much of the average is old.
MEMORY = 0.5
#: A batch that takes so many times what the last one took, and longer than this, holds up no more.
LATE_FACTOR = 2.0
LATE_SECONDS = 0.05


class Coalescer(Generic[T, R]):
    """Sends items in batches, at most `under_way` at once; alone, an item is sent at once.

    An error of a batch is the error of each of its items. A caller that goes away does not hurt the
    others of its batch.
    """

    def __init__(
        self, send: Send[T, R], tasks: Tasks, *, most: int = 500, under_way: int = 4
    ) -> None:
        self._send, self._tasks = send, tasks
        self._most, self._free = most, under_way
        self._under_way = 0
        self._size = 0.0
        self._expected = 0
        self._seconds = 0.0
        self._patience = Patience()
        #: By the future of each result, in the order in which they came.
        self._waiting: OrderedDict[asyncio.Future[R], T] = OrderedDict()
        self._held: asyncio.TimerHandle | None = None

    async def submit(self, item: T) -> R:
        """The result for this item; if its caller goes away before it is sent, it never is."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[future] = item
        self._pump()
        try:
            return await future
        finally:
            # Else the dead would be kept, and go before the living.
            self._waiting.pop(future, None)

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
        if self._size < MANY:
            return 0.0
        if self._under_way:
            return max(LATE_SECONDS, LATE_FACTOR * self._seconds)
        if len(self._waiting) >= min(self._most, self._expected):
            return 0.0
        return self._patience.seconds(self._seconds)

    def _let_go(self) -> None:
        self._held = None
        if self._free and self._waiting:
            self._begin()
            self._pump()

    def _begin(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
        count = min(self._most, len(self._waiting))
        if self._size >= MANY and not self._under_way:
            self._patience.went(count, min(self._most, self._expected))
        self._free -= 1
        self._under_way += 1
        batch = [self._waiting.popitem(last=False) for _ in range(count)]
        self._size = MEMORY * self._size + (1 - MEMORY) * count
        self._tasks.spawn(self._run(batch), "coalesced batch", vital=False)

    async def _run(self, batch: Sequence[tuple[asyncio.Future[R], T]]) -> None:
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
            self._free += 1
            self._under_way -= 1
            self._seconds = loop.time() - began
            self._expected = len(self._waiting) + len(batch)
            if self._held is not None and not self._under_way:
                # It was held back by this one: from now on it only gathers.
                self._held.cancel()
                self._held = None
            self._pump()
