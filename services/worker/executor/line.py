"""From a handler in an executor process to its worker: what it says, prints and stores.

A handler may say things from any of its threads, and as often as it likes. Progress and heartbeats
are thinned here to a few per second, which is what keeps them cheap; the newest progress is never
lost.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress

from jobmesh.errors import AttemptCancelled

from services.worker.executor import frames
from services.worker.executor.frames import Header

#: Between two signs of life that reach the worker. Progress timeouts shorter than a few of these
#: make no sense.
INTERVAL_SECONDS = 0.05
#: A line that is longer comes in pieces. Some never end: a progress bar writes over itself.
MAX_LINE = 8192


class Link:
    """The connection to the worker; frames may be sent from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, header: Header, body: bytes = b"") -> None:
        with self._lock:
            self._connection.sendall(frames.pack(header, body))

    def receive(self) -> tuple[Header, bytes] | None:
        return frames.receive(self._connection)


class HandlerLine:
    """The hooks of one attempt's context. A thread that outlives the attempt is not heard: the
    worker would take its words for those of the next one.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.RLock()  # a signal may come while it is held
        self._asking = threading.Lock()
        self._is_over = False
        self._next_time = 0.0
        self._held_back: Header | None = None
        self._timer: threading.Timer | None = None

    def progress(self, done: float, total: float, message: str) -> None:
        header = {"kind": frames.PROGRESS, "done": done, "total": total, "message": message}
        with self._lock:
            if self._is_over:
                return
            wait = self._next_time - time.monotonic()
            if wait <= 0:
                self._pass_on(header)
                return
            self._held_back = header
            if self._timer is None:
                self._timer = threading.Timer(wait, self._late)
                self._timer.daemon = True
                self._timer.start()

    def heartbeat(self) -> None:
        with self._lock:
            if not self._is_over and self._next_time <= time.monotonic():
                # Progress that its timer is about to send is a sign of life as well.
                self._pass_on(self._held_back or {"kind": frames.HEARTBEAT})

    def extend(self, seconds: float) -> None:
        with self._lock:
            if not self._is_over:
                self._link.send({"kind": frames.EXTEND, "seconds": seconds})

    def checkpoint(self, data: bytes, content_type: str) -> None:
        """Returns when it is stored."""
        with self._asking:
            if self._is_over:
                raise AttemptCancelled("the attempt has ended")
            self._link.send({"kind": frames.CHECKPOINT, "content_type": content_type}, data)
            answer = self._link.receive()
        if answer is None or not answer[0]["stored"]:
            raise AttemptCancelled("checkpoint refused: the job has moved on without this attempt")

    def finish(self) -> None:
        """The handler has ended: send what was held back, and take nothing more."""
        with self._asking, self._lock:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._send_held_back()

    def _late(self) -> None:
        with self._lock, suppress(OSError):
            self._timer = None
            self._send_held_back()

    def _send_held_back(self) -> None:
        header, self._held_back = self._held_back, None
        if header is not None:
            self._pass_on(header)

    def _pass_on(self, header: Header) -> None:
        self._held_back = None
        self._next_time = time.monotonic() + INTERVAL_SECONDS
        self._link.send(header)


class Printed(io.TextIOBase):
    """Stands in for stdout and stderr, so that each line reaches the log of the right attempt.

    The pipe behind file descriptor 1 could not tell whose line it carries once the next attempt
    has begun.
    """

    encoding = "utf-8"

    def __init__(self, link: Link, stream: str, original: io.TextIOWrapper) -> None:
        self._link, self._stream = link, stream
        #: For programs that a handler starts, and for bytes: these go through the pipe after all.
        self.buffer = original.buffer
        self._rest = ""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.buffer.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, rest = (self._rest + text).split("\n")
            if len(rest) >= MAX_LINE:
                lines, rest = [*lines, rest], ""
            self._rest = rest
        for line in lines:
            self._tell(line)
        return len(text)

    def finish(self) -> None:
        """Send what has no end of line yet."""
        with self._lock:
            rest, self._rest = self._rest, ""
        if rest:
            self._tell(rest)

    def _tell(self, line: str) -> None:
        pieces = [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [""]
        with suppress(OSError):  # the worker is gone; so are we, soon
            for piece in pieces:
                self._link.send({"kind": frames.PRINTED, "stream": self._stream, "line": piece})
