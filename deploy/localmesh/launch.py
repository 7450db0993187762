"""Starting and stopping several units at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from localmesh.errors import MIN_FREE_BYTES, LocalError, explained
from localmesh.ports import require_free
from localmesh.processes import Process, StopLadder, spawn
from localmesh.unit import Unit, wait_ready

READY_SECONDS = 60.0
LOG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Running:
    """A unit and the process that runs it. `log_start` is where this run begins in its log."""

    unit: Unit
    process: Process
    log: Path
    log_start: int = 0

    def stop(self, ladder: StopLadder | None = None) -> bool:
        """End it and clean up what it leaves behind; True if it ended at the first signal."""
        willing = self.process.stop(ladder or self.unit.stop_ladder)
        self.unit.sweep()
        return willing

    def wait_ready(self, check: Callable[[], None], seconds: float = READY_SECONDS) -> None:
        """Block until `check` passes."""
        wait_ready(self.unit.name, check, self.process, self.log, self.log_start, seconds)


Told = Callable[[Running], None]


def start_units(
    units: Sequence[Unit],
    home: Path,
    *,
    logs: Path | None = None,
    die_with_caller: bool = False,
    on_started: Told | None = None,
    on_ready: Told | None = None,
) -> list[Running]:
    """Start all units in parallel and return when each does real work.

    If one fails, those already started are stopped again and its LocalError is raised. With
    `die_with_caller` the processes end with the calling thread, which therefore is the one that
    starts them; only preparing and waiting happen in others. `on_started` and `on_ready` are called
    in the calling thread.
    """
    require_space(home)
    for unit in units:
        require_free(unit.name, unit.ports.values())
    launch = _Launch(home, logs or home / "logs", die_with_caller)
    with ThreadPoolExecutor(max(1, len(units)), thread_name_prefix="localmesh") as threads:
        return launch.run(units, threads, on_started or _ignore, on_ready or _ignore)


def stop_units(running: Iterable[Running]) -> None:
    """Stop all in parallel."""
    everyone = list(running)
    with ThreadPoolExecutor(max(1, len(everyone)), thread_name_prefix="localmesh") as threads:
        for _ in threads.map(Running.stop, everyone):
            pass


def require_space(home: Path) -> None:
    """Raise a LocalError unless `home` can be made, written to, and has room to work in."""
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
        probe = home / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another thread may look at the same time
    free = shutil.disk_usage(home).free
    if free < MIN_FREE_BYTES:
        raise LocalError(
            f"only {free >> 20} MB are free on the disk that holds {home}",
            f"Free {MIN_FREE_BYTES >> 20} MB or more, or choose another folder with JOBMESH_HOME",
        )


class _Launch:
    """One run of start_units: prepares and waits in threads, starts in the calling one."""

    def __init__(self, home: Path, logs: Path, die_with_caller: bool) -> None:
        self._home = home
        self._logs = logs
        self._die_with_caller = die_with_caller
        self._running: list[Running] = []

    def run(
        self, units: Sequence[Unit], threads: ThreadPoolExecutor, on_started: Told, on_ready: Told
    ) -> list[Running]:
        preparing: dict[Future[None], Unit] = {threads.submit(u.prepare): u for u in units}
        settling: dict[Future[None], Running] = {}
        try:
            while preparing or settling:
                done, _ = wait([*preparing, *settling], return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    if (unit := preparing.pop(future, None)) is not None:
                        running = self._start(unit)
                        on_started(running)
                        settling[threads.submit(_settle, running)] = running
                    else:
                        on_ready(settling.pop(future))
        except BaseException:
            for future in preparing:
                future.cancel()
            stop_units(self._running)
            raise
        return self._running

    def _start(self, unit: Unit) -> Running:
        log = self._logs / f"{unit.name}.log"
        _rotate(log)
        begin = log.stat().st_size if log.exists() else 0
        signal = unit.death_signal if self._die_with_caller else None
        process = spawn(unit.command(), log, home=self._home, death_signal=signal)
        running = Running(unit, process, log, begin)
        self._running.append(running)
        return running


def _rotate(log: Path) -> None:
    """Keep one old file: a mesh that is started every day must not fill the disk."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _settle(running: Running) -> None:
    running.wait_ready(running.unit.settle)


def _ignore(running: Running) -> None:
    """The default for the callbacks."""
