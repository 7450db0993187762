"""Starts worker processes: command, environment, log file, record."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from services.mesh.clock import Clock
from services.scaler.adapters.process.handle import ProcessHandle
from services.scaler.domain.fleet import STARTED_BY_SCALER
from services.scaler.domain.pool import PoolSpec, ProcessLaunch

#: Settings of the Scaler itself that would be wrong for a worker.
OWN_VARIABLES = frozenset(
    f"JOBMESH_{name}"
    for name in ("LISTEN", "ADVERTISE", "METRICS_LISTEN", "INSTANCE", "TRACE_FILE", "DRAIN_SECONDS")
)
#: Not ".json": by that name the workers themselves say that they live.
RECORD = ".launch"
#: Log files kept per type, at least; the oldest go first.
LOGS_KEPT = 20
_LONGEST_DRAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker process and where it writes; `child` is None for one that a predecessor started."""

    type: str
    process: ProcessHandle
    log: Path
    record: Path
    child: subprocess.Popen[bytes] | None = None


class Launcher:
    """Turns a pool's spec into a running process."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, clock: Clock
    ) -> None:
        self._command, self._environ = tuple(command), dict(environ)
        self._folder, self._clock = folder.absolute(), clock
        self._numbers = count(1)

    def launch(self, spec: PoolSpec, process: ProcessLaunch) -> Launched:
        """Start one worker. Raises OSError if that is impossible.

        Blocks for a millisecond or two: fork and exec, no shell.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._discard_old_logs(spec)
        stamp = f"{self._clock.now():%Y%m%dT%H%M%S}"
        log = self._folder / f"{spec.type}-{stamp}-{os.getpid()}-{next(self._numbers)}.log"
        with log.open("ab") as output:
            child = subprocess.Popen(
                self._arguments(spec, process),
                cwd=process.directory or None,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        handle = ProcessHandle.of(child.pid) or ProcessHandle(child.pid, 0)
        record = log.with_suffix(RECORD)
        launched = Launched(spec.type, handle, log, record, child)
        # Without a record it is known to us all the same, only not to a successor.
        with suppress(OSError):
            _write(record, launched)
        return launched

    def left_behind(self) -> Iterator[Launched]:
        """The processes a predecessor started that still live; records of dead ones are removed."""
        for record in sorted(self._folder.glob(f"*{RECORD}")):
            try:
                launched = _read(record)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being written, or somebody else's
            if launched.process.alive():
                yield launched
            else:
                record.unlink(missing_ok=True)

    def _arguments(self, spec: PoolSpec, process: ProcessLaunch) -> list[str]:
        drain = min(spec.drain_timeout.total_seconds(), _LONGEST_DRAIN_SECONDS)
        flags = {
            "--app": process.app,
            "--types": spec.type,
            "--listen": "127.0.0.1:0",
            "--started-by": STARTED_BY_SCALER,
            "--drain-seconds": f"{drain:g}",
        }
        if process.capacity:
            flags["--capacity"] = str(process.capacity)
        return [*self._command, *(word for pair in flags.items() for word in pair)]

    def _discard_old_logs(self, spec: PoolSpec) -> None:
        logs = sorted(self._folder.glob(f"{spec.type}-????????T??????-*-*.log"), key=_age)
        kept = max(LOGS_KEPT, 2 * spec.max_workers)
        for log in logs[: max(0, len(logs) - kept)]:
            log.unlink(missing_ok=True)


def _age(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


def _write(record: Path, launched: Launched) -> None:
    value = {
        "pid": launched.process.pid,
        "start_time": launched.process.start_time,
        "type": launched.type,
        "log": launched.log.name,
    }
    fresh = record.with_suffix(".new")
    fresh.write_text(json.dumps(value))
    fresh.replace(record)


def _read(record: Path) -> Launched:
    value = json.loads(record.read_text())
    process = ProcessHandle(int(value["pid"]), int(value["start_time"]))
    return Launched(str(value["type"]), process, record.parent / str(value["log"]), record)


def worker_environment(environ: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """The Scaler's environment without what is its own, with where the mesh is."""
    passed_on = {name: value for name, value in environ.items() if name not in OWN_VARIABLES}
    return {**passed_on, **overrides, "PYTHONUNBUFFERED": "1"}
