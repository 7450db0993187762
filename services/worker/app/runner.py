"""Lives through attempts: input, handler, output, ending; and stops them when asked to.

An attempt that waits for anything has an asyncio task to itself until its ending (see `crew`), so
that stopping it, whatever it is doing, is cancelling that task. Why it was stopped is written on
the attempt, and decides what is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from services.mesh.clock import Clock
from services.mesh.jobs.model import ObjectRef
from services.worker.app.courier import Courier
from services.worker.app.crew import Crew
from services.worker.app.log_keeper import LogKeeper
from services.worker.app.run import Keeper, Run
from services.worker.app.voice import Voice
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.ending import (
    Ending,
    Failed,
    HandedBack,
    Report,
    Started,
    ending_of_stop,
    failure,
)
from services.worker.ports import Executor, Instruments, Returned

log = logging.getLogger(__name__)

DEFECT_SECONDS = 1.0
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Times, in seconds, and a bound."""

    announce_after: float = 0.1
    """A start is reported by itself only if the attempt still runs after this."""
    default_timeout: float | None = None
    """Bounds attempts whose job and handler set no limit."""
    abandon_after: float = 5.0
    """How long a stopped attempt may go on before its ending is reported all the same. Executor
    processes are dead by then; an async handler that ignores its cancellation cannot be killed.
    """
    log_bytes: int = 1024 * 1024
    """What is kept of the log of one attempt, while it runs and afterwards."""
    log_seconds: float = 3.0
    """How long a line of a running attempt may be lost with its worker; 0: until it ends."""


class Runner:
    """Runs attempts of all types and identities of this worker."""

    def __init__(
        self,
        executors: Mapping[str, Executor],
        timeouts: Mapping[str, float],
        courier: Courier,
        instruments: Instruments,
        clock: Clock,
        settings: RunSettings,
    ) -> None:
        self._executors = executors
        self._timeouts = timeouts
        self._courier = courier
        self._instruments = instruments
        self._clock = clock
        self._settings = settings
        self.log_bytes = settings.log_bytes
        self.logs = LogKeeper(courier.keep_log_so_far, settings.log_seconds)
        self._crew = Crew(self._live, clock)
        self._runs: dict[Attempt, Run] = {}
        #: Runs whose start was not reported yet, the oldest first.
        self._fresh: dict[Run, None] = {}
        self._announcing: asyncio.TimerHandle | None = None
        #: Handlers that ignored their cancellation, and may go on for as long as we live.
        self._deaf: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- for others

    def launch(self, attempt: Attempt, keeper: Keeper) -> None:
        """Run a locked attempt to its end."""
        run = Run(self, attempt, keeper, self._timeout_of(attempt))
        if attempt.total_left is not None:
            run.began = self._clock.monotonic()
        self._runs[attempt] = run
        self._idle.clear()
        self._crew.launch(run)

    def stop(self, attempt: Attempt, why: Stop) -> bool:
        """Stop an attempt; False if it is not running. The first reason counts."""
        run = self._runs.get(attempt)
        if run is None:
            return False
        if attempt.stop is None:
            attempt.stop = why
            if run.task is not None:  # else it has not begun, and will not
                self._cancel(run, run.task)
        return True

    def _cancel(self, run: Run, task: asyncio.Task[None]) -> None:
        if run.limits is not None:
            run.limits.end()
        task.cancel()
        self._set_timer(run, _later(self._settings.abandon_after, self._abandon, run, task))

    def stop_all(self, why: Stop) -> int:
        return sum(self.stop(attempt, why) for attempt in tuple(self._runs))

    def abandon_all(self) -> None:
        """Report those that were stopped and have not ended yet; waiting longer is no use."""
        for run in tuple(self._runs.values()):
            if run.attempt.stop is not None and run.task is not None:
                self._abandon(run, run.task)

    async def idle(self) -> None:
        """Return when nothing runs."""
        await self._idle.wait()

    async def close(self) -> None:
        """End what still runs, without reports."""
        self._is_closing = True
        self._crew.close()
        tasks = {run.task for run in self._runs.values() if run.task is not None} | self._deaf
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        if self._announcing is not None:
            self._announcing.cancel()
        self.logs.close()

    def now_us(self) -> int:
        """The wall clock, for reports."""
        return self._clock.now_us()

    def voice_of(self, attempt: Attempt) -> Voice | None:
        """What its handler says; None if it is not running."""
        run = self._runs.get(attempt)
        return None if run is None else run.voice

    # --- the life of an attempt

    async def _live(self, run: Run) -> None:
        attempt = run.attempt
        ending: Ending | None = None
        try:
            if attempt.stop is None:
                ending = await self._run(run, self._executors[attempt.type])
        except asyncio.CancelledError:
            # Not by what the task says: handlers, and libraries in them, cancel their own tasks.
            if attempt.stop is None and self._is_closing:
                self._forget(run)
                raise
            ending = _own_cancellation()
        except Exception:
            extra = {"action": "attempt_defect", "job_id": str(attempt.job_id)}
            log.exception("an attempt could not be run", extra=extra)
            ending = HandedBack("worker defect", DEFECT_SECONDS)
        if attempt.stop is not None:
            ending = ending_of_stop(attempt.stop, run.limit(attempt.stop))
        if run.spoken is not None and run.spoken.log:
            await self._keep_log(run, run.spoken)
        self._over(run, ending)

    async def _keep_log(self, run: Run, spoken: Voice) -> None:
        """Before the ending is told: who hears of it finds the log. It never decides the ending."""
        self._handler_over(run)
        self._set_timer(run, None)
        with suppress(asyncio.CancelledError):
            was_kept = self.logs.ended(run.attempt)
            await self._courier.keep_log(run.attempt, spoken.log.all(), was_kept=was_kept)

    def _run(self, run: Run, executor: Executor) -> Awaitable[Ending]:
        attempt = run.attempt
        if attempt.object is None or executor.reads_objects:
            return self._execute(run, executor, attempt.data)
        return self._fetch_and_execute(run, executor, attempt.object)

    async def _fetch_and_execute(self, run: Run, executor: Executor, ref: ObjectRef) -> Ending:
        attempt = run.attempt
        try:
            as_file = executor.wants_file(attempt.type)
            source = await self._courier.fetch(attempt, ref, as_file=as_file)
            if isinstance(source, Failed | HandedBack):
                return source
            return await self._execute(run, executor, source)
        finally:
            await self._courier.clear(attempt)

    async def _execute(self, run: Run, executor: Executor, source: bytes | Path) -> Ending:
        if run.attempt.not_before:
            await self._until(run.attempt.not_before)
        if not run.keeper.may_start:
            return HandedBack("lease lost")
        result = await executor.run(run.attempt, source, run)
        self._handler_over(run)
        if not isinstance(result, Returned):
            return result
        return await self._courier.deliver(run.attempt, result)

    async def _until(self, when: float) -> None:
        """Wait for the very moment. Loops count in milliseconds, some of them from the last."""
        left = when - self._clock.monotonic()
        if left > 0:
            await asyncio.sleep(ceil(left * 1000) / 1000)
            await self._until(when)

    def begin(self, run: Run, pid: int) -> None:
        """The handler starts now."""
        attempt = run.attempt
        attempt.start_us = self.now_us()
        attempt.executor_pid = pid
        launched = run.began
        run.began = attempt.began = self._clock.monotonic()
        run.span = self._instruments.run_begins(attempt)
        if run.span is not None:
            attempt.traceparent = run.span.traceparent  # what the handler does hangs on its run
        if attempt.stop is None and _is_bounded(run):
            run.hold_to_limits(run.began - launched if launched else 0.0)
        self._fresh[run] = None
        if self._announcing is None:
            self._announcing = _later(self._settings.announce_after, self._announce)

    def _handler_over(self, run: Run) -> None:
        if run.took or not run.attempt.has_begun:
            return  # known already, or it never began
        run.took = self._clock.monotonic() - run.began
        self._fresh.pop(run, None)
        if run.limits is not None or run.spoken is not None:
            run.handler_ended()

    def _over(self, run: Run, ending: Ending | None) -> None:
        if not run.took:
            self._handler_over(run)
        if run.timer is not None:
            self._set_timer(run, None)
        self._forget(run)
        self._report(run, ending)

    def _report(self, run: Run, ending: Ending | None) -> None:
        if run.is_reported:
            return
        run.is_reported = True
        attempt = run.attempt
        self._instruments.ended(attempt, ending, run.took)
        traceparent = ""
        if run.span is not None:
            traceparent = run.span.traceparent
            run.span.end(ending)
        run.keeper.ended(attempt, ending, traceparent)

    def _forget(self, run: Run) -> None:
        run.is_over = True
        if run.limits is not None or run.spoken is not None:
            run.fall_silent()
            self.logs.ended(run.attempt)
        self._fresh.pop(run, None)
        self._runs.pop(run.attempt, None)
        if not self._runs:
            self._idle.set()

    # --- timers

    def _timeout_of(self, attempt: Attempt) -> float | None:
        if attempt.run_timeout is not None:
            return attempt.run_timeout
        return self._timeouts.get(attempt.type, self._settings.default_timeout)

    def _set_timer(self, run: Run, timer: asyncio.TimerHandle | None) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = timer

    def _announce(self) -> None:
        """Report the starts of those that have run for more than a moment."""
        self._announcing = None
        ripe = self._clock.monotonic() - self._settings.announce_after
        while self._fresh:
            run = next(iter(self._fresh))
            if run.began > ripe:
                self._announcing = _later(run.began - ripe, self._announce)
                return
            del self._fresh[run]
            run.keeper.tell(Report(run.attempt, Started()))

    def _abandon(self, run: Run, task: asyncio.Task[None]) -> None:
        """A stopped handler does not end: report what it was stopped for."""
        stop = run.attempt.stop
        assert stop is not None
        self._deaf.add(task)
        task.add_done_callback(self._deaf.discard)
        extra = {"action": "attempt_deaf", "job_id": str(run.attempt.job_id), "stop": stop.value}
        log.error("a handler ignores its cancellation", extra=extra)
        self._over(run, ending_of_stop(stop, run.limit(stop)))


def _is_bounded(run: Run) -> bool:
    attempt = run.attempt
    return (
        run.timeout is not None
        or attempt.progress_timeout is not None
        or attempt.total_left is not None
    )


def _later(delay: float, call: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay, call, *arguments)


def _own_cancellation() -> Failed:
    return Failed(failure("CancelledError", "the handler let a cancellation of its own through"))
