"""What is known about the mesh in a folder: its settings and its processes, in one small file.

The file is replaced whole, so that it is never half written, and after every start, so that a
command that is killed leaves no process nobody knows about. A second command that would change
the mesh at the same time is refused by a lock, which the kernel releases when its holder ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localmesh.errors import LocalError, explained
from localmesh.processes import Process
from localmesh.settings import MeshSettings


@dataclass(frozen=True, slots=True)
class Record:
    """One process as it was started; by `fingerprint` a change of its settings is seen."""

    pid: int
    start_time: int
    role: str
    fingerprint: str

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start_time)


@dataclass
class State:
    """The settings of the last `up`, and the processes that it and those before it started."""

    settings: MeshSettings | None = None
    processes: dict[str, Record] = field(default_factory=dict)

    def alive(self) -> dict[str, Record]:
        return {name: r for name, r in self.processes.items() if r.process.alive()}


class StateFile:
    """The state of the mesh in `home`, on disk."""

    def __init__(self, home: Path) -> None:
        self._path = home / "state.json"

    def load(self) -> State:
        """What is known. A file nobody can read counts as none: strays are found by other means."""
        try:
            data = json.loads(self._path.read_text())
            settings = data["settings"] and MeshSettings.from_json(data["settings"])
            return State(settings, self._records(data))
        except (OSError, ValueError, KeyError, TypeError):
            return State()

    def save(self, state: State) -> None:
        data = {
            "boot": _boot_id(),
            "settings": state.settings and state.settings.to_json(),
            "processes": {name: asdict(record) for name, record in state.processes.items()},
        }
        fresh = self._path.with_suffix(".new")
        with explained(self._path):
            # Passwords may stand in it.
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(data, file, indent=1)
            fresh.replace(self._path)

    def _records(self, data: dict[str, Any]) -> dict[str, Record]:
        if data["boot"] != _boot_id():
            return {}  # the machine was restarted: those processes are gone, whoever has their pids
        return {name: Record(**values) for name, values in data["processes"].items()}


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process that the Scaler's process driver started; it wrote this file itself."""

    worker_id: str
    type: str
    process: Process
    file: Path
    #: Where its WorkerService listens; empty if it did not say.
    address: str = ""


def read_workers(folder: Path) -> list[WorkerRecord]:
    """The workers that live. Files of dead ones are removed."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            data = json.loads(file.read_text())
            process = Process(int(data["pid"]), int(data["start_time"]))
            type_, address = str(data.get("type", "")), str(data.get("address", ""))
            record = WorkerRecord(file.stem, type_, process, file, address)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being written, or just removed
        if record.process.alive():
            found.append(record)
        else:
            file.unlink(missing_ok=True)
    return found


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the mesh in `home` against other commands that would change it."""
    path = home / "lock"
    with explained(path):
        home.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise LocalError(
                f"another command (pid {holder}) is at work on the mesh in {home}",
                "Wait until it is done, or stop it",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
