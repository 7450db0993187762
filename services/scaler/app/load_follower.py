"""Keeps the latest statistics at hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from services.mesh.errors import MeshError
from services.mesh.runtime import Backoff, Dependency, Tally, Tasks
from services.scaler.domain.load import LoadReport
from services.scaler.ports import LoadSource

log = logging.getLogger(__name__)


class LoadFollower:
    """Follows the source for as long as the process lives, and comes back when it breaks off.

    A source that says nothing for `silence` seconds counts as broken, whatever its connection says.
    """

    name = "load follower"

    def __init__(
        self,
        source: LoadSource,
        tasks: Tasks,
        dependency: Dependency,
        *,
        silence: float,
        backoff: Backoff | None = None,
    ) -> None:
        self._source, self._tasks, self._dependency = source, tasks, dependency
        self._silence = silence
        self._backoff = backoff or Backoff(first=0.1, ceiling=1.0)
        self._callbacks: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.report: LoadReport | None = None
        #: Reports received, for tests to wait on.
        self.received = Tally()

    def on_report(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), "load-follower")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        failures = 0
        while True:
            received = self.received.count
            try:
                await self._follow()
                reason: object = "the stream ended"
            except (MeshError, TimeoutError) as error:
                reason = error if str(error) else f"nothing came for {self._silence:g} s"
            self._dependency.down(reason)
            failures = 1 if self.received.count > received else failures + 1
            await asyncio.sleep(self._backoff.delay(failures))

    async def _follow(self) -> None:
        async with aclosing(self._source.follow()) as reports:
            while True:
                async with asyncio.timeout(self._silence):
                    report = await anext(reports, None)
                if report is None:
                    return
                self._take(report)

    def _take(self, report: LoadReport) -> None:
        self.report = report
        self._dependency.up()
        self.received.add()
        for callback in self._callbacks:
            callback()
