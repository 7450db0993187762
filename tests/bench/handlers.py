"""Job types of the benchmarks."""

import time

from jobmesh import job


@job("noop", capacity=500)
async def noop(_: bytes) -> None:
    """Does nothing."""


@job("plain", capacity=2)
def plain(_: bytes) -> None:
    """Does nothing, in a process of its own; two at a time."""


@job("stamp", capacity=500)
async def stamp(_: bytes) -> bytes:
    """Says when it started."""
    return str(time.time_ns()).encode()


@job("echo", capacity=8)
async def echo(data: bytes) -> bytes:
    """Gives back what it got."""
    return data
