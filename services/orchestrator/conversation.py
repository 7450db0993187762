"""Calls in which both sides speak: requests are heard while answers to earlier ones are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, TypeVar

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
