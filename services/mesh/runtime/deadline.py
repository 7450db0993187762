"""The caller's deadline, carried along without being passed by hand.

The server sets it from the call it serves; the client channel and the store read it to bound what
they do on that caller's behalf. It belongs to the task: work handed to a background task of the
process (`Tasks.spawn`) leaves it behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float | None] = ContextVar("jobmesh_deadline", default=None)


def start(seconds: float | None) -> None:
    """Set the deadline of the current task: that many seconds from now, or none."""
    _deadline.set(None if seconds is None else time.monotonic() + seconds)


def remaining() -> float | None:
    """Seconds until the deadline, never below zero; None if there is none."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def bounded(seconds: float) -> float:
    """`seconds`, or what is left until the deadline if that is less."""
    left = remaining()
    return seconds if left is None else min(seconds, left)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Narrow the deadline for a block; never widens it."""
    token = _deadline.set(time.monotonic() + bounded(seconds))
    try:
        yield
    finally:
        _deadline.reset(token)
