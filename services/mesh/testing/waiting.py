"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE_SECONDS = 15.0
_LOOK_EVERY_SECONDS = 0.01


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], seconds: float = PATIENCE_SECONDS
) -> None:
    """Return once the condition holds; fail with TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
