"""A handler that tells how many of it run at once."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from jobmesh import Context, job


@dataclass(frozen=True)
class Count:
    #: Where the starts and ends are written, one line each.
    journal: str
    #: How long the first dispatch takes; later ones are short.
    seconds: float = 0.01
    key: str = ""


@job("counted", capacity=50)
async def counted(count: Count, ctx: Context) -> None:
    """Writes its start and its end; one write of one line each, so that none is torn."""
    _write(count, f"+ {ctx.job_id}")
    await asyncio.sleep(count.seconds if ctx.dispatch_no == 1 else 0.01)
    _write(count, f"- {ctx.job_id}")


@job("counted-plain", capacity=2)
def counted_plain(count: Count, ctx: Context) -> None:
    """The same in a process of its own."""
    _write(count, f"+ {ctx.job_id}")
    time.sleep(count.seconds)
    _write(count, f"- {ctx.job_id}")


def _write(count: Count, what: str) -> None:
    line = f"{time.monotonic_ns()} {count.key or '-'} {what} {os.getpid()}\n"
    file = os.open(count.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
