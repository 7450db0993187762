"""The handlers of the whole-mesh tests: those of the examples, and some that misbehave on demand.

A folder of its own, so that a worker started in it finds the module as a user's would be found.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from jobmesh import Context, job
from jobmesh.examples import echo, flaky, nap, pause, wordcount

__all__ = ["crash", "echo", "flaky", "gated", "nap", "narrow", "pause", "wordcount"]

TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Gate:
    #: Holds the journal, and the files that let attempts through.
    folder: str
    #: How long an attempt waits for a file that never comes.
    seconds: float = 30.0


@job("gated", capacity=10)
def gated(gate: Gate, ctx: Context) -> str:
    """Writes its start into the journal, then naps until `open` or `open-<fence>` is there."""
    folder = Path(gate.folder)
    with (folder / "journal").open("a") as journal:
        journal.write(f"{ctx.job_id} {ctx.dispatch_no} {os.getppid()} {os.getpid()}\n")
    end = time.monotonic() + gate.seconds
    while time.monotonic() < end and not _is_open(folder, ctx.dispatch_no):
        ctx.check_cancelled()
        time.sleep(TICK_SECONDS)
    return f"dispatch {ctx.dispatch_no}"


@job("narrow", capacity=1)
def narrow(gate: Gate, ctx: Context) -> str:
    """The same, one at a time."""
    return gated(gate, ctx)


def _is_open(folder: Path, fence: int) -> bool:
    return (folder / "open").exists() or (folder / f"open-{fence}").exists()


@job("crash")
def crash(code: int) -> None:
    """Takes its executor process down with it."""
    os._exit(code)
