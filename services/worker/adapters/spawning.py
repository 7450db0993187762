"""Starts programs from a process full of threads.

Not by the event loop: libuv forks, and a fork runs gRPC's handlers for it in the child, which has
been seen to crash there before the program began. `subprocess` uses vfork, which runs none and
copies nothing; it takes a third of the time as well. That a program has ended is learnt from a
descriptor for it (`pidfd`), so that nobody has to wait in a thread.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

Stream = IO[bytes] | int


class Child:
    """A program that was started; it leads a session and a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    async def wait(self) -> int:
        """Return its exit code when it has ended, negative for a signal. To be called once."""
        descriptor = _descriptor(self.pid)
        if descriptor is None:
            return await asyncio.to_thread(self._process.wait)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.wait()


def spawn(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    directory: str | None = None,
    descriptors: Sequence[int] = (),
) -> Child:
    """Start a program; OSError if there is none, or it cannot be run."""
    process = subprocess.Popen(
        arguments,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=dict(environ),
        cwd=directory,
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )
    return Child(process)


def _descriptor(pid: int) -> int | None:
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


@contextmanager
def open_pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends of a pipe, the one to read from first; closed at the end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as end, os.fdopen(writing, "wb") as start:
        yield end, start


async def lines_of(pipe: IO[bytes], longest: int) -> AsyncIterator[str]:
    """What comes through a pipe, line by line, until nobody holds its other end; closes it.

    A line that is longer comes in pieces.
    """
    stream, rest = asyncio.StreamReader(), b""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while chunk := await stream.read(longest):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) >= longest:
                lines, rest = [*lines, rest], b""
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")
        if rest:
            yield rest.decode(errors="replace")
    finally:
        transport.close()
