"""Job types of the soak."""

import asyncio

from jobmesh import Context, job


@job("noop", capacity=200)
async def noop(_: bytes) -> None:
    """Does nothing."""


@job("brief", capacity=100)
async def brief(_: bytes) -> bytes:
    """Takes a moment, so that its start is written too."""
    await asyncio.sleep(0.05)
    return b"done"


@job("flaky", capacity=100)
async def flaky(_: bytes, ctx: Context) -> None:
    """Fails at first; every tenth for good."""
    if ctx.attempt == 1 or ctx.job_id.endswith(("0", "8")):
        raise ValueError(f"attempt {ctx.attempt} was told to fail")


@job("echo", capacity=8)
async def echo(data: bytes) -> bytes:
    """Gives back what it got: an object in and an object out."""
    return data
