"""The handlers of the chaos runs. Each leaves its start and its end in the effect ledger.

A folder of its own, so that a worker started in it finds the module as a user's would be found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from jobmesh import Context, Snooze, job

from tests.chaos import ledger

TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Order:
    """What a handler is told to do."""

    #: Path of the ledger.
    ledger: str
    seconds: float = 0.0
    #: So many attempts fail before one succeeds.
    fails: int = 0
    #: So many dispatches ask to be run again after `pause` seconds.
    snoozes: int = 0
    pause: float = 0.0
    #: Bytes of output beyond what identifies it.
    size: int = 0
    #: Makes the input large.
    padding: str = ""
    #: Makes it unlike any other.
    tag: str = ""


@contextmanager
def _entered(order: Order, ctx: Context) -> Iterator[None]:
    outcome = ledger.STOP
    me = (ctx.job_id, ctx.dispatch_no, ctx.attempt)
    ledger.append(order.ledger, "S", *me, ledger.digest(asdict(order)))
    try:
        yield
        outcome = ledger.DONE
    except ValueError:
        outcome = ledger.FAIL
        raise
    except Snooze:
        outcome = ledger.SNOOZE
        raise
    finally:
        ledger.append(order.ledger, "E", *me, outcome)


def _result(order: Order, ctx: Context) -> dict[str, Any]:
    if ctx.dispatch_no <= order.snoozes:
        raise Snooze(order.pause)
    if ctx.attempt <= order.fails:
        raise ValueError(f"attempt {ctx.attempt} was told to fail")
    return {"job": ctx.job_id, "fence": ctx.dispatch_no, "padding": "x" * order.size}


@job("hop", capacity=50)
async def hop(order: Order, ctx: Context) -> dict[str, Any]:
    """In the worker's own loop: short, failing, long or large, as it is told."""
    with _entered(order, ctx):
        await asyncio.sleep(order.seconds)
        return _result(order, ctx)


@job("nap", capacity=50)
async def nap(order: Order, ctx: Context) -> dict[str, Any]:
    """The same for seconds, in steps, as one that looks whether it is still wanted."""
    with _entered(order, ctx):
        end = time.monotonic() + order.seconds
        while time.monotonic() < end:
            ctx.check_cancelled()
            await asyncio.sleep(TICK_SECONDS)
        return _result(order, ctx)


@job("turn", capacity=20)
async def turn(order: Order, ctx: Context) -> dict[str, Any]:
    """Of which only a few may run at once."""
    with _entered(order, ctx):
        await asyncio.sleep(order.seconds)
        return _result(order, ctx)


@job("lane", capacity=20)
async def lane(order: Order, ctx: Context) -> dict[str, Any]:
    """The same, whatever their key."""
    with _entered(order, ctx):
        await asyncio.sleep(order.seconds)
        return _result(order, ctx)


@job("grind", capacity=4)
def grind(order: Order, ctx: Context) -> dict[str, Any]:
    """In an executor process."""
    with _entered(order, ctx):
        time.sleep(order.seconds)
        return _result(order, ctx)


@job("tick", capacity=50)
async def tick(order: Order, ctx: Context) -> dict[str, Any]:
    """What the schedules make."""
    with _entered(order, ctx):
        return _result(order, ctx)
