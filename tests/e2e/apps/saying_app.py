"""Handlers that say things while they run, for the whole-mesh tests."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from jobmesh import Context, Snooze, job

TICK_SECONDS = 0.02
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Steps:
    #: Where `go-<n>` lets step n end.
    folder: str
    count: int = 3


@job("steps", capacity=4)
def steps(work: Steps, ctx: Context) -> list[int]:
    """Goes on from its checkpoint; returns where it began and ended."""
    first = ctx.last_checkpoint or 0
    for n in range(first, work.count):
        print(f"step {n} of dispatch {ctx.dispatch_no}")
        ctx.progress(n, work.count, f"step {n}")
        while not (Path(work.folder) / f"go-{n}").exists():
            ctx.heartbeat()
            time.sleep(TICK_SECONDS)
        ctx.checkpoint(n + 1)
    ctx.progress(work.count, work.count, "done")
    return [first, work.count]


@job("sleepy")
async def sleepy(delay: float, ctx: Context) -> int:
    """Snoozes twice."""
    if ctx.dispatch_no < 3:
        raise Snooze(delay)
    return ctx.dispatch_no


@job("mute", capacity=4)
def mute() -> None:
    time.sleep(600)


@job("grumbles")
async def grumbles(ctx: Context) -> None:
    """Logs, and fails the first time."""
    log.warning("attempt %d grumbles", ctx.attempt)
    ctx.log("and goes on")
    if ctx.attempt == 1:
        raise RuntimeError("grumble")


@job("orphan")
async def orphan() -> None:
    """A type whose worker goes away."""
