"""The life of one attempt, with handlers that misbehave in the worker's own loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from jobmesh import Context, RetryAfter, Snooze, job
from jobmesh.handlers import JobFunction

from services.mesh.clock import ManualClock, SystemClock
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.logs import LogLine
from services.mesh.jobs.model import ObjectRef, Payload
from services.mesh.runtime import Readiness
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing
from services.mesh.testing.waiting import eventually
from services.worker.adapters.instruments import ReadinessDependencies, WorkerInstruments
from services.worker.adapters.loop_executor import LoopExecutor
from services.worker.app.courier import Courier
from services.worker.app.run import Keeper
from services.worker.app.runner import Runner, RunSettings
from services.worker.domain.attempt import Attempt, Batch, Stop
from services.worker.domain.book import AttemptBook
from services.worker.domain.clocks import ShardClocks
from services.worker.domain.ending import (
    Ending,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Started,
    Succeeded,
)
from services.worker.ports import Objects


@job("deaf")
async def deaf() -> None:
    """Ignores its first cancellation; the second one is the end of the test."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    await asyncio.sleep(600)


@job("slow")
async def slow(ctx: Context) -> None:
    ctx.progress(1, 2, "half")
    await asyncio.sleep(600)


@job("leaves")
async def leaves() -> None:
    sys.exit(3)


@job("cancels-itself")
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@job("cancels-its-task")
async def cancels_its_task() -> None:
    this_task().cancel()
    await asyncio.sleep(600)


@job("is-cancelled-by-a-timer")
async def is_cancelled_by_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.01, this_task().cancel)
    await asyncio.sleep(600)


@job("cancels-and-returns")
async def cancels_and_returns() -> None:
    this_task().cancel()


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@job("later")
async def later() -> None:
    raise RetryAfter(3.0)


class Unspeakable(Exception):  # noqa: N818 - it is no mere error
    def __str__(self) -> str:
        raise ValueError("no words")


@job("unspeakable")
async def unspeakable() -> None:
    raise Unspeakable


@job("double")
async def double(n: int) -> int:
    return 2 * n


class NotYet(Snooze):
    def __init__(self, why: str) -> None:
        self.why = why


class Busy(RetryAfter):
    def __init__(self, why: str) -> None:
        self.why = why


class Backwards(Snooze):
    def __init__(self) -> None:
        self.seconds = -1.0


@job("not-yet")
async def not_yet() -> None:
    raise NotYet("no room")


@job("busy")
async def busy() -> None:
    raise Busy("no room")


@job("backwards")
async def backwards() -> Snooze:
    return Backwards()


HANDLERS: list[JobFunction[Any, Any]] = [
    deaf,
    slow,
    leaves,
    cancels_itself,
    cancels_its_task,
    is_cancelled_by_a_timer,
    cancels_and_returns,
    later,
    not_yet,
    busy,
    backwards,
    unspeakable,
    double,
]


class NoStore(Objects):
    async def read(self, ref: ObjectRef) -> bytes:
        raise DependencyUnavailable("s3")

    async def download(self, ref: ObjectRef, target: Path) -> None:
        raise DependencyUnavailable("s3")

    async def store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Payload:
        raise DependencyUnavailable("s3")

    async def keep_log(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        raise DependencyUnavailable("s3")


class Notes(Keeper):
    """Remembers what the runner says."""

    may_start = True

    def __init__(self) -> None:
        self.told: list[object] = []
        self._over: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()

    def tell(self, report: Report) -> None:
        self.told.append(report.what)

    def tell_progress(self, attempt: Attempt, progress: Progressed) -> None:
        self.told.append(progress)

    def ended(self, attempt: Attempt, ending: Ending | None, traceparent: str) -> None:
        self._over.set_result(ending)

    @property
    def is_over(self) -> bool:
        return self._over.done()

    async def ending(self) -> Ending | None:
        async with asyncio.timeout(10):
            return await self._over


def attempt(type_: str, data: bytes = b"") -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 1, type_, "default", 1, data=data)


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[Runner]:
    clock = SystemClock()
    specs = {handler.spec.type: handler.spec for handler in HANDLERS}
    executor = LoopExecutor(specs, tmp_path)
    book = AttemptBook(dict.fromkeys(specs, 10), 100)
    made = Runner(
        dict.fromkeys(specs, executor),
        {},
        Courier(NoStore(), tmp_path, clock),
        WorkerInstruments(Metrics(), Tracing(), book),
        clock,
        RunSettings(announce_after=0.02, abandon_after=0.1),
    )
    yield made
    await made.close()


async def test_an_output_is_encoded_and_inline(runner: Runner) -> None:
    notes = Notes()
    runner.launch(attempt("double", b"21"), notes)
    assert await notes.ending() == Succeeded(Payload.inline(b"42", "application/json"))
    assert notes.told == []


class SlowStore(NoStore):
    """Takes three seconds to store an output."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Payload:
        self._clock.advance(3.0)
        return Payload.stored(ObjectRef("output", len(content)), content_type)  # type: ignore[arg-type]


async def test_the_upload_of_an_output_is_not_counted_as_run_time(tmp_path: Path) -> None:
    clock, metrics = ManualClock(), Metrics()

    @job("large")
    async def large() -> bytes:
        clock.advance(2.0)
        return b"x" * 100_000

    executor = LoopExecutor({"large": large.spec}, tmp_path)
    courier = Courier(SlowStore(clock), tmp_path, clock)
    instruments = WorkerInstruments(metrics, Tracing(), AttemptBook({"large": 1}, 1))
    runner = Runner({"large": executor}, {}, courier, instruments, clock, RunSettings())
    notes, one = Notes(), attempt("large")
    runner.launch(one, notes)
    assert isinstance(await notes.ending(), Succeeded)
    assert (one.began, clock.monotonic()) == (0.0, 5.0)
    assert metrics.value("jobmesh_attempt_run_seconds_sum", {"type": "large"}) == 2.0
    await runner.close()


async def test_a_start_is_told_of_attempts_that_take_longer_than_a_moment(runner: Runner) -> None:
    notes, one = Notes(), attempt("slow")
    runner.launch(one, notes)
    await eventually(lambda: Started() in notes.told)
    assert any(isinstance(what, Progressed) for what in notes.told)
    runner.stop(one, Stop.DRAIN)
    ending = await notes.ending()
    assert isinstance(ending, HandedBack)
    assert ending.reason == "drain"


async def test_an_attempt_that_was_sent_ahead_starts_at_its_time(runner: Runner) -> None:
    notes, one = Notes(), attempt("double", b"1")
    one.due_us = 7_050_000
    began = time.monotonic()
    Batch("double", 1, [one], now_us=7_000_000).hold(began, ShardClocks())
    runner.launch(one, notes)
    assert isinstance(await notes.ending(), Succeeded)
    assert time.monotonic() - began >= 0.05
    assert one.start_us > 0


async def test_an_attempt_that_is_stopped_before_its_time_never_starts(runner: Runner) -> None:
    notes, one = Notes(), attempt("double", b"1")
    one.not_before = time.monotonic() + 600
    runner.launch(one, notes)
    await asyncio.sleep(0)
    runner.stop(one, Stop.CANCELLED)
    assert isinstance(await notes.ending(), HandedBack)
    assert one.start_us == 0


def test_only_what_is_due_later_than_its_batch_is_held_back() -> None:
    due = {name: attempt("double") for name in ("past", "now", "soon")}
    due["past"].due_us, due["now"].due_us, due["soon"].due_us = 1_000, 2_000, 12_000
    Batch("double", 1, list(due.values()), now_us=2_000).hold(100.0, ShardClocks())
    assert (due["past"].not_before, due["now"].not_before) == (0.0, 0.0)
    assert due["soon"].not_before == pytest.approx(100.01)
    Batch("double", 1, list(due.values())).hold(500.0, ShardClocks())
    assert due["soon"].not_before == pytest.approx(100.01), "no clock was told"


async def test_an_input_that_does_not_fit_fails_for_good(runner: Runner) -> None:
    notes = Notes()
    runner.launch(attempt("double", b'"text"'), notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert (ending.failure.type, ending.failure.kind.name) == ("InputError", "PERMANENT")


@pytest.mark.parametrize(
    ("type_", "failure"),
    [
        ("leaves", "SystemExit"),
        ("cancels-itself", "CancelledError"),
        ("cancels-its-task", "CancelledError"),
        ("is-cancelled-by-a-timer", "CancelledError"),
    ],
)
async def test_a_handler_cannot_take_the_worker_with_it(
    runner: Runner, type_: str, failure: str
) -> None:
    notes = Notes()
    runner.launch(attempt(type_), notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert ending.failure.type == failure


@pytest.mark.parametrize(
    ("type_", "ending"), [("cancels-its-task", Failed), ("cancels-and-returns", Succeeded)]
)
async def test_a_handler_that_cancels_its_task_harms_none_behind_it(
    runner: Runner, type_: str, ending: type[Ending]
) -> None:
    """They would have shared the task."""
    launched = []
    for name in ("double", type_, "double", "later", "double"):
        launched.append(Notes())
        runner.launch(attempt(name, b"1" if name == "double" else b""), launched[-1])
    ends = [type(await notes.ending()) for notes in launched]
    assert ends == [Succeeded, ending, Succeeded, Failed, Succeeded]
    async with asyncio.timeout(5):
        await runner.idle()


async def test_what_runs_when_the_worker_closes_is_not_reported(runner: Runner) -> None:
    notes = Notes()
    runner.launch(attempt("slow"), notes)
    await eventually(lambda: Started() in notes.told)
    await runner.close()
    assert not notes.is_over
    async with asyncio.timeout(5):
        await runner.idle()


async def test_a_wish_to_be_retried_later_is_passed_on(runner: Runner) -> None:
    notes = Notes()
    runner.launch(attempt("later"), notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert ending.retry_after == 3.0


@pytest.mark.parametrize(
    ("type_", "failure", "words"),
    [
        ("not-yet", "NotYet", "no delay from 0 s to 30 days: NotYet must call super().__init__"),
        ("busy", "Busy", "no room"),
        ("backwards", "Backwards", "no delay from 0 s to 30 days"),
    ],
)
async def test_a_wish_whose_class_never_said_the_wait_is_a_failure(
    runner: Runner, type_: str, failure: str, words: str
) -> None:
    """It was taken for a defect of the worker, and its job handed back for ever."""
    notes = Notes()
    runner.launch(attempt(type_), notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert (ending.failure.type, ending.failure.kind.name) == (failure, "ERROR")
    assert words in ending.failure.message
    assert ending.retry_after is None


async def test_a_deaf_handler_is_reported_all_the_same(runner: Runner) -> None:
    notes, one = Notes(), attempt("deaf")
    one.run_timeout = 0.05
    runner.launch(one, notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert ending.failure.type == "RunTimeout"
    async with asyncio.timeout(5):
        await runner.idle()


async def test_the_first_reason_to_stop_counts(runner: Runner) -> None:
    notes, one = Notes(), attempt("slow")
    runner.launch(one, notes)
    assert runner.stop(one, Stop.STALE)
    assert runner.stop(one, Stop.DRAIN)
    assert await notes.ending() is None
    assert not runner.stop(one, Stop.DRAIN)


async def test_an_attempt_stopped_before_its_launch_does_not_start(runner: Runner) -> None:
    notes, one = Notes(), attempt("double", b"1")
    one.stop = Stop.CANCELLED
    runner.launch(one, notes)
    assert isinstance(await notes.ending(), HandedBack)
    assert one.start_us == 0


async def test_nothing_starts_under_a_lease_in_doubt(runner: Runner) -> None:
    notes = Notes()
    notes.may_start = False
    runner.launch(attempt("double", b"1"), notes)
    assert await notes.ending() == HandedBack("lease lost")


async def test_an_input_whose_store_is_away_is_handed_back(runner: Runner) -> None:
    notes, one = Notes(), attempt("double")
    one.object = ObjectRef("default/inputs/x", 1)
    runner.launch(one, notes)
    ending = await notes.ending()
    assert isinstance(ending, HandedBack)
    assert ending.delay > 0


def test_readiness_needs_lease_orchestrator_and_intake() -> None:
    readiness = Readiness()
    dependencies = ReadinessDependencies(readiness)
    assert set(readiness.missing()) == {"lease", "orchestrator", "intake"}
    dependencies.lease(True)
    dependencies.orchestrator(True)
    dependencies.intake(True)
    assert readiness.ready
    dependencies.intake(False, "draining")
    assert readiness.missing() == {"intake": "draining"}


async def test_one_that_is_stopped_before_it_begins_is_handed_back_at_once(runner: Runner) -> None:
    notes, stopped = Notes(), attempt("slow")
    runner.launch(stopped, notes)
    assert runner.stop(stopped, Stop.OPERATOR)
    async with asyncio.timeout(0.05):  # less than a deaf one is waited for
        assert isinstance(await notes.ending(), HandedBack)
    assert stopped.start_us == 0


async def test_an_exception_that_has_no_words_is_a_failure_like_others(runner: Runner) -> None:
    notes = Notes()
    runner.launch(attempt("unspeakable"), notes)
    ending = await notes.ending()
    assert isinstance(ending, Failed)
    assert ending.failure.type == "Unspeakable"
