"""The guard: kills what the executors' handlers started, when the worker has died.

The kernel kills an executor with its worker, but not the programs that a handler started: `ffmpeg`
would go on writing for a job that runs elsewhere by then. The guard is told each executor's process
group over a pipe. When the pipe ends the worker is gone, and it kills the groups that are left.
It imports nothing of ours, so that it is small and soon ready.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress


def watch(lines: Iterable[bytes]) -> set[int]:
    """Follow "+group" and "-group" lines until they end; returns the groups that are left."""
    groups: set[int] = set()
    for line in lines:
        text = line.decode("ascii", "replace").strip()
        if text[1:].isdecimal():
            change = groups.add if text[0] == "+" else groups.discard
            change(int(text[1:]))
    return groups


def main() -> None:
    # The worker decides when it ends, by closing the pipe; a signal to the terminal's group or to
    # a whole service must not come between.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for group in watch(sys.stdin.buffer):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
