"""How late the kernel may be with the timers of threads, so that one wake-up serves several.

gRPC keeps threads that look for work by themselves, more and more rarely after each message: at
rest most of what a process is woken for. They miss nothing by looking later, for work itself wakes
them at once; what else they have are deadlines and pauses of calls. The event loop is not among
them: its timers start jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: For threads of libraries, in seconds.
LIBRARY_SLACK = 0.1


@contextmanager
def inherited_slack(seconds: float = LIBRARY_SLACK) -> Iterator[None]:
    """What this thread starts meanwhile, threads or processes, has this slack; so has it itself."""
    _set(seconds)
    try:
        yield
    finally:
        _set(0)  # the default: fifty microseconds


def _set(seconds: float) -> None:
    # Not on every kernel; then timers stay exact.
    with suppress(OSError):
        path = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
        path.write_text(str(round(seconds * 1e9)))
