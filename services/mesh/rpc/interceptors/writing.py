"""Writes what a handler yields, closes the handler at the end, and cuts off who does not read.

A peer that keeps the connection but reads nothing blocks a write for ever, and with it everything
the handler holds. After `limit` seconds the handler is ended and the stream aborted; its peer finds
SLOW_CONSUMER when it reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from services.mesh.errors import SlowConsumer

Handler = Callable[[Any, Any], Awaitable[Any]]


#: What a peer may take to read, where nothing else is said.
WRITE_SECONDS = 30.0


def writes(behaviour: Callable[..., Any], limit: float = WRITE_SECONDS) -> Handler:
    """A streaming handler as a coroutine; takes an async generator, or one that writes by itself.

    A generator whose caller went away is closed here, or the garbage collector would close it some
    time, in another task.
    """

    async def handle(request: Any, context: Any) -> None:
        responses = behaviour(request, context)
        if hasattr(responses, "__aiter__"):
            await _write_all(responses, context.write, limit)
        else:
            await responses

    return handle


async def _write_all(
    responses: AsyncIterator[Any], write: Callable[[Any], Awaitable[None]], limit: float
) -> None:
    guard = _Guard(limit)
    try:
        async for response in responses:
            guard.begin()
            await write(response)
            guard.end()
    except asyncio.CancelledError:
        guard.raise_if_expired()
        raise
    finally:
        guard.close()
        if hasattr(responses, "aclose"):
            await responses.aclose()


class _Guard:
    """One timer for a whole stream: a timeout of its own would cost more than a small write."""

    __slots__ = ("_expired", "_limit", "_loop", "_since", "_task", "_timer")

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        self._limit = limit
        self._since: float | None = None
        self._expired = False
        self._timer = self._loop.call_later(limit, self._look)

    def begin(self) -> None:
        self._since = self._loop.time()

    def end(self) -> None:
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def raise_if_expired(self) -> None:
        """Turn the cancellation that was ours into what it means."""
        if self._expired and self._task is not None and self._task.uncancel() == 0:
            raise SlowConsumer

    def _look(self) -> None:
        now = self._loop.time()
        due = self._limit if self._since is None else self._since + self._limit - now
        if due > 0 or self._task is None:
            self._timer = self._loop.call_later(max(due, 0.01), self._look)
            return
        self._expired = True
        self._task.cancel()
