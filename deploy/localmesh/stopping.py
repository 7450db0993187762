"""Stopping several processes at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from localmesh.processes import Process, StopLadder
from localmesh.progress import Teller
from localmesh.unit import Kind


def leave_nothing() -> None:
    """The sweep of a process that leaves nothing behind."""


def say_nothing() -> None:
    """The word to a process that knows by itself how to end."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A process that is to end, what to tell it before, and what to tidy up after it."""

    name: str
    kind: Kind
    process: Process
    ladder: StopLadder
    sweep: Callable[[], None] = leave_nothing
    prepare: Callable[[], None] = say_nothing

    def stop(self) -> bool:
        """End it; True if it ended at the first signal."""
        self.prepare()
        willing = self.process.stop(self.ladder)
        self.sweep()
        return willing


def stop_all(doomed: Iterable[Doomed], teller: Teller) -> None:
    """End all of them at once, telling about each."""
    everyone = list(doomed)
    with ThreadPoolExecutor(max(1, len(everyone)), thread_name_prefix="localmesh") as threads:
        stops = {}
        for one in everyone:
            teller.tell(one.name, one.kind, "stopping")
            stops[threads.submit(one.stop)] = one
        for future in as_completed(stops):
            one = stops[future]
            teller.tell(one.name, one.kind, "stopped" if future.result() else "killed")
