"""The life of a process: start in order, serve, drain in a stated order, end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from services.mesh.clock import Clock, SystemClock
from services.mesh.errors import MeshError
from services.mesh.runtime.component import (
    Component,
    Finisher,
    StartupError,
    Taker,
    name_of,
)
from services.mesh.runtime.drain import DrainSignal
from services.mesh.runtime.loop import Loop
from services.mesh.runtime.readiness import Readiness
from services.mesh.runtime.tasks import Tasks
from services.mesh.runtime.threads import in_own_thread
from services.mesh.telemetry.metrics import LoopMetrics, Metrics
from services.mesh.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from services.mesh.failpoints import Failpoints

C = TypeVar("C", bound=Component)
log = logging.getLogger(__name__)

#: How long one component may take to stop before it is left behind.
STOP_SECONDS = 5.0


class Process:
    """What the composition root of a service is given, and what runs it afterwards.

    `add` lists components in the order they start; they stop in the reverse order. `tasks` owns
    background tasks, `readiness` feeds the health service, `drain` tells streams to end.
    """

    def __init__(
        self,
        name: str,
        instance: str = "",
        *,
        drain_seconds: float = 20.0,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self.name, self.instance = name, instance or name
        self.clock: Clock = clock or SystemClock()
        self.metrics = metrics or Metrics(name, self.instance)
        self.tracing = tracing or Tracing()
        #: Where tests may strike; None in every process that was not started for that.
        self.failpoints = failpoints
        self.readiness = Readiness()
        self.drain = DrainSignal()
        self.tasks = Tasks(self._died)
        self._drain_seconds = drain_seconds
        self._loop_metrics = LoopMetrics(self.metrics)
        self._up = self.metrics.gauge(
            "dependency_up", "Whether something this process needs is up.", ("dependency",)
        )
        self._components: list[Component] = []
        self._started: list[Component] = []
        self._stop = asyncio.Event()
        self._forced = asyncio.Event()
        self._served = asyncio.Event()
        self._exit_code = 0
        self.readiness.listen(self._measure_dependencies)

    def add(self, component: C) -> C:
        """Start this component after those added before, and stop it before them."""
        if isinstance(component, Loop):
            component.observe(self._loop_metrics)
        self._components.append(component)
        return component

    def stop(self, reason: str, *, exit_code: int = 0) -> None:
        """Begin to drain; the first reason and the worst exit code count."""
        if not self._stop.is_set():
            extra = {"action": "stop_requested", "reason": reason}
            log.info("stopping: %s", reason, extra=extra)
        self._exit_code = max(self._exit_code, exit_code)
        self._stop.set()

    async def serving(self) -> None:
        """Return once everything has started."""
        await self._served.wait()

    async def run(self, build: Callable[[], Awaitable[None]]) -> int:
        """Live: build and start all, serve until asked to stop, drain. Returns the exit code."""
        with self._signals():
            try:
                await self._unless_stopped(self._start(build))
                await self._stop.wait()
            except (StartupError, MeshError, OSError) as error:
                log.error("cannot start: %s", error, extra={"action": "start_failed"})
                self._exit_code = 1
            except Exception:
                log.exception("cannot start", extra={"action": "start_failed"})
                self._exit_code = 1
            finally:
                await self._wind_down()
        return self._exit_code

    # --- start

    async def _start(self, build: Callable[[], Awaitable[None]]) -> None:
        began = time.perf_counter()
        await build()
        for component in self._components:
            # Listed first: what fails half way through its start is stopped as well.
            self._started.append(component)
            await component.start()
        took = round(time.perf_counter() - began, 3)
        log.info("started", extra={"action": "started", "seconds": took})
        self._served.set()

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        """Await the work, or cut it short when a stop is asked for meanwhile."""
        starting = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait(), name="stop-while-starting")
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
        await asyncio.wait((starting, stopping))
        if not starting.cancelled():
            starting.result()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            log.warning("second signal: not waiting", extra={"action": "stop_forced"})
            self._exit_code = max(self._exit_code, 128 + number)
            self._forced.set()
        self.stop(f"received {number.name}")

    def _died(self, task: str) -> None:
        self.stop(f"task {task} died", exit_code=1)

    def _measure_dependencies(self) -> None:
        for name, up in self.readiness.states().items():
            self._up.labels(name).set(up)

    # --- the end

    async def _wind_down(self) -> None:
        """Drain in this order; each step relies on the one before it.

        1. Not serving: balancers and callers look elsewhere while we can still answer them.
        2. Takers cease: nothing new comes in, so what is under way can only become less.
        3. Streams are told, so that they end by themselves instead of holding the server's stop.
        4. What is under way finishes or is handed back, by the deadline.
        5. Components stop, latest first: the server before the adapters its handlers use, leases
           released while etcd is still connected, buffers flushed before connections close.
        6. Tasks that are left are cancelled, and the last spans are sent.
        """
        began = time.perf_counter()
        self._stop.set()
        self.readiness.drain()
        await self._cease()
        self.drain.set()
        await self._finish()
        for component in reversed(self._started):
            await self._guarded(component, "stop", component.stop())
        await self._guarded(self.tasks, "stop", self.tasks.stop())
        await in_own_thread(self.tracing.close)
        extra = {"action": "stopped", "seconds": round(time.perf_counter() - began, 3)}
        log.info("stopped", extra=extra)

    async def _cease(self) -> None:
        takers = [part for part in self._started if isinstance(part, Taker)]
        await asyncio.gather(*(self._guarded(p, "stop taking", p.stop_taking()) for p in takers))

    async def _finish(self) -> None:
        """Let all finishers finish at once; those that do not by the deadline are reported."""
        finishers = [part for part in self._started if isinstance(part, Finisher)]
        running = {
            asyncio.create_task(part.finish(self._drain_seconds), name=f"finish {name_of(part)}")
            for part in finishers
        }
        forced = asyncio.create_task(self._forced.wait(), name="stop-forced")
        deadline = time.monotonic() + self._drain_seconds + 0.5
        pending: set[asyncio.Task[None]] = set(running)
        while pending and not forced.done():
            left = deadline - time.monotonic()
            done, _ = await asyncio.wait(
                {*pending, forced}, timeout=max(0, left), return_when=asyncio.FIRST_COMPLETED
            )
            pending -= done
            if not done:
                break
        await self._abandon(pending, forced)
        self._report_failures(running)

    async def _abandon(self, pending: set[asyncio.Task[None]], forced: asyncio.Task[bool]) -> None:
        for task in pending:
            extra = {"action": "drain_incomplete", "step": task.get_name()}
            log.warning("did not finish by the deadline", extra=extra)
            task.cancel()
        forced.cancel()
        await asyncio.wait({*pending, forced}, timeout=STOP_SECONDS)

    def _report_failures(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                extra = {"action": "drain_failed", "step": task.get_name()}
                log.error("a drain step failed", exc_info=error, extra=extra)

    async def _guarded(self, component: object, step: str, work: Awaitable[None]) -> None:
        """One step of one component: bounded, and its failure does not keep others from theirs."""
        try:
            async with asyncio.timeout(1.0 if self._forced.is_set() else STOP_SECONDS):
                await work
        except Exception:
            extra = {"action": "stop_failed", "component": name_of(component), "step": step}
            log.exception("a component did not stop well", extra=extra)
