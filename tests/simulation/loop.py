"""An event loop on a clock that is only counted."""

from __future__ import annotations

import asyncio
import heapq
import random as global_random
from asyncio import events, futures
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from services.mesh.runtime.beat import PHASE

T = TypeVar("T")
RESOLUTION = 1e-6


@dataclass(eq=False, slots=True)
class Host:
    """What callbacks belong to: a process that may be killed or frozen."""

    name: str
    dead: bool = False
    frozen_until: float = 0.0
    phase: float = field(default_factory=lambda: 10 * global_random.random())
    """Of its beat: processes began at different moments."""


#: Inherited by every task and callback that a process begins.
HOST: ContextVar[Host | None] = ContextVar("HOST", default=None)


class StuckError(Exception):
    """Nothing is left to happen, and what was waited for has not."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in an order drawn from `random`; time passes when nothing is ready.

    Callbacks of one process keep their order, as they do in a real event loop; those of different
    processes may overtake each other, as real processes do.
    """

    def __init__(self, random: Random, most_steps: int = 2_000_000) -> None:
        self._random = random
        self._now = 0.0
        self._ready: dict[Host | None, list[events.Handle]] = {}
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._count = 0
        self._most_steps = most_steps
        self.steps = 0
        self.problems: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    # --- time and callbacks

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._push(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        # No clock is finer: a wait for the rest of a rounding would not move this one at all.
        rest = max(RESOLUTION, delay) if delay > 0 else 0.0
        return self.call_at(self._now + rest, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _push(self, handle: events.Handle) -> None:
        host = handle._context.get(HOST)  # type: ignore[attr-defined]
        self._ready.setdefault(host, []).append(handle)

    # --- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return futures.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        # A killed process leaves its tasks where they were: that is no mistake of anybody's.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        # And nothing of it is closed, which would run its `finally`, while the world goes on.
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    async def shutdown_asyncgens(self) -> None:
        """What a killed process left open stays so."""

    # --- running

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until the work is done."""
        events._set_running_loop(self)
        try:
            task = self.create_task(work, name="world")
            while not task.done():
                self._step()
            return task.result()
        finally:
            events._set_running_loop(None)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._most_steps:
            raise StuckError(f"no end after {self.steps} steps, at {self._now:.3f} s")
        host = self._next_host()
        if host is _NOBODY:
            self._pass_time()
            return
        queue = self._ready[host]
        handle = queue.pop(0)
        if not queue:
            del self._ready[host]
        if not handle.cancelled():
            handle._run()  # type: ignore[attr-defined]

    def _next_host(self) -> Any:
        """Of those with something to do, one by lot."""
        hosts = [host for host in self._ready if self._may_run(host)]
        if not hosts:
            return _NOBODY
        return hosts[0] if len(hosts) == 1 else self._random.choice(hosts)

    def _may_run(self, host: Host | None) -> bool:
        return host is None or not (host.dead or host.frozen_until > self._now)

    def _pass_time(self) -> None:
        """On to the next moment at which something is due, or somebody thaws."""
        thaw = [
            host.frozen_until
            for host in self._ready
            if host is not None and not host.dead and host.frozen_until > self._now
        ]
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        moments = thaw + [self._timers[0][0]] * bool(self._timers)
        if not moments:
            raise StuckError(f"nothing left to happen at {self._now:.3f} s")
        self._now = max(self._now, min(moments))
        while self._timers and self._timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._push(timer)


_NOBODY = object()


def on_host(host: Host | None, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that belongs to a process, with all that it begins."""
    from contextvars import copy_context

    context = copy_context()
    context.run(HOST.set, host)
    context.run(PHASE.set, host.phase if host is not None else 0.0)
    return asyncio.get_running_loop().create_task(work, name=name, context=context)
