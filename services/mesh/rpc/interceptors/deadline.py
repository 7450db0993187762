"""Carries the caller's deadline into the handler's task."""

from __future__ import annotations

from services.mesh.rpc.interceptors.method import Call
from services.mesh.runtime import deadline


class Deadlines:
    """Sets `runtime.deadline` from the call; unary calls without one get `limit` seconds."""

    def __init__(self, limit: float = 60.0) -> None:
        self._limit = limit

    def begin(self, call: Call, *, streaming: bool) -> None:
        remaining = call.context.time_remaining()
        if remaining is None and not streaming:
            remaining = call.limit = self._limit
        # Each call has a task of its own, so there is nothing to restore afterwards.
        deadline.start(remaining)
