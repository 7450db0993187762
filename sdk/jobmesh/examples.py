"""Job types to try the mesh with; `jobmesh up` makes a pool for each.

jobmesh submit echo --input '{"hello": "world"}' --wait
jobmesh submit primes --input '{"below": 200000}' --wait
jobmesh submit wordcount --input @book.txt --wait
jobmesh submit nap --input '{"seconds": 30}'         # kill its worker: the job is rescued
jobmesh submit flaky --input '{"failures": 2}' --retries 3 --wait
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobmesh.context import Context
from jobmesh.handlers import job

TICK_SECONDS = 0.1


@job("echo")
async def echo(value: Any = None) -> Any:
    """Returns its input. Async: runs in the worker's event loop, hundreds at once."""
    return value


@dataclass(frozen=True)
class Below:
    below: int = 100_000


@job("primes", timeout=300)
def primes(bound: Below, ctx: Context) -> int:
    """Counts the primes below a bound. Plain: keeps an executor process busy, never the worker."""
    sieve = bytearray([1]) * max(bound.below, 2)
    sieve[0:2] = b"\0\0"
    last = int(bound.below**0.5)
    for n in range(2, last + 1):
        ctx.check_cancelled()
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, len(sieve), n)))
        ctx.progress(n, last, "sieving")
    return sum(sieve)


@job("wordcount", timeout=600)
def wordcount(text: Path, ctx: Context) -> Path:
    """Counts the words of a text file of any size, as a CSV file; neither is held in memory."""
    counts: Counter[str] = Counter()
    size = text.stat().st_size
    done = 0
    with text.open("rb") as lines:
        for line in lines:
            counts.update(line.decode(errors="replace").lower().split())
            done += len(line)
            ctx.progress(done, size, "counting")
    report = ctx.scratch / "words.csv"
    with report.open("w") as out:
        out.writelines(f"{word},{count}\n" for word, count in counts.most_common())
    return report


@dataclass(frozen=True)
class Nap:
    seconds: float = 1.0


@job("nap")
def nap(nap: Nap, ctx: Context) -> str:
    """Sleeps in an executor process. Kill the worker meanwhile and watch the job being rescued."""
    wake = time.monotonic() + nap.seconds
    while (left := wake - time.monotonic()) > 0:
        ctx.check_cancelled()
        ctx.progress(nap.seconds - left, nap.seconds, "sleeping")
        time.sleep(min(left, TICK_SECONDS))
    return f"slept {nap.seconds:g} s in attempt {ctx.attempt}"


@job("pause")
async def pause(nap: Nap) -> str:
    """The same without a process: an async handler that waits."""
    await asyncio.sleep(nap.seconds)
    return f"paused {nap.seconds:g} s"


@dataclass(frozen=True)
class Flaky:
    failures: int = 1


@job("flaky", retries=3)
async def flaky(plan: Flaky, ctx: Context) -> str:
    """Fails its first attempts, to show retries and backoff."""
    if ctx.attempt <= plan.failures:
        raise RuntimeError(f"attempt {ctx.attempt} fails on purpose")
    return f"succeeded in attempt {ctx.attempt}"
