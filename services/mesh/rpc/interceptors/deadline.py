"""Carries the caller's deadline into the handler's task."""

from __future__ import annotations

import asyncio

from services.mesh.rpc.interceptors.method import Call
from services.mesh.runtime import Overdue, deadline


class Deadlines:
    """Sets `runtime.deadline` from the call; unary calls without one get `limit` seconds, and those
    they ask to be kept waiting for.
    """

    def __init__(self, limit: float = 60.0) -> None:
        self._limit = limit
        self._unbounded: Overdue[Call] = Overdue(limit, _cut)

    def begin(self, call: Call, *, streaming: bool, wait: float = 0.0) -> None:
        remaining = call.context.time_remaining()
        if remaining is None and not streaming:
            remaining = self._limit + wait
            call.task = asyncio.current_task()
            if wait:
                call.timer = asyncio.get_running_loop().call_later(remaining, _cut, call)
            else:
                self._unbounded.begin(call)
        # Each call has a task of its own, so there is nothing to restore afterwards.
        deadline.start(remaining)

    def end(self, call: Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
        elif call.task is not None:
            self._unbounded.end(call)

    def expired(self, call: Call) -> bool:
        """Whether the cancellation that reached the handler was ours; it is over then."""
        return call.late and call.task is not None and call.task.uncancel() == 0


def _cut(call: Call) -> None:
    call.late = True
    if call.task is not None:
        call.task.cancel()
