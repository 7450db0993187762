"""What a handler in the worker's own loop says, and what it is held to."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from jobmesh import Context, Snooze, job
from jobmesh.handlers import JobFunction

from services.mesh.clock import SystemClock
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.logs import LogLine
from services.mesh.jobs.model import NO_PAYLOAD, ObjectRef, Payload
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing
from services.mesh.testing.waiting import eventually
from services.worker.adapters.handler_logs import AttemptLogs
from services.worker.adapters.instruments import WorkerInstruments
from services.worker.adapters.loop_executor import HandlerLine as LoopLine
from services.worker.adapters.loop_executor import LoopExecutor
from services.worker.app.courier import Courier
from services.worker.app.run import Keeper
from services.worker.app.runner import Runner, RunSettings
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.book import AttemptBook
from services.worker.domain.ending import (
    Checkpointed,
    Ending,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Snoozed,
    Succeeded,
    Verdict,
)
from services.worker.ports import Objects

other_log = logging.getLogger("somebody.elses.library")


@job("counts")
async def counts(ctx: Context) -> None:
    for n in range(100):
        ctx.progress(n + 1, 100, "counting")
        await asyncio.sleep(0)


@job("waits")
async def waits(ctx: Context) -> None:
    await asyncio.sleep(600)


@job("signs")
async def signs(seconds: float, ctx: Context) -> str:
    for _ in range(20):
        ctx.heartbeat()
        await asyncio.sleep(seconds / 20)
    return "alive"


@job("extends")
async def extends(seconds: float, ctx: Context) -> str:
    ctx.extend(60)
    await asyncio.sleep(seconds)
    return "in time"


@job("shortens")
async def shortens(ctx: Context) -> None:
    ctx.extend(0.05)
    await asyncio.sleep(600)


@job("snoozes")
async def snoozes() -> None:
    raise Snooze(3)


@job("checkpoints")
async def checkpoints(ctx: Context) -> object:
    await ctx.checkpoint({"page": 7})
    await asyncio.to_thread(ctx.checkpoint, None)
    return ctx.last_checkpoint


@job("hasty")
async def hasty(ctx: Context) -> None:
    for n in range(100):
        ctx.checkpoint(n)


@job("logs")
async def logs(ctx: Context) -> None:
    ctx.log("number %d", 1)
    other_log.warning("two\nlines")
    await asyncio.to_thread(other_log.error, "from a thread")


@job("leaves")
async def leaves(ctx: Context) -> None:
    def speak() -> None:
        other_log.warning("late")
        ctx.progress(1, 2, "late")
        SPOKEN.append(1)

    asyncio.get_running_loop().call_later(0.02, speak)


#: What was left behind has spoken.
SPOKEN: list[int] = []

HANDLERS: list[JobFunction[Any, Any]] = [
    counts, waits, signs, extends, shortens, snoozes, checkpoints, hasty, logs, leaves,
]  # fmt: skip


class Store(Objects):
    """Keeps logs, or is away."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.away = False

    async def read(self, ref: ObjectRef) -> bytes:
        raise DependencyUnavailable("s3")

    async def download(self, ref: ObjectRef, target: Path) -> None:
        raise DependencyUnavailable("s3")

    async def store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Payload:
        raise DependencyUnavailable("s3")

    async def keep_log(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        if self.away:
            raise DependencyUnavailable("s3")
        self.kept += [line.text for line in lines]


class Notes(Keeper):
    """Remembers what the runner says, and answers what is stored."""

    may_start = True

    def __init__(self) -> None:
        self.stored: list[Payload] = []
        self.progress: list[Progressed] = []
        self.verdict: Verdict | None = Verdict.COMMITTED
        self._over: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()

    def tell(self, report: Report) -> None:
        if isinstance(report.what, Checkpointed):
            self.stored.append(report.what.state)
            if report.on_verdict is not None and self.verdict is not None:
                report.on_verdict(self.verdict)

    def tell_progress(self, attempt: Attempt, progress: Progressed) -> None:
        self.progress.append(progress)

    def ended(self, attempt: Attempt, ending: Ending | None, traceparent: str) -> None:
        self._over.set_result(ending)

    async def ending(self) -> Ending | None:
        async with asyncio.timeout(10):
            return await self._over


def attempt(type_: str, data: bytes = b"", **fields: Any) -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 1, type_, "default", 1, data=data, **fields)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def runner(tmp_path: Path, store: Store) -> AsyncIterator[Runner]:
    clock = SystemClock()
    specs = {handler.spec.type: handler.spec for handler in HANDLERS}
    heard = AttemptLogs()
    await heard.attach()
    made = Runner(
        dict.fromkeys(specs, LoopExecutor(specs, tmp_path, heard)),
        {},
        Courier(store, tmp_path, clock),
        WorkerInstruments(Metrics(), Tracing(), AttemptBook(dict.fromkeys(specs, 10), 100)),
        clock,
        RunSettings(abandon_after=0.1),
    )
    yield made
    await made.close()
    await heard.detach()


async def ending_of(runner: Runner, one: Attempt, notes: Notes | None = None) -> Ending | None:
    notes = notes or Notes()
    runner.launch(one, notes)
    return await notes.ending()


def failed(ending: Ending | None) -> str:
    assert isinstance(ending, Failed)
    return ending.failure.type


async def test_of_much_progress_the_first_and_the_last_are_told(runner: Runner) -> None:
    notes = Notes()
    assert isinstance(await ending_of(runner, attempt("counts"), notes), Succeeded)
    assert [p.done for p in notes.progress] == [1, 100]


async def test_a_silent_handler_fails_with_progress_timeout(runner: Runner) -> None:
    ending = await ending_of(runner, attempt("waits", progress_timeout=0.05))
    assert failed(ending) == "ProgressTimeout"
    assert isinstance(ending, Failed)
    assert ending.failure.message == "gave no sign of life for its limit of 0.05 s"


async def test_signs_of_life_keep_a_handler_running(runner: Runner) -> None:
    one = attempt("signs", b"0.4", progress_timeout=0.3)
    assert isinstance(await ending_of(runner, one), Succeeded)


async def test_a_handler_that_waits_for_a_checkpoint_is_not_silent(runner: Runner) -> None:
    notes, one = Notes(), attempt("checkpoints", progress_timeout=0.02)
    notes.verdict = None
    runner.launch(one, notes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(notes._over)
    runner.stop(one, Stop.DRAIN)
    assert isinstance(await notes.ending(), HandedBack)


async def test_an_extension_takes_the_place_of_the_run_timeout(runner: Runner) -> None:
    one = attempt("extends", b"0.2", run_timeout=0.1)
    assert isinstance(await ending_of(runner, one), Succeeded)


async def test_an_extension_may_be_shorter_than_what_was_left(runner: Runner) -> None:
    assert failed(await ending_of(runner, attempt("shortens", run_timeout=60))) == "RunTimeout"


async def test_the_total_timeout_bounds_every_extension(runner: Runner) -> None:
    one = attempt("extends", b"600", run_timeout=0.05, total_left=0.1)
    assert failed(await ending_of(runner, one)) == "TotalTimeout"


async def test_a_snooze_costs_nothing(runner: Runner) -> None:
    assert await ending_of(runner, attempt("snoozes")) == Snoozed(3)


async def test_a_checkpoint_is_stored_from_the_loop_and_from_a_thread(runner: Runner) -> None:
    notes, one = Notes(), attempt("checkpoints")
    one.checkpoint = Payload.inline(b"[1]", "application/json")
    ending = await ending_of(runner, one, notes)
    assert isinstance(ending, Succeeded)
    assert ending.output.data == b"[1]"
    assert notes.stored == [Payload.inline(b'{"page":7}', "application/json"), NO_PAYLOAD]


async def test_a_checkpoint_of_a_superseded_attempt_is_refused(runner: Runner) -> None:
    notes = Notes()
    notes.verdict = Verdict.STALE
    assert failed(await ending_of(runner, attempt("checkpoints"), notes)) == "AttemptCancelled"


async def test_checkpoints_nobody_awaits_are_bounded(runner: Runner) -> None:
    notes = Notes()
    notes.verdict = None
    assert failed(await ending_of(runner, attempt("hasty"), notes)) == "RuntimeError"


async def test_what_a_handler_logs_is_kept_with_its_attempt(
    runner: Runner, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobmesh.handler")
    assert isinstance(await ending_of(runner, attempt("logs")), Succeeded)
    assert store.kept == ["INFO number 1", "WARNING two", "lines", "ERROR from a thread"]


async def test_a_log_that_cannot_be_kept_fails_nothing(runner: Runner, store: Store) -> None:
    store.away = True
    assert isinstance(await ending_of(runner, attempt("logs")), Succeeded)


async def test_what_an_attempt_left_behind_is_not_heard(runner: Runner, store: Store) -> None:
    SPOKEN.clear()
    notes = Notes()
    await ending_of(runner, attempt("leaves"), notes)
    await eventually(lambda: bool(SPOKEN))
    assert notes.progress == []
    assert not runner.logs._written


async def test_who_says_nothing_has_no_log(runner: Runner, store: Store) -> None:
    await ending_of(runner, attempt("snoozes"))
    assert store.kept == []


async def test_a_thread_that_says_much_does_not_fill_the_loop() -> None:
    heard: list[float] = []
    observer: Any = Mock(progressed=lambda done, total, message: heard.append(done))
    line = LoopLine(Attempt(uuid4().bytes, 1, "counts", "default", 1), observer)

    def talk() -> None:
        for n in range(1000):
            line.progress(n, 1000, "")
            line.heartbeat()

    talking = threading.Thread(target=talk)
    talking.start()
    talking.join()  # the loop has no turn meanwhile
    await asyncio.sleep(0)
    assert heard == [999]
    observer.alive.assert_not_called()
