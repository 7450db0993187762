"""One executor process, seen from the worker: start it, call it, kill it with all it started."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from services.mesh.jobs.model import NO_PAYLOAD, Payload
from services.mesh.jobs.retry import FailureKind
from services.mesh.runtime import StartupError, in_own_thread
from services.worker.adapters.output_pipe import MAX_LINE, OutputPipe
from services.worker.adapters.spawning import Child, spawn
from services.worker.app.run import CheckpointRefused
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, Snoozed, crashed, failure
from services.worker.executor import frames
from services.worker.executor.frames import Header
from services.worker.ports import Observer, Returned

log = logging.getLogger(__name__)

#: How long the output of a process that has ended may still take to arrive.
LAST_WORDS_SECONDS = 0.1
#: How long a process may take to end after it closed its connection.
EXIT_SECONDS = 2.0
READY_SECONDS = 60.0
NOT_BEGUN = HandedBack("executor gone")
#: Of the mesh's own variables an executor sees only those that say where it is, never a secret.
KEPT = frozenset({"JOBMESH_ADDRESS", "JOBMESH_NAMESPACE", "JOBMESH_HOME", "JOBMESH_LOCAL_HOME"})


class ExecutorStartError(StartupError):
    """No executor could be started; the attempt is not to blame."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How executors are started and ended."""

    app: str
    spool: Path
    kill_grace: float = 2.0
    memory_bytes: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)

    def command(self, descriptor: int, scratch: Path) -> list[str]:
        program = [sys.executable, "-u", "-m", "services.worker.executor"]
        arguments = (self.app, descriptor, os.getpid(), scratch, self.memory_bytes)
        return [*program, *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        """The worker's environment without the mesh's settings, and with its import path."""
        kept = {k: v for k, v in self.environ.items() if not k.startswith("JOBMESH_") or k in KEPT}
        return kept | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


class ExecutorProcess:
    """A warm process that waits for its next call."""

    def __init__(
        self,
        process: Child,
        scratch: Path,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        output: OutputPipe,
        kill_grace: float,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._scratch = scratch
        self._reader, self._writer = streams
        self._kill_grace = kill_grace
        self._last: tuple[Attempt, Observer] | None = None
        #: The present call was answered with anything at all.
        self._heard = False
        #: Attempts whose output is a file here that was not stored yet.
        self._outputs: set[Attempt] = set()
        self._output = output
        output.hear(self._printed)
        self.ended = asyncio.create_task(self._wait(), name=f"executor-{self.pid}")

    @classmethod
    async def start(cls, settings: ExecutorSettings) -> Self:
        """Start a process and wait until it has imported the app."""
        scratch = Path(mkdtemp(prefix="executor-", dir=settings.spool))
        ours, theirs = socket.socketpair()
        output, written = await OutputPipe.open()
        try:
            with theirs:
                process = spawn(
                    settings.command(theirs.fileno(), scratch),
                    environ=settings.environment(),
                    stdin=DEVNULL,
                    stdout=written,
                    stderr=written,
                    descriptors=(theirs.fileno(),),
                )
            streams = await asyncio.open_unix_connection(sock=ours)
        except OSError as error:
            ours.close()
            output.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise ExecutorStartError(str(error)) from error
        finally:
            os.close(written)
        made = cls(process, scratch, streams, output, settings.kill_grace)
        await made._become_ready()
        return made

    async def _become_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await _read(self._reader)
        except (OSError, EOFError, TimeoutError) as error:
            code = await self.kill(grace=0)
            raise ExecutorStartError(f"it ended with {code} before it was ready") from error
        except asyncio.CancelledError:
            await self.kill(grace=0)
            raise

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    # --- a call

    async def call(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Failed | HandedBack | Snoozed:
        """Run one attempt. Cancelled or crashed, the process is of no further use."""
        self._last, self._heard = (attempt, observer), False
        try:
            self._writer.write(frames.pack(*_call(attempt, source)))
            await self._writer.drain()
            result = await self._result(attempt, observer)
            await self._output.catch_up()
            return result
        except (OSError, EOFError, ValueError) as error:
            # The end of the stream, or half a frame: the process has ended or is about to.
            await asyncio.wait({self.ended}, timeout=EXIT_SECONDS)
            code = await self.kill(grace=0)
            # A stream that did not end but broke: the call was not read, and no handler began.
            unread = isinstance(error, ConnectionError) and not self._heard
            return NOT_BEGUN if unread else crashed(code)
        except asyncio.CancelledError:
            self._outputs.discard(attempt)
            raise

    async def _result(self, attempt: Attempt, observer: Observer) -> Returned | Failed | Snoozed:
        while True:
            header, body = await _read(self._reader)
            self._heard = True
            kind = header["kind"]
            if kind == frames.RETURNED:
                return self._returned(attempt, header, body)
            if kind == frames.RAISED:
                return _failed(header)
            if kind == frames.SNOOZED:
                return Snoozed(header["delay"])
            if kind == frames.CHECKPOINT:
                await self._store(header, body, observer)
            else:
                _pass_on(kind, header, attempt, observer)

    async def _store(self, header: Header, body: bytes, observer: Observer) -> None:
        content_type = header["content_type"]
        state = Payload.inline(body, content_type) if content_type else NO_PAYLOAD
        try:
            stored = await observer.checkpointed(state)
        except CheckpointRefused:
            stored = False
        self._writer.write(frames.pack({"kind": frames.STORED, "stored": stored}))

    def _returned(self, attempt: Attempt, header: Header, body: bytes) -> Returned:
        if "file" in header:
            self._outputs.add(attempt)
            release = partial(self._release, attempt, header["scratch"])
            return Returned(Path(header["file"]), header["content_type"], release)
        return Returned(body, header["content_type"])

    async def _release(self, attempt: Attempt, scratch: str) -> None:
        """The output is stored, or given up: by then the process may have ended with another."""
        self._outputs.discard(attempt)
        await in_own_thread(shutil.rmtree, scratch, ignore_errors=True)
        if not self.alive:
            await self._clear()

    async def _clear(self) -> None:
        """Remove its files, unless one is still to be stored: whoever has that does it then."""
        if not self._outputs:
            await in_own_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    # --- its end

    async def kill(self, grace: float | None = None) -> int:
        """End the process and everything in its group; returns the exit code.

        SIGTERM first, so that a handler can clean up, and SIGKILL after the grace. The group gets
        SIGKILL in any case: what ignored the first signal must not go on for a job that others run.
        """
        grace = self._kill_grace if grace is None else grace
        if grace > 0 and self.alive:
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=grace)
        self._signal(signal.SIGKILL)
        return await asyncio.shield(self.ended)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _wait(self) -> int:
        code = await self._process.wait()
        # Nothing of the group may go on without its executor, however that ended.
        self._signal(signal.SIGKILL)
        await asyncio.wait({self._output.closed}, timeout=LAST_WORDS_SECONDS)
        self._output.close()
        # Ends a call that reads from a connection which something it started holds open.
        self._writer.transport.abort()
        await self._clear()
        return code

    def _printed(self, line: bytes) -> None:
        """What reaches the file descriptors themselves: programs a handler started, C code."""
        text = line.decode(errors="replace").rstrip("\r")
        attempt, observer = self._last or (None, None)
        if observer is not None:
            observer.logged(text)
        _log_line(attempt, "pipe", text)


async def _read(stream: asyncio.StreamReader) -> tuple[Header, bytes]:
    """The next frame; IncompleteReadError (an EOFError) if the other side ended."""
    lengths = await stream.readexactly(frames.LENGTHS.size)
    head_size, body_size = frames.LENGTHS.unpack(lengths)
    head = await stream.readexactly(head_size)
    body = await stream.readexactly(body_size) if body_size else b""
    return json.loads(head), body


def _call(attempt: Attempt, source: bytes | Path) -> tuple[Header, bytes]:
    header: Header = {
        "kind": frames.CALL,
        "job_id": str(attempt.job_id),
        "type": attempt.type,
        "namespace": attempt.namespace,
        "attempt": attempt.number,
        "max_attempts": attempt.max_attempts,
        "dispatch_no": attempt.fence,
        "content_type": attempt.content_type,
        "traceparent": attempt.traceparent,
    }
    stored = attempt.checkpoint
    before = b""
    if stored is not None:
        before = stored.data or b""
        header["checkpoint"] = len(before), stored.content_type
    if isinstance(source, Path):
        return header | {"file": str(source)}, before
    return header, before + source if before else source


def _pass_on(kind: str, header: Header, attempt: Attempt, observer: Observer) -> None:
    if kind == frames.PRINTED:
        observer.logged(header["line"])
        _log_line(attempt, header["stream"], header["line"])
    elif kind == frames.PROGRESS:
        observer.progressed(header["done"], header["total"], header["message"])
    elif kind == frames.HEARTBEAT:
        observer.alive()
    elif kind == frames.EXTEND:
        observer.extended(header["seconds"])


def _failed(header: Header) -> Failed:
    kind = FailureKind.PERMANENT if header["permanent"] else FailureKind.ERROR
    found = failure(header["type"], header["message"], header["traceback"], kind=kind)
    return Failed(found, header.get("retry_after"))


def _log_line(attempt: Attempt | None, stream: str, line: str) -> None:
    extra: dict[str, object] = {"action": "handler_output", "stream": stream}
    if attempt is not None:
        extra |= {"job_id": str(attempt.job_id), "type": attempt.type}
    log.info("%s", line[:MAX_LINE], extra=extra)
