"""What runs in the executor process."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import resource
import signal
import socket
import sys
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from jobmesh.context import Context, Hooks
from jobmesh.errors import AttemptCancelled, HandlerError, PermanentFailure, RetryAfter, Snooze
from jobmesh.handlers import HandlerSpec, load_handlers
from jobmesh.invocation import Output, invoke, wait_of, words_of

from services.worker.executor import frames
from services.worker.executor.frames import Header
from services.worker.executor.line import HandlerLine, Link, Printed

_PR_SET_PDEATHSIG = 1
#: The kernel's victim of choice when memory runs out: the executor, not its worker.
_OOM_SCORE = "500"
_MAX_TRACEBACK = 65_536
#: Exit codes that say why an executor ended by itself.
EXIT_STOPPED = 128 + signal.SIGTERM
EXIT_UNUSABLE = 3


class Child:
    """Answers calls until the worker closes the connection."""

    def __init__(self, link: Link, handlers: dict[str, HandlerSpec], scratch: Path) -> None:
        self._link = link
        self._handlers = handlers
        self._names = count(1)
        self._scratch = scratch / "s0"
        self._running = False
        self._stopped = False

    def serve(self, streams: tuple[Printed, ...]) -> None:
        signal.signal(signal.SIGTERM, self._terminated)
        self._link.send({"kind": frames.READY})
        while (call := self._link.receive()) is not None:
            line = HandlerLine(self._link)
            answer, body = self._answer(*call, line)
            for stream in streams:
                stream.finish()
            line.finish()
            self._link.send(answer, body)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if not self._running:
            os._exit(EXIT_STOPPED)
        if not self._stopped:
            self._stopped = True
            raise AttemptCancelled("stopped by the worker")

    def _answer(self, call: Header, body: bytes, line: HandlerLine) -> tuple[Header, bytes]:
        checkpoint, body = _checkpoint(call, body)
        context = self._context(call, checkpoint, line)
        try:
            self._running = True
            output = self._invoke(call, body, context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if self._stopped:
                os._exit(EXIT_STOPPED)
            context.close()
            return raised(error), b""
        finally:
            self._running = False
        if self._stopped:
            os._exit(EXIT_STOPPED)
        return self._returned(output, context)

    def _invoke(self, call: Header, body: bytes, context: Context) -> Output:
        spec = self._handlers.get(call["type"])
        if spec is None:
            raise HandlerError(f"no handler of type {call['type']!r}")
        source = Path(call["file"]) if "file" in call else body
        return invoke(spec, source, call["content_type"], context)

    def _context(
        self, call: Header, checkpoint: tuple[bytes, str] | None, line: HandlerLine
    ) -> Context:
        self._scratch.mkdir(exist_ok=True)
        return Context(
            job_id=call["job_id"],
            type=call["type"],
            namespace=call["namespace"],
            attempt=call["attempt"],
            max_attempts=call["max_attempts"],
            dispatch_no=call["dispatch_no"],
            traceparent=call["traceparent"],
            checkpoint=checkpoint,
            hooks=Hooks(
                line.progress,
                line.heartbeat,
                line.extend,
                line.checkpoint,
                lambda: self._stopped,
            ),
            scratch_root=self._scratch,
        )

    def _returned(self, output: Output, context: Context) -> tuple[Header, bytes]:
        header: Header = {"kind": frames.RETURNED, "content_type": output.content_type}
        if isinstance(output.content, Path):
            # The worker uploads the file, and removes our scratch folder afterwards. The next
            # attempt, which may begin before that, gets another one.
            scratch, self._scratch = self._scratch, self._scratch.with_name(f"s{next(self._names)}")
            return header | {"file": str(output.content.resolve()), "scratch": str(scratch)}, b""
        context.close()
        return header, output.content


def _checkpoint(call: Header, body: bytes) -> tuple[tuple[bytes, str] | None, bytes]:
    """What an earlier attempt stored stands before the input."""
    if "checkpoint" not in call:
        return None, body
    size, content_type = call["checkpoint"]
    return (body[:size], content_type), body[size:]


def raised(error: BaseException) -> Header:
    """An exception of a handler, in words."""
    wait = wait_of(error) if isinstance(error, RetryAfter | Snooze) else None
    if isinstance(error, Snooze) and wait is not None:
        return {"kind": frames.SNOOZED, "delay": wait}
    header: Header = {
        "kind": frames.RAISED,
        "type": type(error).__name__,
        "message": words_of(error),
        "traceback": "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:],
        "permanent": isinstance(error, PermanentFailure | HandlerError),
    }
    if wait is not None:
        header["retry_after"] = wait
    return header


def main(argv: list[str]) -> int:
    """`executor APP FD WORKER_PID SCRATCH MEMORY_BYTES`."""
    app, descriptor, worker_pid, scratch, memory_bytes = argv
    die_with(int(worker_pid))
    _limit_memory(int(memory_bytes))
    connection = socket.socket(fileno=int(descriptor))
    # What a handler starts must not hold our end open after we are gone.
    connection.set_inheritable(False)
    link = Link(connection)
    originals = sys.stdout, sys.stderr
    streams = (_stand_in(link, "stdout"), _stand_in(link, "stderr"))
    sys.stdout, sys.stderr = streams
    logging.basicConfig(stream=streams[1], level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        handlers = load_handlers(app)
    except BaseException as error:
        originals[1].write(f"executor cannot load app {app!r}: {error}\n")
        return EXIT_UNUSABLE
    try:
        Child(link, handlers, Path(scratch)).serve(streams)
    finally:
        sys.stdout, sys.stderr = originals
        # The worker waits for this end, and a thread of a handler may keep us from leaving.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    return 0


def _stand_in(link: Link, name: str) -> Printed:
    original = getattr(sys, name)
    assert isinstance(original, io.TextIOWrapper)
    return Printed(link, name, original)


def die_with(worker_pid: int) -> None:
    """Have the kernel kill this process when the worker dies; leave if it is dead already."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if os.getppid() != worker_pid:
        os._exit(EXIT_STOPPED)


def _limit_memory(size: int) -> None:
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
