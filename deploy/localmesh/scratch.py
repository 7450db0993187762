"""A folder for the files of test servers, gone when its owner is: even one that was killed.

Where there is plenty of memory it is there: what tests store need not outlive a power cut, and the
disk is most of what they wait for, since each has a database of its own made and dropped. A folder
that a killed test run left behind would take that memory until the next boot, so whoever makes one
removes those without an owner. An owner holds a lock on a file beside its folder; the kernel gives
it up for the dead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
#: So many bytes have to be free there; tests use a part of that.
PLENTY = 8 << 30
PREFIX, LOCK = "jobmesh-", ".lock"


class Scratch:
    """A new folder, until `close` or the end of this process."""

    def __init__(self, place: Path | None = None) -> None:
        place = _place() if place is None else place
        remove_abandoned(place)
        self._descriptor, self._lock = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=place)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # Only now: one that is empty was just made, and is not locked yet.
        os.write(self._descriptor, b"held while the folder of this name is in use\n")
        self.path = Path(self._lock.removesuffix(LOCK))
        self.path.mkdir()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        Path(self._lock).unlink(missing_ok=True)
        os.close(self._descriptor)


def _place() -> Path:
    """In memory where there is plenty, unless TMPDIR says where."""
    try:
        roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= PLENTY
    except OSError:
        roomy = False
    return MEMORY if roomy and "TMPDIR" not in os.environ else Path(tempfile.gettempdir())


def remove_abandoned(place: Path) -> list[Path]:
    """Remove the folders whose owners are gone; which ones."""
    removed = []
    for lock in place.glob(f"{PREFIX}*{LOCK}"):
        folder = lock.with_name(lock.name.removesuffix(LOCK))
        try:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.stat().st_size:
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.unlink(missing_ok=True)
                    removed.append(folder)
        except OSError:
            continue  # it is held, or another's
    return removed
