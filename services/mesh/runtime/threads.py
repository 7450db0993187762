"""Threads for what would block the loop and is the process's own: files, hashes, flushes.

The loop's default threads are anybody's: code of users calls `asyncio.to_thread`, and a handful of
such calls that hang would keep the process from its files, and from its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Each thread begins when it is first needed.
_OWN = ThreadPoolExecutor(thread_name_prefix="own")


async def in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, for calls that do not hang."""
    call = partial(copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_OWN, call)
