"""The tasks that attempts run in.

Many handlers never wait for anything, and a task for each of them costs as much as running it. So
one task runs attempts in turn, as long as they come to their end without waiting. The first that
waits keeps the task, to be cancelled by it; the others go on in the next one. Of a type whose last
attempt waited each has a task of its own from the start, and none waits for another.

Each attempt has a context of its own: what its handler sets, no other sees.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from services.mesh.clock import Clock
from services.worker.app.run import Run

Life = Coroutine[Any, Any, None]

#: After so many seconds the loop has its turn: it renews the lease. Not sooner: a batch that runs
#: in one go is reported in one go, and what it is cut into costs all that hear of it.
TURN_SECONDS = 0.1


class Crew:
    """Runs the lives of attempts; `live` makes one, which reports by itself."""

    def __init__(self, live: Callable[[Run], Life], clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._context = copy_context()
        #: Who waits for the task that is on its way or at work; None: there is none.
        self._line: deque[Run] | None = None
        #: Types whose last attempt waited.
        self._waiting: set[str] = set()
        self._is_open = True

    def launch(self, run: Run) -> None:
        """Begin soon. `run.task` is set when it begins."""
        if run.attempt.type in self._waiting:
            self._send_off(deque((run,)))
        elif self._line is None:
            self._line = deque((run,))
            self._send_off(self._line)
        else:
            self._line.append(run)

    def close(self) -> None:
        """Begin nothing more."""
        self._is_open = False

    def _send_off(self, line: deque[Run]) -> None:
        asyncio.get_running_loop().create_task(self._work(line), name="attempt")

    async def _work(self, line: deque[Run]) -> None:
        task = asyncio.current_task()
        assert task is not None
        until = self._clock.monotonic() + TURN_SECONDS
        rest: Awaitable[None] | None = None
        try:
            # A handler that cancels the task it runs in means nobody else's.
            while line and rest is None and self._is_open and not task.cancelling():
                rest = self._begin(line.popleft(), task)
                if self._clock.monotonic() >= until:
                    break
        finally:
            self._pass_on(line)
        if rest is not None:
            await rest

    def _begin(self, run: Run, task: asyncio.Task[None]) -> Awaitable[None] | None:
        """Go through a life up to where it waits: what is left of it then."""
        run.task = task
        context, life = self._context.copy(), self._live(run)
        try:
            waits_for = context.run(life.send, None)
        except StopIteration:
            self._waiting.discard(run.attempt.type)
            return None
        self._waiting.add(run.attempt.type)
        return _Rest(life, context, waits_for)

    def _pass_on(self, line: deque[Run]) -> None:
        """This task goes no further: the others need another."""
        if self._line is line:
            self._line = None
        if self._is_open:
            for run in line:
                self.launch(run)


class _Rest:
    """A life that was begun and waits, to be awaited to its end, in its context."""

    def __init__(self, life: Life, context: Context, waits_for: Any) -> None:
        self._life, self._context, self._waits_for = life, context, waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        life, run, waits_for = self._life, self._context.run, self._waits_for
        try:
            while True:
                thrown: BaseException | None = None
                try:
                    yield waits_for
                except BaseException as error:
                    thrown = error
                waits_for = run(life.send, None) if thrown is None else run(life.throw, thrown)
        except StopIteration:
            return
