"""Runs programs: input on stdin or in a file, output by stdout or in a file, the exit code decides.

One process per attempt, in a process group of its own, with a scratch folder that vanishes with
it. What it says on stderr is its log, and the end of that the text of its failure. The guard (see
`services.worker.executor.guard`) kills what is left when the worker dies.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jobmesh.commands import Command

from services.mesh.runtime import in_own_thread
from services.worker.adapters.command_process import CommandProcess, Files
from services.worker.adapters.executor_process import KEPT
from services.worker.adapters.process_executor import Guard
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, failure
from services.worker.ports import Executor, Observer, Returned

log = logging.getLogger(__name__)

#: Outputs up to this size are passed on as bytes; whether they travel inline is the courier's say.
SMALL_BYTES = 64 * 1024
RETURN_SECONDS = 1.0
#: Not the command's fault: the machine has no room for another process or file now.
_PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


class NoFilesError(Exception):
    """The spool folder cannot be written to; the attempt is not to blame."""


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """How programs are run and ended."""

    spool: Path
    kill_grace: float = 2.0
    max_output: int = 1 << 30
    environ: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The worker's environment without the mesh's settings, which hold its secrets."""
        return {k: v for k, v in self.environ.items() if not k.startswith("JOBMESH_") or k in KEPT}


class CommandExecutor(Executor):
    """Runs the commands of some types. How many at once is the callers' business."""

    def __init__(self, commands: Mapping[str, Command], settings: CommandSettings) -> None:
        self._commands = commands
        self._settings = settings
        self._environ = settings.environment()
        self._guard = Guard(self._environ)
        self._running: set[CommandProcess] = set()

    def wants_file(self, type_: str) -> bool:
        return True

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Failed | HandedBack:
        scratch = self._settings.spool / f"command-{attempt.job_id}-{attempt.fence}"
        result: Returned | Failed | HandedBack | None = None
        try:
            result = await self._run(attempt, await _files(scratch, source), observer)
        except NoFilesError as error:
            log.error("no place for files: %s", error, extra={"action": "spool_failed"})
            result = HandedBack("no place for files", RETURN_SECONDS)
        except OSError as error:
            result = _not_started(attempt, error)
        finally:
            if not isinstance(result, Returned) or result.release is None:
                await asyncio.shield(in_own_thread(shutil.rmtree, scratch, ignore_errors=True))
        return result

    async def close(self) -> None:
        """Kill what still runs."""
        await asyncio.gather(*(process.kill(0) for process in tuple(self._running)))
        self._guard.close()

    async def _run(self, attempt: Attempt, files: Files, observer: Observer) -> Returned | Failed:
        command = self._commands[attempt.type]
        environ = self._environ | dict(command.environ) | _about(attempt, files)
        say = partial(_say, attempt, observer)
        process = CommandProcess.start(command, files, environ, say)
        self._entered(process)
        observer.started(process.pid)
        try:
            code = await process.exit_code(self._settings.max_output)
        except asyncio.CancelledError:
            await asyncio.shield(process.kill(self._settings.kill_grace))
            raise
        if code is None or process.output_bytes > self._settings.max_output:
            return _too_large(self._settings.max_output)
        if code != 0:
            return _failed(code, process)
        return await in_own_thread(_returned, command, files)

    def _entered(self, process: CommandProcess) -> None:
        self._running.add(process)
        self._guard.add(process.pid)
        process.ended.add_done_callback(lambda _: self._left(process))

    def _left(self, process: CommandProcess) -> None:
        self._running.discard(process)
        self._guard.remove(process.pid)


async def _files(scratch: Path, source: bytes | Path) -> Files:
    try:
        os.mkdir(scratch, 0o700)
        return Files(scratch, await in_own_thread(_input_file, scratch, source))
    except OSError as error:
        raise NoFilesError(str(error)) from error


def _input_file(scratch: Path, source: bytes | Path) -> Path:
    if isinstance(source, Path):
        return source
    given = scratch / "input"
    given.write_bytes(source)
    return given


def _about(attempt: Attempt, files: Files) -> dict[str, str]:
    """What a program is told about its attempt."""
    said = {
        "JOBMESH_JOB_ID": str(attempt.job_id),
        "JOBMESH_NAMESPACE": attempt.namespace,
        "JOBMESH_TYPE": attempt.type,
        "JOBMESH_ATTEMPT": str(attempt.number),
        "JOBMESH_MAX_ATTEMPTS": str(attempt.max_attempts),
        "JOBMESH_DISPATCH_NO": str(attempt.fence),
        "JOBMESH_CONTENT_TYPE": attempt.content_type,
        "JOBMESH_INPUT": str(files.input),
        "JOBMESH_SCRATCH": str(files.scratch),
        "TRACEPARENT": attempt.traceparent,
    }
    # A NUL has no place in an environment; nothing of the mesh's own has one, but texts travel.
    return {name: text.replace("\0", "") for name, text in said.items() if text}


def _returned(command: Command, files: Files) -> Returned:
    if not files.output.is_file():
        return Returned(b"", "")
    size = files.output.stat().st_size
    if size == 0:
        return Returned(b"", "")
    if size <= SMALL_BYTES:
        return Returned(files.output.read_bytes(), command.content_type)
    release = partial(in_own_thread, shutil.rmtree, files.scratch, True)
    return Returned(files.output, command.content_type, release)


def _failed(code: int, process: CommandProcess) -> Failed:
    how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
    last = process.tail.last
    text = f"{how}: {last}" if last else how
    return Failed(failure("CommandFailed", text, process.tail.text, exit_code=code))


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _too_large(limit: int) -> Failed:
    return Failed(failure("OutputTooLarge", f"the program's output exceeds {limit} bytes"))


def _not_started(attempt: Attempt, error: OSError) -> Failed | HandedBack:
    extra = {"action": "command_failed", "job_id": str(attempt.job_id), "type": attempt.type}
    log.error("cannot run a command: %s", error, extra=extra)
    if error.errno in _PASSING:
        return HandedBack("no room for a process", RETURN_SECONDS)
    return Failed(failure("CommandNotStarted", str(error)))


def _say(attempt: Attempt, observer: Observer, line: str) -> None:
    observer.logged(line)
    extra = {"action": "handler_output", "job_id": str(attempt.job_id), "type": attempt.type}
    log.info("%s", line, extra=extra)
