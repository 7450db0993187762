"""One run of a program: its files, its output, its exit code, its end with all it started."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jobmesh.commands import Command

from services.worker.adapters.spawning import Child, Stream, lines_of, open_pipe, spawn

#: Of what a program says on stderr, what is kept for the failure's text.
TAIL_BYTES = 16 * 1024
MAX_LINE = 8192
#: How long the words of a program that has ended may still take to arrive.
LAST_WORDS_SECONDS = 0.5
#: How often the size of what it writes is looked at.
MEASURE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Files:
    """Where one run reads and writes."""

    scratch: Path
    input: Path

    @property
    def output(self) -> Path:
        return self.scratch / "output"


class Tail:
    """The last bytes of what was said, in whole lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > self._limit and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    @property
    def last(self) -> str:
        """The last line that says something."""
        return next((line.strip() for line in reversed(self._lines) if line.strip()), "")


class CommandProcess:
    """A program that runs, in a session and process group of its own."""

    def __init__(
        self, process: Child, files: Files, words: IO[bytes], on_line: Callable[[str], None]
    ) -> None:
        self.pid = process.pid
        self.tail = Tail(TAIL_BYTES)
        self._process = process
        self._files = files
        self._pipe = words
        self._on_line = on_line
        self.ended = asyncio.create_task(self._wait(), name=f"command-{self.pid}")
        self._words = asyncio.create_task(self._hear(), name=f"command-{self.pid}-words")

    @classmethod
    def start(
        cls,
        command: Command,
        files: Files,
        environ: Mapping[str, str],
        on_line: Callable[[str], None],
    ) -> CommandProcess:
        """Start it; OSError if there is no such program, or it cannot be run."""
        with ExitStack() as opened:
            stdin: Stream = DEVNULL
            if not command.reads_file:
                stdin = opened.enter_context(files.input.open("rb"))
            words, stderr = opened.enter_context(open_pipe())
            # Into a file, and not through us: a program may print more than we want to carry.
            stdout = stderr
            if not command.writes_file:
                stdout = opened.enter_context(files.output.open("wb"))
            process = spawn(
                command.arguments(str(files.input), str(files.output)),
                environ=environ,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                directory=command.directory or None,
            )
            return cls(process, files, os.fdopen(os.dup(words.fileno()), "rb"), on_line)

    async def exit_code(self, max_output: int) -> int | None:
        """How it ended, negative for a signal; None if it was killed for writing too much."""
        while not self.ended.done():
            await asyncio.wait({self.ended}, timeout=MEASURE_SECONDS)
            if self.output_bytes > max_output:
                await self.kill(0)
                return None
        return self.ended.result()

    @property
    def output_bytes(self) -> int:
        try:
            return self._files.output.stat().st_size
        except OSError:
            return 0

    # --- its end

    async def kill(self, grace: float) -> None:
        """SIGTERM to the whole group, so that it can clean up, and SIGKILL after the grace."""
        if grace > 0 and not self.ended.done():
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=grace)
        self._signal(signal.SIGKILL)
        await asyncio.shield(self.ended)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _wait(self) -> int:
        code = await self._process.wait()
        # Nothing of its group may go on for an attempt that is over.
        self._signal(signal.SIGKILL)
        await asyncio.wait({self._words}, timeout=LAST_WORDS_SECONDS)
        self._words.cancel()
        return code

    async def _hear(self) -> None:
        """Line by line what it says on stderr; and on stdout, if its output is a file."""
        async for line in lines_of(self._pipe, MAX_LINE):
            self.tail.add(line)
            self._on_line(line)
