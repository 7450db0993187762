"""Calls in which both sides speak: requests are heard while answers to earlier ones are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, Protocol, TypeVar

from services.mesh.runtime import DrainSignal

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Said_co = TypeVar("Said_co", covariant=True)
Asked = TypeVar("Asked")
Said = TypeVar("Said")


class Conversation(Protocol[Asked_contra, Said_co]):
    """Hears requests, and answers in its own time."""

    async def read(self, requests: AsyncIterator[Asked_contra]) -> None: ...

    def responses(self) -> AsyncIterator[Said_co]: ...

    def say_drain(self) -> None: ...


class Answers(Generic[Said]):
    """What is to be said in a conversation, in order.

    A request has its place from when it is read until its answer is written: who does not read what
    we say is not heard either, and keeps no more of our memory than so many answers.
    """

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._waiting: asyncio.Queue[tuple[Said, bool] | None] = asyncio.Queue()

    async def begin(self) -> None:
        """Wait for a place; `answer` or `give_up` follows."""
        await self._places.acquire()

    def answer(self, said: Said) -> None:
        self._waiting.put_nowait((said, True))

    def give_up(self) -> None:
        """There will be no answer."""
        self._places.release()

    def say(self, said: Said) -> None:
        """Of our own accord, which is once in a while and needs no place."""
        self._waiting.put_nowait((said, False))

    def end(self) -> None:
        """Nothing will be said after what waits."""
        self._waiting.put_nowait(None)

    async def all(self) -> AsyncGenerator[Said, None]:
        while (waiting := await self._waiting.get()) is not None:
            said, has_place = waiting
            yield said
            # Asked for the next one: this one is written.
            if has_place:
                self._places.release()


async def conversed(
    stream: Conversation[Asked, Said], requests: AsyncIterator[Asked], drain: DrainSignal
) -> AsyncGenerator[Said, None]:
    """Hear and answer until the caller is done; tell it when we drain."""
    reader = asyncio.create_task(stream.read(requests), name="stream-reader")
    drained = asyncio.create_task(drain.wait(), name="stream-drain")
    drained.add_done_callback(lambda _: stream.say_drain())
    try:
        async for response in stream.responses():
            yield response
        await reader
    finally:
        for task in (reader, drained):
            task.cancel()
        await asyncio.wait({reader, drained})
