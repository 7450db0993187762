"""One process of this machine, known by pid and start time so that it is never confused."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
#: A worker takes its start time a while after the kernel did: it has to import itself first.
BOOT_LEEWAY = timedelta(minutes=2)
CLOCK_LEEWAY = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A process; `start_time` is in clock ticks since the machine's boot."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> ProcessHandle | None:
        """The process that has this pid now; None if there is none, or only its remains."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None

    def alive(self) -> bool:
        return ProcessHandle.of(self.pid) == self

    def terminate(self) -> bool:
        """Send SIGTERM; False if the process is gone."""
        return self._send(signal.SIGTERM)

    def kill(self) -> bool:
        """Send SIGKILL; False if the process is gone."""
        return self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> bool:
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            # The pidfd is held: whoever has this pid now keeps it, so this comparison decides.
            if not self.alive():
                return False
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def fits(self, registered_start: datetime | None) -> bool:
        """Whether a worker that says it started then can be this process."""
        if registered_start is None:
            return False
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        began = datetime.fromtimestamp(booted + self.start_time / _TICKS, UTC)
        return began - CLOCK_LEEWAY <= registered_start <= began + BOOT_LEEWAY


class ExitWatch:
    """Calls back on the event loop when the process ends. Works for any process, not only ours."""

    def __init__(self, pid: int, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._fd = os.pidfd_open(pid)
        self._loop.add_reader(self._fd, self._ended)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ended(self) -> None:
        self.close()
        self._callback()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the program's name; empty if there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
