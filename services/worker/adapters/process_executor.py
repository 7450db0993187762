"""The pool of executor processes: grown as needed, warm ones used again."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from services.worker.adapters.executor_process import (
    ExecutorProcess,
    ExecutorSettings,
    ExecutorStartError,
)
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, Snoozed
from services.worker.executor import guard
from services.worker.ports import Executor, Observer, Returned

log = logging.getLogger(__name__)

START_DELAY_SECONDS = 1.0


class Guard:
    """Our side of the process that kills what is left when we die; see `executor.guard`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        try:
            self._write(line)
        except OSError:
            # Someone killed it. A new one must know all groups.
            log.warning("starting a new guard", extra={"action": "guard_lost"})
            self.close()
            with suppress(OSError):
                self._write("".join(f"+{group}\n" for group in self._groups))

    def _write(self, text: str) -> None:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        # A few bytes into an empty pipe: this does not block.
        os.write(self._process.stdin.fileno(), text.encode())

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(self._environ),
            start_new_session=True,
        )

    def close(self) -> None:
        """Let it go; it has nothing left to do when the executors have ended."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(timeout=5)


class ProcessExecutor(Executor):
    """Runs plain functions, one attempt at a time in each process.

    How many run at once is the callers' business (the types' capacities); the pool has as many
    processes as were ever needed at once.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._guard = Guard(settings.environment())
        self._all: set[ExecutorProcess] = set()
        self._idle: list[ExecutorProcess] = []
        # An import of an app is work for a processor; a hundred at once would starve the worker.
        self._starts = asyncio.Semaphore(os.cpu_count() or 1)
        self._closed = False

    def wants_file(self, type_: str) -> bool:
        # Always: the bytes would otherwise pass through the worker's memory on their way.
        return True

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Failed | HandedBack | Snoozed:
        try:
            process = await self._take()
        except ExecutorStartError as error:
            extra = {"action": "executor_failed", "job_id": str(attempt.job_id)}
            log.error("cannot start an executor: %s", error, extra=extra)
            return HandedBack("no executor", START_DELAY_SECONDS)
        if not observer.may_start:  # a process may take longer to start than a lease is trusted
            self._put_back(process)
            return HandedBack("lease lost")
        observer.started(process.pid)
        try:
            result = await process.call(attempt, source, observer)
        except asyncio.CancelledError:
            await asyncio.shield(process.kill())
            raise
        self._put_back(process)
        return result

    async def warm(self, count: int = 1) -> None:
        """Have so many processes ready."""
        while len(self._all) < count:
            self._idle.append(await self._start())

    async def close(self) -> None:
        """Kill all processes; handlers that still run are lost."""
        self._closed = True
        await asyncio.gather(*(process.kill(grace=0) for process in tuple(self._all)))
        await asyncio.sleep(0)  # lets the connections close
        self._guard.close()

    async def _take(self) -> ExecutorProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
        return await self._start()

    def _put_back(self, process: ExecutorProcess) -> None:
        if process.alive and not self._closed:
            self._idle.append(process)

    async def _start(self) -> ExecutorProcess:
        async with self._starts:
            process = await ExecutorProcess.start(self._settings)
        self._all.add(process)
        self._guard.add(process.pid)
        process.ended.add_done_callback(lambda _: self._forget(process))
        return process

    def _forget(self, process: ExecutorProcess) -> None:
        self._all.discard(process)
        self._guard.remove(process.pid)
        if process in self._idle:
            self._idle.remove(process)
