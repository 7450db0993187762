"""Handlers that return or raise what nobody expects."""

from __future__ import annotations

import math
from typing import Any

from jobmesh import Context, RetryAfter, job

RAISED: dict[str, BaseException] = {
    "nul": ValueError("a\0b"),
    "surrogate": ValueError("a\ud800b"),
    "long": ValueError("x" * 1_000_000),
    "long-name": type("N" * 5000, (Exception,), {})("m"),
    "wordless": ValueError(),
    "retry-far": RetryAfter(1e15),
    "retry-nan": RetryAfter(math.nan),
    "retry-past": RetryAfter(-5),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
}
RETURNED: dict[str, Any] = {
    "nul-text": "a\0b",
    "surrogate-text": "a\ud800b",
    "nan": math.nan,
    "set": {1, 2},
    "object": object(),
    "none": None,
    "progress": 1,
}


def act(what: str, ctx: Context) -> Any:
    if what == "progress":
        ctx.progress(math.nan, -math.inf, "a\ud800\0")
    if what in RAISED:
        raise RAISED[what]
    return RETURNED[what]


@job("odd-async")
async def odd_async(what: str, ctx: Context) -> Any:
    return act(what, ctx)


@job("odd-plain")
def odd_plain(what: str, ctx: Context) -> Any:
    return act(what, ctx)
