"""Reading the log files of a mesh, also while they are being written."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localmesh.errors import LocalError

_PAUSE = 0.2  # seconds between looks, only while someone watches
_LAST_BYTES = 1 << 20  # as far back as the last lines are looked for


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one process."""

    name: str
    text: str


def tail_logs(
    home: Path,
    name: str = "",
    *,
    follow: bool = False,
    lines: int = 100,
    stop: threading.Event | None = None,
) -> Generator[LogLine, None, None]:
    """The last lines of a process's log, or of all; with `follow` also those to come.

    `name` is a unit ("scheduler-2"), the beginning of several ("scheduler", "shard"), a job type
    for the workers of that type, or "workers". Following ends when the caller stops iterating or
    sets `stop`; files that appear later are picked up.
    """
    tails: dict[Path, _Tail] = {}
    for file in _matching(home, name):
        tails[file] = _Tail(file)
        yield from tails[file].last(lines)
    ended = stop or threading.Event()
    while follow and not ended.wait(_PAUSE):
        for file in _files(home, name):
            if file not in tails:
                tails[file] = _Tail(file)
            yield from tails[file].fresh()


def _matching(home: Path, name: str) -> Sequence[Path]:
    found = _files(home, name)
    if not found and name:
        known = ", ".join(sorted(_names(home))) or "none yet"
        raise LocalError(f"there is no log of {name!r}", f"Logs: {known}")
    return found


def _names(home: Path) -> set[str]:
    """What `name` may be: each unit, and the workers as one, for there may be hundreds."""
    files = _files(home, "")
    units = {file.stem for file in files if file.parent.name == "logs"}
    return units | ({"workers"} if len(units) < len(files) else set())


def _files(home: Path, name: str) -> list[Path]:
    """The logs of units, and those of workers, which their Scaler keeps with their records."""
    workers = sorted((home / "workers").glob("*.log"))
    if name == "workers":
        return workers
    return [
        file
        for file in [*sorted((home / "logs").glob("*.log")), *workers]
        if not name or file.stem == name or file.stem.startswith(f"{name}-")
    ]


class _Tail:
    """A log file and how far it has been read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0
        self._rest = b""

    def last(self, lines: int) -> Iterator[LogLine]:
        size = self._file.stat().st_size
        self._position = max(0, size - _LAST_BYTES)
        text = self._read_all().decode(errors="replace").splitlines()
        yield from (LogLine(self._file.stem, line) for line in text[-lines:] if lines)

    def fresh(self) -> Iterator[LogLine]:
        """The complete lines written since the last look."""
        *complete, self._rest = (self._rest + self._read_all()).split(b"\n")
        yield from (LogLine(self._file.stem, line.decode(errors="replace")) for line in complete)

    def _read_all(self) -> bytes:
        try:
            if self._file.stat().st_size < self._position:
                self._position = 0  # emptied or replaced: begin again
            with self._file.open("rb") as file:
                file.seek(self._position)
                data = file.read()
                self._position = file.tell()
                return data
        except OSError:
            return b""
