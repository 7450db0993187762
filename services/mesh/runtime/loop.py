"""The shape of every periodic duty: `start`, `run_once`, `stop`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from services.mesh.runtime.backoff import Backoff
from services.mesh.runtime.beat import until_beat
from services.mesh.runtime.tally import Tally

log = logging.getLogger(__name__)

#: Between passes that fail. What is back should not wait for us longer than this.
BACKOFF = Backoff(first=0.1, ceiling=2.0)
#: What one pass did, by name; only what is not zero is logged.
Counts = Mapping[str, int]


class LoopObserver(Protocol):
    """Is told how each pass went."""

    def passed(self, loop: str, seconds: float, counts: Counts) -> None: ...

    def failed(self, loop: str, seconds: float) -> None: ...


class Loop(ABC):
    """Calls `run_once` on an interval and whenever nudged, for as long as the process lives.

    A pass that raises is logged and tried again after a backoff, during which nudges wait: a
    dependency that is away must not be hammered. Nudges during a pass make one further pass. Work
    left over is the pass's own business: it calls `nudge` on itself. Loops of one process that rest
    for as long rest together (`beat`). `stop` lets the current pass end for up to `grace` seconds,
    then cancels it.

        class Sweeper(Loop):
            def __init__(self, store: Dispatches) -> None:
                super().__init__("sweeper", interval=1.0)
                self._store = store

            async def run_once(self) -> Counts:
                return {"swept": await self._store.sweep()}
    """

    def __init__(
        self,
        name: str,
        interval: float,
        *,
        grace: float = 3.0,
        backoff: Backoff | None = None,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        #: Passes that ended well, for tests to wait on.
        self.passes = Tally()
        self.failures = 0
        self._interval, self._grace = interval, grace
        self._backoff = backoff or BACKOFF
        self._rand = rand
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._observer: LoopObserver | None = None

    @abstractmethod
    async def run_once(self) -> Counts:
        """Do what there is to do now, and say how much it was."""

    def observe(self, observer: LoopObserver) -> None:
        """Have each pass reported, as the process does for the loops it is given."""
        self._observer = observer

    def nudge(self) -> None:
        """There is work: do not wait for the tick."""
        self._wake.set()

    async def start(self) -> None:
        if self._task is None and not self._stopping.is_set():
            self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=self._grace)
            if not done:
                self._task.cancel()
                await asyncio.wait({self._task})

    async def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the pass: a nudge that comes while it runs is for what it did not see.
            self._wake.clear()
            pause = await self._pass()
            await self._rest(pause)

    async def _pass(self) -> float:
        """One guarded pass; returns how long to rest after it, negative if nudges must wait too."""
        began = time.perf_counter()
        try:
            counts = await self.run_once()
        except Exception:
            return self._after_failure(time.perf_counter() - began)
        self._after_success(time.perf_counter() - began, counts)
        rest = self.rest()
        # Who rests for less waits for something of its own.
        return rest if rest < self._interval else until_beat(rest)

    def rest(self) -> float:
        """How long to rest after a pass, but for nudges."""
        return self._interval

    def _after_success(self, seconds: float, counts: Counts) -> None:
        self.failures = 0
        if self._observer is not None:
            self._observer.passed(self.name, seconds, counts)
        if any(counts.values()) and log.isEnabledFor(logging.DEBUG):
            did = {key: count for key, count in counts.items() if count}
            log.debug("%s: %s", self.name, did, extra={"action": "loop_pass", "loop": self.name})
        self.passes.add()

    def _after_failure(self, seconds: float) -> float:
        self.failures += 1
        pause = self._backoff.delay(self.failures, self._rand)
        extra = {"action": "loop_failed", "loop": self.name, "failures": self.failures}
        # The traceback once per streak: a dependency that is away would fill the log with it.
        log.warning("%s failed", self.name, exc_info=self.failures == 1, extra=extra)
        if self._observer is not None:
            self._observer.failed(self.name, seconds)
        return -pause

    async def _rest(self, pause: float) -> None:
        # Yields even when nudged already, so that a loop under constant nudges starves nobody.
        await asyncio.sleep(0)
        waker = self._stopping if pause < 0 else self._wake
        try:
            async with asyncio.timeout(abs(pause)):
                await waker.wait()
        except TimeoutError:
            return
