"""An open-ended stream of items on its way into the shards: in order, and at flat memory.

    reader ──parcels──▶ waiting ──up to 1000 items──▶ batches under way ──▶ answers, in order

What was read while batches are under way forms the next batch by itself, so small messages cost
hardly more than large ones. The reader rests while too much is read and not acknowledged, and an
acknowledgement counts only once its reader has taken it: whoever sends faster than the shards
write, or reads no answers, finds the connection full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.mesh.runtime import DrainSignal

T = TypeVar("T")
R = TypeVar("R")

#: Items per batch; the most that one call to an Orchestrator may carry.
BATCH = 1000
#: Bytes per batch, unless one message has more: what is added on the way still fits into one call.
BATCH_BYTES = 7 * 1024 * 1024 // 2
#: Batches of one stream under way at once: enough to keep the shards busy while more is read.
UNDER_WAY = 4
#: Read and not acknowledged, per stream: beyond either of these nothing more is read.
HELD_ITEMS = 4000
HELD_BYTES = 8 * 1024 * 1024
#: The same for all streams of a process together. A stream may hold one message more.
ROOM_BYTES = 64 * 1024 * 1024
ROOM_ITEMS = 8_192


@dataclass(frozen=True, slots=True)
class Parcel(Generic[T]):
    """The items of one message, and how many bytes they took."""

    items: Sequence[T]
    size: int
    #: Its items name each other by their numbers: it is a batch by itself.
    alone: bool = False


class Room:
    """How much all streams may hold together. What is in here is on its way into the shards: who
    waits for something of its own, as its quota, does so before.
    """

    def __init__(self, limit: int = ROOM_BYTES, items: int = ROOM_ITEMS) -> None:
        self._limit, self._used = limit, 0
        self._most, self._items = items, 0
        self._freed = asyncio.Event()

    async def take(self, size: int, items: int = 1) -> None:
        """Return when there is room; what exceeds the limit alone still gets its turn."""
        while self._used >= self._limit or self._items >= self._most:
            self._freed.clear()
            await self._freed.wait()
        self._used += size
        self._items += items

    def give_back(self, size: int, items: int = 1) -> None:
        self._used -= size
        self._items -= items
        self._freed.set()


@dataclass(slots=True)
class _Batch(Generic[R]):
    first: int
    count: int
    size: int
    results: asyncio.Task[R]


class Intake(Generic[T, R]):
    """One stream. `store` is given the number of the first item, and never raises a MeshError."""

    def __init__(
        self, store: Callable[[int, list[T]], Awaitable[R]], room: Room, drain: DrainSignal
    ) -> None:
        self._store, self._room, self._drain = store, room, drain
        self._waiting: deque[Parcel[T]] = deque()
        self._batches: deque[_Batch[R]] = deque()
        self._under_way = 0
        self._next_item = 0
        self._items = self._bytes = 0
        self._news, self._freed = asyncio.Event(), asyncio.Event()

    async def acks(self, parcels: AsyncIterator[Parcel[T]]) -> AsyncGenerator[tuple[int, R], None]:
        """The number of the first item and the results of each batch, in order.

        Ends when all that was read is acknowledged: after the last parcel, on drain, or, with its
        error, where reading failed.
        """
        reader = asyncio.create_task(self._read(parcels), name="enqueue-stream-reader")
        reader.add_done_callback(lambda _: self._news.set())
        try:
            while batch := await self._oldest(reader):
                yield batch.first, await batch.results
                # Only now: it has been taken, or at least fits into what the peer has room for.
                self._release(self._batches.popleft())
            await reader
        finally:
            await self._end(reader)

    async def _read(self, parcels: AsyncIterator[Parcel[T]]) -> None:
        async with aclosing(self._drain.cut(parcels)) as arriving:  # type: ignore[type-var]
            async for parcel in arriving:
                if not parcel.items:
                    continue
                await self._room.take(parcel.size, len(parcel.items))
                self._items += len(parcel.items)
                self._bytes += parcel.size
                self._waiting.append(parcel)
                self._pump()
                while self._items >= HELD_ITEMS or self._bytes >= HELD_BYTES:
                    self._freed.clear()
                    await self._freed.wait()

    def _pump(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY:
            self._under_way += 1
            batch = self._form()
            batch.results.add_done_callback(self._landed)
            self._batches.append(batch)
            self._news.set()

    def _form(self) -> _Batch[R]:
        """What is there, in whole parcels; never waits for more."""
        items: list[T] = []
        size = 0
        while self._waiting:
            parcel = self._waiting[0]
            full = len(items) + len(parcel.items) > BATCH or size + parcel.size > BATCH_BYTES
            if items and (full or parcel.alone):
                break
            self._waiting.popleft()
            items += parcel.items
            size += parcel.size
            if parcel.alone:
                break
        first, self._next_item = self._next_item, self._next_item + len(items)
        work = asyncio.ensure_future(self._store(first, items))
        assert isinstance(work, asyncio.Task)
        work.set_name("enqueue-stream-batch")
        return _Batch(first, len(items), size, work)

    def _landed(self, results: asyncio.Task[R]) -> None:
        self._under_way -= 1
        if not results.cancelled():
            self._pump()

    async def _oldest(self, reader: asyncio.Task[None]) -> _Batch[R] | None:
        """The batch to acknowledge next; None when nothing was read and nothing will be."""
        while not self._batches:
            if reader.done():
                return None
            self._news.clear()
            await self._news.wait()
        return self._batches[0]

    def _release(self, batch: _Batch[R]) -> None:
        self._items -= batch.count
        self._bytes -= batch.size
        self._room.give_back(batch.size, batch.count)
        self._freed.set()

    async def _end(self, reader: asyncio.Task[None]) -> None:
        """Leave nothing behind, whoever ended the stream."""
        self._waiting.clear()  # or a batch that lands in this moment would begin the next one
        reader.cancel()
        tasks: set[asyncio.Task[None] | asyncio.Task[R]] = {reader}
        for batch in self._batches:
            batch.results.cancel()
            tasks.add(batch.results)
        try:
            await asyncio.wait(tasks)
        finally:
            # Also if that is cancelled once more: nobody else would ever give it back.
            self._room.give_back(self._bytes, self._items)
