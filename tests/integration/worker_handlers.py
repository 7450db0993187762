"""Handlers that behave well and badly, for the worker's tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobmesh import Context, OutputError, PermanentFailure, RetryAfter, Snooze, job


@dataclass(frozen=True)
class Files:
    """Where a handler leaves its marks for the test to see."""

    started: str = ""
    ended: str = ""


def _mark(path: str) -> None:
    if path:
        Path(path).write_text(str(os.getpid()))


@job("upper")
def upper(text: str) -> str:
    return text.upper()


@job("whoami")
def whoami(ctx: Context) -> int:
    return os.getpid()


@job("environment")
def environment() -> dict[str, str]:
    return dict(os.environ)


@job("raises")
def raises(ctx: Context) -> None:
    raise ValueError(f"attempt {ctx.attempt} went wrong")


@job("stubborn", retries=3)
def stubborn(ctx: Context) -> None:
    raise ValueError(f"attempt {ctx.attempt} went wrong")


@job("gives-up")
def gives_up() -> None:
    raise PermanentFailure("no use")


@job("comes-back")
def comes_back() -> None:
    raise RetryAfter(7.5, "later")


@job("exits")
def exits(code: int) -> None:
    os._exit(code)


@job("leaves")
def leaves() -> None:
    sys.exit(4)


@job("leaves-a-thread")
def leaves_a_thread() -> None:
    """The interpreter waits for the thread before it ends."""
    threading.Thread(target=threading.Event().wait).start()
    sys.exit(4)


@job("segfaults")
def segfaults() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@job("prints")
def prints(ctx: Context) -> None:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    ctx.log.info("to the log")
    subprocess.run(["echo", "from a program"], check=True)


@job("progresses")
def progresses(ctx: Context) -> str:
    ctx.progress(1, 4, "first")
    ctx.progress(4, 4, "last")
    return "done"


@job("sleeps")
def sleeps(files: Files) -> None:
    """Cleans up when it is stopped."""
    try:
        _mark(files.started)
        time.sleep(600)
    finally:
        _mark(files.ended)


@job("deaf")
def deaf(files: Files) -> None:
    """Ignores SIGTERM, and so does the program it starts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = subprocess.Popen(["sleep", "600"])
    Path(files.started).write_text(str(program.pid))
    time.sleep(600)


@job("makes-file")
def makes_file(size: int, ctx: Context) -> Path:
    file = ctx.scratch / "made.bin"
    file.write_bytes(b"x" * size)
    return file


@job("reads-file")
def reads_file(file: Path) -> int:
    return file.stat().st_size


# --- async


@job("awaits-file")
async def awaits_file(file: Path) -> str:
    return file.name


@job("noop")
async def noop(data: bytes) -> None:
    return None


@job("shout")
async def shout(text: str) -> str:
    return text + "!"


@job("fails")
async def fails() -> None:
    raise ValueError("async went wrong")


@job("waits", capacity=3)
async def waits(ctx: Context) -> str:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        ctx.log.info("cancelled")
        raise
    return "waited"


@job("large")
async def large(size: int) -> bytes:
    return b"y" * size


@job("measures")
async def measures(data: bytes) -> int:
    return len(data)


@job("traced")
async def traced(ctx: Context) -> str:
    return ctx.traceparent


@job("talks")
def talks(ctx: Context) -> object:
    """Says everything that can be said, and returns what it was given to go on from."""
    for n in range(1, 5001):
        ctx.progress(n, 5000, "working")
    ctx.heartbeat()
    ctx.extend(30)
    ctx.log("a line of the log")
    before = ctx.last_checkpoint
    ctx.checkpoint({"step": 2})
    ctx.checkpoint(b"raw")
    ctx.checkpoint(None)
    return before


@job("snoozes")
def snoozes() -> Snooze:
    return Snooze(12.5)


class NotYet(Snooze):
    """Says no delay: it does not call `super().__init__`."""

    def __init__(self, why: str) -> None:
        self.why = why


class Unspeakable(Exception):  # noqa: N818 - it is no mere error
    def __str__(self) -> str:
        raise ValueError("no words")


@job("not-yet")
def not_yet() -> None:
    raise NotYet("no room")


@job("unspeakable")
def unspeakable() -> None:
    raise Unspeakable


@job("silent")
def silent(files: Files) -> None:
    _mark(files.started)
    time.sleep(600)


@job("signs")
def signs(seconds: float, ctx: Context) -> str:
    """Gives signs of life for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ctx.heartbeat()
        time.sleep(0.01)
    return "alive"


@job("errs")
def errs(ctx: Context) -> list[str]:
    """Makes every mistake that a handler can make, and goes on."""
    wrong: list[Callable[[], object]] = [
        lambda: ctx.progress(float("nan")),
        lambda: ctx.progress(1, float("inf")),
        lambda: ctx.progress(-1),
        lambda: ctx.progress(10**400),
        lambda: ctx.progress("half"),  # type: ignore[arg-type]
        lambda: ctx.progress(1, 2, "x" * 1001),
        lambda: ctx.progress(1, 2, b"bytes"),  # type: ignore[arg-type]
        lambda: ctx.percent(101),
        lambda: ctx.extend(0),
        lambda: ctx.extend(1e12),
        lambda: ctx.checkpoint("x" * 65536),
        lambda: ctx.checkpoint(object()),
        lambda: Snooze(-1),
        lambda: Snooze(float("nan")),
    ]
    raised = []
    for mistake in wrong:
        try:
            mistake()
        except (ValueError, TypeError, OutputError) as error:
            raised.append(type(error).__name__)
    return raised
