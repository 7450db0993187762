"""The owner of background tasks: each has a name, an owner and an end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from services.mesh.errors import Draining
from services.mesh.runtime import deadline

T = TypeVar("T")
log = logging.getLogger(__name__)


async def together(*work: Awaitable[T]) -> list[T]:
    """As `asyncio.gather`, but what is alone gets no task of its own: that is most of what a lone
    job would pay for being one of a batch.
    """
    if len(work) == 1:
        return [await work[0]]
    return await asyncio.gather(*work)


class Tasks:
    """Runs coroutines in the background and lets none of them be lost.

    A vital task that ends with an error calls `on_death` with its name: a process that has lost a
    part of itself drains and is started anew, instead of living on half dead. An error of a task
    that is not vital is only logged. `stop` cancels all and returns when the last one has ended.
    """

    def __init__(self, on_death: Callable[[str], None] | None = None) -> None:
        self._on_death = on_death
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def spawn(
        self, work: Coroutine[Any, Any, T], name: str, *, vital: bool = True
    ) -> asyncio.Task[T]:
        """Start a named task; refused with Draining once `stop` was called."""
        if self._closed:
            work.close()
            raise Draining
        context = copy_context()
        # The task may outlive the call that started it: it must not inherit that call's deadline.
        context.run(deadline.start, None)
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._buried if vital else self._forgotten)
        return task

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._closed = True
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def names(self) -> list[str]:
        """The tasks that run now."""
        return sorted(task.get_name() for task in self._tasks)

    def _forgotten(self, task: asyncio.Task[Any]) -> bool:
        """Take the task off the list; tell whether it failed, and log it if so."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            extra = {"action": "task_failed", "task": task.get_name()}
            log.error("background task failed", exc_info=error, extra=extra)
        return error is not None

    def _buried(self, task: asyncio.Task[Any]) -> None:
        if self._forgotten(task) and self._on_death is not None and not self._closed:
            self._on_death(task.get_name())
