"""A unit: one process of the mesh, a server or a service, described but not yet running."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from localmesh.errors import LocalError, NotReadyError, explain_log
from localmesh.processes import TERM_THEN_KILL, Command, Process, StopLadder

Kind = Literal["server", "service", "worker"]
PROBE_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1


class Unit(ABC):
    """How to prepare, start, probe and stop one process."""

    kind: Kind
    stop_ladder: StopLadder = TERM_THEN_KILL
    death_signal: signal.Signals = signal.SIGKILL
    """What ends it when the process that started it dies (tests only)."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def ports(self) -> Mapping[str, int]:
        """The ports it listens on, by purpose. The first is the one clients use."""

    @abstractmethod
    def command(self) -> Command:
        """How to start it, once prepared."""

    @abstractmethod
    def probe(self) -> None:
        """Raise NotReadyError unless it answers. Quick and free of side effects."""

    def prepare(self) -> None:  # noqa: B027 - a service needs nothing
        """Make everything fit to start on, whatever an earlier run left behind."""

    def settle(self) -> None:
        """Raise NotReadyError unless it does real work; creates what clients expect to be there."""
        self.probe()

    def sweep(self) -> None:  # noqa: B027 - most leave nothing behind
        """Remove what it leaves outside its own folder. Called after it has ended."""

    def ready(self) -> bool:
        """Whether it answers now."""
        try:
            self.probe()
        except NotReadyError:
            return False
        return True


def wait_ready(
    name: str,
    check: Callable[[], None],
    process: Process,
    log: Path,
    log_start: int,
    seconds: float,
) -> None:
    """Call `check` until it passes; raise a LocalError if the process ends or time is up."""
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            check()
            return
        except NotReadyError as error:
            reason = str(error)
        if process.wait(pause):
            raise explain_log(name, log, log_start)
        if time.monotonic() > deadline:
            raise LocalError(
                f"{name} is not ready after {seconds:.0f} s: {reason}", f"Its log is {log}"
            )
        pause = min(pause * 1.5, _LONGEST_PAUSE)
