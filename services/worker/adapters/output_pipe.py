"""What an executor process, and the programs it starts, write to their output, line by line."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import Self

MAX_LINE = 8192
#: How long the reading of what was written may lag behind the end of an attempt.
LAG_SECONDS = 0.5
#: The kernel's answer to "how many bytes are in there".
_EMPTY = struct.pack("i", 0)


class OutputPipe(asyncio.Protocol):
    """Our end of a pipe. Read as it comes, so that what is not in the pipe any more was heard."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Lines that came before anybody heard them.
        self._early: list[bytes] = []
        self._heard: Callable[[bytes], None] = self._early.append
        self._rest = b""
        self._descriptor = -1
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls) -> tuple[Self, int]:
        """The pipe, and the descriptor to write into; the caller closes that."""
        ours, theirs = os.pipe()
        loop = asyncio.get_running_loop()
        transport, pipe = await loop.connect_read_pipe(cls, os.fdopen(ours, "rb", 0))
        pipe._descriptor, pipe._transport = ours, transport
        return pipe, theirs

    def hear(self, heard: Callable[[bytes], None]) -> None:
        """Pass on each line, from the first."""
        for line in self._early:
            heard(line)
        self._early.clear()
        self._heard = heard

    async def catch_up(self) -> None:
        """Return when everything written before now was heard, its last line without an end too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAG_SECONDS
        # The loop reads the pipe by itself; there is no event for "it is empty now".
        while self._waiting() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._finish_line()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) >= MAX_LINE:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        for line in lines:
            self._heard(line)

    def connection_lost(self, error: Exception | None) -> None:
        self._finish_line()
        self._descriptor = -1
        if not self.closed.done():
            self.closed.set_result(None)

    def _finish_line(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._heard(rest)

    def _waiting(self) -> bool:
        """Whether the pipe holds bytes: a call to the kernel, far cheaper than waiting for some."""
        if self._descriptor < 0:
            return False
        count = fcntl.ioctl(self._descriptor, termios.FIONREAD, _EMPTY)
        return count != _EMPTY
