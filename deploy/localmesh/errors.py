"""What can go wrong with a local mesh, said in one line that names the cause and the way out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIN_FREE_BYTES = 256 * 1024 * 1024


class LocalError(Exception):
    """The local mesh cannot do what was asked. `message` says what is wrong, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class NotReadyError(Exception):
    """A server or service is not ready yet; asking again later may succeed."""


def disk_full(path: Path) -> LocalError:
    return LocalError(
        f"the disk that holds {path} is full",
        "Free some space, or choose another folder with JOBMESH_HOME",
    )


def not_writable(path: Path) -> LocalError:
    return LocalError(
        f"the folder {path} is not writable for this user",
        "Fix its owner, or choose another folder with JOBMESH_HOME",
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file errors a user can do something about into a LocalError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(path) from error
        if error.errno == errno.EEXIST:
            raise LocalError(f"{error.filename} is in the way", "Move it elsewhere") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            culprit = Path(error.filename or path)
            raise not_writable(path if path in culprit.parents else culprit) from error
        raise


def explain_log(name: str, log: Path, start: int = 0) -> LocalError:
    """Why a process ended at its start, judged by what it logged since `start`."""
    lines = [line.strip() for line in read_tail(log, start) if line.strip()]
    text = "\n".join(lines)
    if "No space left on device" in text:
        return disk_full(log.parent)
    last = lines[-1] if lines else "it wrote nothing"
    return LocalError(f"{name} ended while starting: {last[:300]}", f"The whole log is in {log}")


def read_tail(log: Path, start: int = 0, size: int = 8192) -> list[str]:
    """The last lines of a log file: those after `start`, at most the last `size` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, 2) - size))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
