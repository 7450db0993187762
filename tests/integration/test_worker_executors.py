"""The executor pool with real processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from jobmesh.codec import BYTES_TYPE

from services.mesh.jobs.model import Payload
from services.mesh.jobs.retry import FailureKind
from services.mesh.testing.waiting import eventually
from services.worker.adapters.executor_process import ExecutorSettings
from services.worker.adapters.output_pipe import OutputPipe
from services.worker.adapters.process_executor import ProcessExecutor
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, Snoozed
from services.worker.ports import Returned

APP = "tests.integration.worker_handlers"


def attempt_of(type_: str, number: int = 1) -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 1, type_, "default", number)


class Follower:
    """Remembers what an executor says about an attempt."""

    may_start = True

    def __init__(self) -> None:
        self.pid = 0
        self.said: list[tuple[float, float, str]] = []
        self.lines: list[str] = []
        self.signs = 0
        self.extensions: list[float] = []
        self.stored: list[Payload] = []
        self.accepts = True

    def started(self, pid: int = 0) -> None:
        self.pid = pid

    def progressed(self, done: float, total: float, message: str) -> None:
        self.said.append((done, total, message))

    def alive(self) -> None:
        self.signs += 1

    def extended(self, seconds: float) -> None:
        self.extensions.append(seconds)

    def logged(self, text: str, time_us: int = 0) -> None:
        self.lines.append(text)

    async def checkpointed(self, state: Payload) -> bool:
        self.stored.append(state)
        return self.accepts


def settings(tmp_path: Path, **changes: Any) -> ExecutorSettings:
    return ExecutorSettings(app=APP, spool=tmp_path, environ=dict(os.environ), **changes)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ProcessExecutor]:
    made = ProcessExecutor(settings(tmp_path, kill_grace=0.5))
    yield made
    await made.close()


async def run(pool: ProcessExecutor, type_: str, value: object = None) -> Returned | Failed:
    source = b"" if value is None else json.dumps(value).encode()
    result = await pool.run(attempt_of(type_), source, Follower())
    assert not isinstance(result, HandedBack | Snoozed)
    return result


def value_of(result: object) -> Any:
    assert isinstance(result, Returned), result
    assert isinstance(result.content, bytes)
    return json.loads(result.content)


async def test_a_plain_function_runs_in_another_process(pool: ProcessExecutor) -> None:
    assert value_of(await run(pool, "upper", "abc")) == "ABC"
    assert value_of(await run(pool, "whoami")) != os.getpid()


async def test_a_warm_process_is_used_again(pool: ProcessExecutor) -> None:
    await pool.warm()
    first = value_of(await run(pool, "whoami"))
    assert value_of(await run(pool, "whoami")) == first


async def test_nothing_begins_if_the_lease_went_while_a_process_was_started(
    pool: ProcessExecutor,
) -> None:
    follower = Follower()
    follower.may_start = False
    result = await pool.run(attempt_of("whoami"), b"", follower)
    assert result == HandedBack("lease lost")
    assert follower.pid == 0
    pid = value_of(await run(pool, "whoami"))
    assert value_of(await run(pool, "whoami")) == pid  # it was kept for the next


async def test_attempts_at_once_run_in_processes_of_their_own(pool: ProcessExecutor) -> None:
    results = await asyncio.gather(*(run(pool, "whoami") for _ in range(3)))
    assert len({value_of(result) for result in results}) == 3


async def test_a_handler_that_exits_fails_though_a_thread_of_it_goes_on(
    pool: ProcessExecutor,
) -> None:
    async with asyncio.timeout(30):
        result = await run(pool, "leaves-a-thread")
    assert isinstance(result, Failed)
    assert result.failure.type == "ExecutorCrashed"


async def test_a_process_that_died_idle_costs_the_next_attempt_nothing(
    pool: ProcessExecutor,
) -> None:
    pid = value_of(await run(pool, "whoami"))
    os.kill(pid, signal.SIGKILL)  # and the loop has not had a turn to see it
    result = await pool.run(attempt_of("whoami"), b"", Follower())
    assert isinstance(result, HandedBack)
    assert value_of(await run(pool, "whoami")) != pid


async def test_a_process_that_dies_before_it_reads_its_call_costs_nothing(
    pool: ProcessExecutor,
) -> None:
    pid = value_of(await run(pool, "whoami"))
    os.kill(pid, signal.SIGSTOP)
    calling = asyncio.create_task(pool.run(attempt_of("whoami"), b"", follower := Follower()))
    await eventually(lambda: follower.pid == pid)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(await calling, HandedBack)


async def test_an_output_file_outlives_its_executor_until_it_is_stored(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    made = await run(pool, "makes-file", 10)
    assert isinstance(made, Returned)
    assert isinstance(made.content, Path)
    assert made.release is not None
    assert isinstance(await run(pool, "exits", 7), Failed)
    assert made.content.read_bytes() == b"x" * 10
    await made.release()
    assert os.listdir(tmp_path) == []


async def test_a_killed_executor_leaves_no_files_of_the_attempt_it_was_killed_for(
    pool: ProcessExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lags, waiting = asyncio.Event(), asyncio.Event()

    async def lag(pipe: OutputPipe) -> None:
        lags.set()
        await waiting.wait()

    monkeypatch.setattr(OutputPipe, "catch_up", lag)
    made = asyncio.create_task(run(pool, "makes-file", 10))
    await lags.wait()  # it has returned its file, and nobody has got it yet
    made.cancel()
    await asyncio.wait({made})
    assert os.listdir(tmp_path) == []


async def test_an_exception_becomes_a_failure_with_its_traceback(pool: ProcessExecutor) -> None:
    result = await run(pool, "raises")
    assert isinstance(result, Failed)
    assert (result.failure.type, result.failure.message) == ("ValueError", "attempt 1 went wrong")
    assert "in raises" in result.failure.traceback
    assert result.failure.kind is FailureKind.ERROR


async def test_a_permanent_failure_stays_permanent(pool: ProcessExecutor) -> None:
    result = await run(pool, "gives-up")
    assert isinstance(result, Failed)
    assert result.failure.kind is FailureKind.PERMANENT


async def test_a_wish_to_be_retried_later_is_passed_on(pool: ProcessExecutor) -> None:
    result = await run(pool, "comes-back")
    assert isinstance(result, Failed)
    assert result.retry_after == 7.5


@pytest.mark.parametrize(
    ("type_", "value", "code"),
    [("exits", 7, 7), ("exits", 0, 0), ("leaves", None, 4), ("segfaults", None, -11)],
)
async def test_a_process_that_ends_fails_only_its_attempt(
    pool: ProcessExecutor, type_: str, value: object, code: int
) -> None:
    result = await run(pool, type_, value)
    assert isinstance(result, Failed)
    assert (result.failure.type, result.failure.exit_code) == ("ExecutorCrashed", code)
    assert value_of(await run(pool, "upper", "abc")) == "ABC"


async def test_a_stopped_handler_may_clean_up(pool: ProcessExecutor, tmp_path: Path) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    task = asyncio.create_task(run(pool, "sleeps", {"started": str(started), "ended": str(ended)}))
    await eventually(started.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.exists()


async def test_a_deaf_handler_is_killed_with_all_it_started(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    attempt = attempt_of("deaf")
    source = json.dumps({"started": str(started)}).encode()
    follower = Follower()
    task = asyncio.create_task(pool.run(attempt, source, follower))
    await eventually(lambda: started.exists() and started.read_text() != "")
    grandchild = int(started.read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(follower.pid)
    await eventually(lambda: not is_alive(grandchild))


async def test_secrets_of_the_mesh_do_not_reach_a_handler(tmp_path: Path) -> None:
    environ = dict(os.environ) | {
        "JOBMESH_S3_SECRET_KEY": "hush",
        "JOBMESH_NATS_URL": "nats://u:p@h",
    }
    pool = ProcessExecutor(ExecutorSettings(app=APP, spool=tmp_path, environ=environ))
    seen = value_of(await run(pool, "environment"))
    await pool.close()
    assert not [name for name in seen if name.startswith("JOBMESH_") and "SECRET" in name]
    assert "JOBMESH_NATS_URL" not in seen


async def test_what_a_handler_prints_is_logged_with_its_job(
    pool: ProcessExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = attempt_of("prints")
    with caplog.at_level(logging.INFO):
        await pool.run(attempt, b"", Follower())
        await eventually(lambda: "from a program" in caplog.messages)
    lines = {r.getMessage(): getattr(r, "job_id", "") for r in caplog.records}
    for line in ("to stdout", "to stderr", "INFO to the log", "from a program"):
        assert lines[line] == str(attempt.job_id)


async def test_progress_reaches_the_worker(pool: ProcessExecutor) -> None:
    follower = Follower()
    await pool.run(attempt_of("progresses"), b"", follower)
    assert follower.said == [(1, 4, "first"), (4, 4, "last")]


async def test_a_returned_file_lives_until_it_is_released(pool: ProcessExecutor) -> None:
    result = await run(pool, "makes-file", 10)
    assert isinstance(result, Returned)
    assert isinstance(result.content, Path)
    assert isinstance(await run(pool, "makes-file", 20), Returned)
    assert result.content.stat().st_size == 10
    assert result.release is not None
    await result.release()
    assert not result.content.exists()


async def test_an_input_file_is_passed_by_name(pool: ProcessExecutor, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"12345")
    result = await pool.run(attempt_of("reads-file"), file, Follower())
    assert isinstance(result, Returned | Failed)
    assert value_of(result) == 5


async def test_an_app_that_cannot_be_loaded_spends_no_attempt(tmp_path: Path) -> None:
    pool = ProcessExecutor(ExecutorSettings(app="no_such_module", spool=tmp_path))
    result = await pool.run(attempt_of("upper"), b"", Follower())
    await pool.close()
    assert isinstance(result, HandedBack)


async def test_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    pool = ProcessExecutor(settings(spool))
    pid = value_of(await run(pool, "whoami"))
    await pool.close()
    assert not psutil.pid_exists(pid)
    assert list(spool.iterdir()) == []


# --- the worker dies

WORKER = """
import asyncio, json, os, sys
from pathlib import Path
from uuid import uuid4
from services.worker.adapters.executor_process import ExecutorSettings
from services.worker.adapters.process_executor import ProcessExecutor
from services.worker.domain.attempt import Attempt

class Nobody:
    may_start = True
    def started(self, pid=0): pass

async def main(spool, started):
    app = "tests.integration.worker_handlers"
    pool = ProcessExecutor(ExecutorSettings(app, Path(spool), environ=os.environ))
    job_id = uuid4()
    attempt = Attempt(job_id.bytes, 1, "deaf", "default", 1)
    await pool.run(attempt, json.dumps({"started": started}).encode(), Nobody())

asyncio.run(main(*sys.argv[1:]))
"""


async def test_executors_and_what_they_started_die_with_the_worker(tmp_path: Path) -> None:
    started = tmp_path / "started"
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = (sys.executable, "-c", WORKER, str(tmp_path), str(started))
    worker = await asyncio.create_subprocess_exec(*arguments, env=environ)
    await eventually(lambda: started.exists() and started.read_text() != "")
    family = psutil.Process(worker.pid).children(recursive=True)
    assert len(family) == 3  # the executor, what it started, the guard
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await eventually(lambda: not any(is_alive(one.pid) for one in family))


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- what a handler says


async def test_a_handler_says_how_far_it_is_and_stores_where_it_stands(
    pool: ProcessExecutor,
) -> None:
    attempt, follower = attempt_of("talks"), Follower()
    attempt.checkpoint = Payload.inline(b'{"step": 1}', "application/json")
    assert value_of(await pool.run(attempt, b"", follower)) == {"step": 1}
    assert follower.said[0] == (1, 5000, "working")
    assert follower.said[-1] == (5000, 5000, "working")
    assert len(follower.said) < 1000
    assert follower.extensions == [30]
    assert follower.lines == ["INFO a line of the log"]
    stored = [(state.data, state.content_type) for state in follower.stored]
    assert stored == [(b'{"step":2}', "application/json"), (b"raw", BYTES_TYPE), (None, "")]


async def test_a_refused_checkpoint_ends_the_handler(pool: ProcessExecutor) -> None:
    follower = Follower()
    follower.accepts = False
    result = await pool.run(attempt_of("talks"), b"", follower)
    assert isinstance(result, Failed)
    assert result.failure.type == "AttemptCancelled"
    assert len(follower.stored) == 1


async def test_a_returned_snooze_is_no_failure(pool: ProcessExecutor) -> None:
    assert await pool.run(attempt_of("snoozes"), b"", Follower()) == Snoozed(12.5)


@pytest.mark.parametrize(
    ("type_", "failure"), [("not-yet", "NotYet"), ("unspeakable", "Unspeakable")]
)
async def test_what_goes_wrong_in_an_exceptions_own_class_is_its_failure(
    pool: ProcessExecutor, type_: str, failure: str
) -> None:
    """It ended the executor, and its job said no more than that."""
    before = value_of(await run(pool, "whoami"))
    result = await run(pool, type_)
    assert isinstance(result, Failed)
    assert result.failure.type == failure
    assert value_of(await run(pool, "whoami")) == before, "the process lives on"


async def test_a_handlers_mistakes_are_its_own(pool: ProcessExecutor) -> None:
    follower = Follower()
    raised = value_of(await pool.run(attempt_of("errs"), b"", follower))
    assert len(raised) == 14
    assert (follower.said, follower.stored, follower.extensions) == ([], [], [])


async def test_all_that_is_printed_belongs_to_the_attempt(pool: ProcessExecutor) -> None:
    follower = Follower()
    await pool.run(attempt_of("prints"), b"", follower)
    await eventually(lambda: len(follower.lines) == 4)
    said = {"to stdout", "to stderr", "INFO to the log", "from a program"}
    assert set(follower.lines) == said
