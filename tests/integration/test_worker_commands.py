"""The command executor with real programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from jobmesh import Command

from services.mesh.testing.waiting import eventually
from services.worker.adapters.command_executor import CommandExecutor, CommandSettings
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack
from services.worker.ports import Returned
from tests.integration.test_worker_executors import Follower, is_alive

Runs = Callable[..., Any]
LIMIT = 1 << 20
HUSH = {"JOBMESH_S3_SECRET_KEY": "hush", "JOBMESH_NATS_URL": "nats://u:p@h"}


def attempt_of(type_: str = "x", **fields: Any) -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 7, type_, "acme", 2, **fields)


def sh(script: str, *more: str, **fields: Any) -> Command:
    return Command("x", ("sh", "-c", script, "sh", *more), **fields)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Runs]:
    """Runs a command once; leaves no process and no file."""
    spool = tmp_path / "spool"
    spool.mkdir()
    made: list[CommandExecutor] = []

    async def run(
        command: Command,
        source: bytes | Path = b"",
        attempt: Attempt | None = None,
        follower: Follower | None = None,
    ) -> Returned | Failed | HandedBack:
        environ = dict(os.environ) | HUSH
        settings = CommandSettings(spool, kill_grace=0.5, max_output=LIMIT, environ=environ)
        executor = CommandExecutor({"x": command}, settings)
        made.append(executor)
        return await executor.run(attempt or attempt_of(), source, follower or Follower())

    yield run
    for executor in made:
        await executor.close()
    assert list(spool.iterdir()) == []


def content_of(result: object) -> bytes:
    assert isinstance(result, Returned), result
    assert isinstance(result.content, bytes)
    return result.content


def failure_of(result: object) -> Any:
    assert isinstance(result, Failed), result
    return result.failure


async def test_a_worker_without_a_place_for_files_hands_attempts_back(tmp_path: Path) -> None:
    settings = CommandSettings(tmp_path / "gone", environ=dict(os.environ))
    executor = CommandExecutor({"x": sh("true")}, settings)
    assert isinstance(await executor.run(attempt_of(), b"", Follower()), HandedBack)
    await executor.close()


# --- input and output


async def test_a_program_reads_stdin_and_prints_its_output(run: Runs) -> None:
    result = await run(Command("x", ("tr", "a-z", "A-Z"), content_type="text/plain"), b"abc")
    assert content_of(result) == b"ABC"
    assert result.content_type == "text/plain"


async def test_a_program_may_take_and_leave_files_instead(run: Runs) -> None:
    command = Command("x", ("cp", "{input}", "{output}"))
    assert content_of(await run(command, b"as it is")) == b"as it is"


async def test_a_large_input_is_passed_as_the_file_it_is_in(run: Runs, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"12345")
    assert content_of(await run(Command("x", ("wc", "-c")), file)).split() == [b"5"]
    assert content_of(await run(sh('cat "$1"', "{input}"), file)) == b"12345"
    assert content_of(await run(sh('cat "$JOBMESH_INPUT"'), file)) == b"12345"
    assert file.exists()


async def test_a_large_output_is_left_in_its_file_until_it_is_released(run: Runs) -> None:
    result = await run(sh("head -c 100000 /dev/zero"))
    assert isinstance(result, Returned)
    assert isinstance(result.content, Path)
    assert result.content.stat().st_size == 100_000
    assert result.release is not None
    await result.release()
    assert not result.content.exists()


async def test_a_program_that_says_nothing_returns_nothing(run: Runs) -> None:
    result = await run(Command("x", ("true",)), b"unread")
    assert (content_of(result), result.content_type) == (b"", "")
    assert content_of(await run(sh("true", "{output}"))) == b""


async def test_placeholders_are_no_shell(run: Runs) -> None:
    command = Command("x", ("echo", "$HOME", "{other}", "; false"))
    assert content_of(await run(command)) == b"$HOME {other} ; false\n"


async def test_a_program_knows_its_attempt_and_no_secret(run: Runs) -> None:
    attempt = attempt_of(max_attempts=5, content_type="text/plain", traceparent="00-1-2-01")
    command = Command("x", (sys.executable, "-c", ENVIRONMENT), environ={"EXTRA": "1"})
    seen = json.loads(content_of(await run(command, b"", attempt)))
    assert {name: text for name, text in seen.items() if name in EXPECTED} == EXPECTED
    assert seen["JOBMESH_JOB_ID"] == str(attempt.job_id)
    assert not set(seen) & set(HUSH)


ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
EXPECTED = {
    "JOBMESH_NAMESPACE": "acme",
    "JOBMESH_TYPE": "x",
    "JOBMESH_ATTEMPT": "2",
    "JOBMESH_MAX_ATTEMPTS": "5",
    "JOBMESH_DISPATCH_NO": "7",
    "JOBMESH_CONTENT_TYPE": "text/plain",
    "TRACEPARENT": "00-1-2-01",
    "EXTRA": "1",
}


async def test_a_program_runs_where_it_is_told_to(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "here.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here.sh").chmod(0o755)
    result = await run(Command("x", ("./here.sh",), directory=str(tmp_path)))
    assert content_of(result).decode().strip().endswith(tmp_path.name)


# --- failures


async def test_an_exit_code_is_a_failure_with_the_last_words(run: Runs) -> None:
    found = failure_of(await run(sh("echo lost; echo first >&2; echo 'no such cat' >&2; exit 3")))
    assert (found.type, found.exit_code) == ("CommandFailed", 3)
    assert found.message == "exit code 3: no such cat"
    assert found.traceback == "first\nno such cat"


async def test_a_signal_is_called_by_its_name(run: Runs) -> None:
    found = failure_of(await run(sh("kill -KILL $$")))
    assert (found.message, found.exit_code) == ("killed by SIGKILL", -9)


async def test_only_the_end_of_what_it_says_is_kept(run: Runs) -> None:
    found = failure_of(await run(sh("seq 1 20000 >&2; exit 1")))
    assert found.message == "exit code 1: 20000"
    assert len(found.traceback) <= 16 * 1024
    assert found.traceback.endswith("19999\n20000")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Command("x", ("no-such-program",)), "no-such-program"),
        (Command("x", ("/etc/passwd",)), "Permission denied"),
        (Command("x", ("true",), directory="/no/such/folder"), "/no/such/folder"),
        (Command("x", ("echo", "y" * 200_000)), "too long"),
    ],
)
async def test_a_program_that_cannot_be_started_says_so(
    run: Runs, command: Command, said: str
) -> None:
    found = failure_of(await run(command))
    assert found.type == "CommandNotStarted"
    assert said in found.message


@pytest.mark.parametrize("command", [sh("yes"), sh('yes > "$1"', "{output}")])
async def test_an_endless_output_ends_the_program(run: Runs, command: Command) -> None:
    follower = Follower()
    found = failure_of(await run(command, follower=follower))
    assert (found.type, str(LIMIT) in found.message) == ("OutputTooLarge", True)
    assert not psutil.pid_exists(follower.pid)


async def test_an_output_beyond_the_limit_fails_however_fast_it_came(run: Runs) -> None:
    found = failure_of(await run(sh(f"head -c {LIMIT + 1} /dev/zero")))
    assert found.type == "OutputTooLarge"


# --- the end


async def test_a_stopped_program_may_clean_up(run: Runs, tmp_path: Path) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    script = f"trap 'touch {ended}; exit' TERM; touch {started}; sleep 600 & wait"
    await _stopped(run(sh(script)), started)
    assert ended.exists()


async def test_a_deaf_program_is_killed_with_all_it_started(run: Runs, tmp_path: Path) -> None:
    started, follower = tmp_path / "started", Follower()
    script = f"trap '' TERM; sleep 600 & echo $! > {started}.new; mv {started}.new {started}; wait"
    await _stopped(run(sh(script), follower=follower), started)
    assert not psutil.pid_exists(follower.pid)
    await eventually(lambda: not is_alive(int(started.read_text())))


async def test_nothing_goes_on_after_a_program_has_ended(run: Runs, tmp_path: Path) -> None:
    result = await run(sh("sleep 600 & echo $!"))
    await eventually(lambda: not is_alive(int(content_of(result))))


async def _stopped(work: Any, started: Path) -> None:
    task = asyncio.create_task(work)
    await eventually(started.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WORKER = """
import asyncio, os, sys
from pathlib import Path
from uuid import uuid4
from jobmesh import Command
from services.worker.adapters.command_executor import CommandExecutor, CommandSettings
from services.worker.domain.attempt import Attempt

class Marker:
    def __init__(self, file): self.file = file
    def started(self, pid=0): Path(self.file).touch()

async def main(spool, started):
    script = "trap '' TERM; sleep 600 & wait"
    commands = {"x": Command("x", ("sh", "-c", script))}
    job_id = uuid4()
    attempt = Attempt(job_id.bytes, 1, "x", "default", 1)
    executor = CommandExecutor(commands, CommandSettings(Path(spool), environ=os.environ))
    await executor.run(attempt, b"", Marker(started))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_programs_and_what_they_started_die_with_the_worker(tmp_path: Path) -> None:
    started = tmp_path / "started"
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = (sys.executable, "-c", WORKER, str(tmp_path), str(started))
    worker = await asyncio.create_subprocess_exec(*arguments, env=environ)
    await eventually(started.exists)
    tree = psutil.Process(worker.pid)
    # The program, what it started, the guard.
    await eventually(lambda: len(tree.children(recursive=True)) == 3)
    family = tree.children(recursive=True)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await eventually(lambda: not any(is_alive(one.pid) for one in family))
