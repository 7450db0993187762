"""The driver of pools whose workers are processes on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from services.mesh.clock import Clock
from services.scaler.adapters.process.crew import ProcessCrew
from services.scaler.adapters.process.departures import Departures
from services.scaler.adapters.process.handle import ProcessHandle
from services.scaler.adapters.process.launcher import Launched, Launcher
from services.scaler.app.metrics import PoolMetrics
from services.scaler.domain.fleet import Worker
from services.scaler.domain.pool import DEFAULT_DRAIN_TIMEOUT, PoolSpec
from services.scaler.ports import Crew, WorkerCalls

log = logging.getLogger(__name__)


class ProcessDriver:
    """See the package's docstring. `on_change` is called when a process ends."""

    name = "process driver"

    def __init__(
        self,
        launcher: Launcher,
        calls: WorkerCalls,
        clock: Clock,
        metrics: PoolMetrics,
        *,
        host: str,
        start_timeout: timedelta,
        settle: timedelta,
        drain_grace: timedelta,
    ) -> None:
        self._launcher, self._clock, self._metrics, self._host = launcher, clock, metrics, host
        self._start_timeout, self._settle, self._grace = start_timeout, settle, drain_grace
        self._crews: dict[str, ProcessCrew] = {}
        self._departures = Departures(calls, self._identify, clock, drain_grace)
        self._callbacks: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Nothing runs until a pool asks for it."""

    async def stop(self) -> None:
        """The workers stay: they belong to their pools."""
        for crew in self._crews.values():
            crew.leave_alone()

    # --- the port ---

    def adopt(self) -> None:
        for launched in self._launcher.left_behind():
            crew = self._crew(launched.type)
            if launched.process.pid not in crew.pids():
                crew.join(launched)
                extra = {"action": "worker_adopted", "pid": launched.process.pid}
                log.info("adopted a worker", extra={**extra, "type": launched.type})

    def observe(self, spec: PoolSpec, workers: Collection[Worker]) -> Crew:
        crew = self._crew(spec.type)
        here = [worker for worker in workers if worker.host == self._host]
        crew.review(here, spec.process)
        self._departures.review({worker.worker_id for worker in workers})
        return Crew(
            starting=crew.starting,
            leaving=self._departures.ids(),
            dead=frozenset(worker.worker_id for worker in here if crew.saw_end_of(worker)),
            crashes=crew.crashes,
            lead=crew.lead,
        )

    def observe_others(self, types: Collection[str], workers: Collection[Worker]) -> None:
        here = [worker for worker in workers if worker.host == self._host]
        for type_ in self._crews.keys() - types:
            crew = self._crews[type_]
            crew.review(here, None)
            if not crew.pids():
                del self._crews[type_]

    async def grow(self, spec: PoolSpec, count: int) -> int:
        if spec.process is None:
            return 0
        crew = self._crew(spec.type)
        for started in range(count):
            began = self._clock.now()
            try:
                launched = self._launcher.launch(spec, spec.process)
            except OSError as error:
                crew.failed(began, f"cannot start the process: {error}")
                return started
            crew.join(launched)
            self._tell(launched)
            # A start takes a millisecond or two; others get their turn in between.
            await asyncio.sleep(0)
        return count

    async def shrink(self, spec: PoolSpec | None, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self._mark(worker)
        timeout = spec.drain_timeout if spec is not None else None
        limit = timeout if timeout is not None else DEFAULT_DRAIN_TIMEOUT
        await self._departures.see_off(workers, timeout, limit)

    # --- inside ---

    def _crew(self, type_: str) -> ProcessCrew:
        if type_ not in self._crews:
            self._crews[type_] = ProcessCrew(
                type_,
                self._clock,
                self._metrics,
                self._changed,
                start_timeout=self._start_timeout,
                settle=self._settle,
                grace=self._grace,
            )
        return self._crews[type_]

    def _mark(self, worker: Worker) -> None:
        """Its end will be no crash."""
        if worker.host == self._host:
            for type_ in worker.types:
                hand = self._crew(type_).hand(worker.pid)
                if hand is not None:
                    hand.leaving = True

    def _identify(self, worker: Worker) -> ProcessHandle | None:
        """The process of a worker: one we started or adopted, or one whose start time fits."""
        if worker.host != self._host:
            return None
        for type_ in worker.types:
            hand = self._crew(type_).hand(worker.pid)
            if hand is not None:
                return hand.launched.process
        process = ProcessHandle.of(worker.pid)
        return process if process is not None and process.fits(worker.started_at) else None

    def _tell(self, launched: Launched) -> None:
        self._metrics.started(launched.type)
        extra = {"action": "worker_started", "type": launched.type, "pid": launched.process.pid}
        log.info("started a worker", extra={**extra, "log": str(launched.log)})

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback()
