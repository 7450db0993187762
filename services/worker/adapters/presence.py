"""A file per worker process, so that a local supervisor finds those it did not start itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: Field of /proc/<pid>/stat with the start time, after the name of the program.
_START_TIME = 19


class Presence:
    """Writes `<worker_id>.json` into a folder, and removes it; does nothing without a folder."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None

    def show(self, worker_id: str, types: Sequence[str], address: str) -> None:
        if self._folder is None:
            return
        about = {
            "worker_id": worker_id,
            "pid": os.getpid(),
            "start_time": process_start_time(),
            "type": ",".join(types),
            "types": list(types),
            "address": address,
        }
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            # Written aside and renamed, so that nobody reads half a file.
            draft = self._folder / f".{worker_id}"
            draft.write_text(json.dumps(about))
            draft.rename(self._folder / f"{worker_id}.json")

    def hide(self, worker_id: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / f"{worker_id}.json").unlink(missing_ok=True)


def process_start_time() -> int:
    """When this process started, in clock ticks since boot: with the pid it is unique."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[_START_TIME])
