"""The effect ledger: what handlers really did, kept outside the mesh and never under faults.

One file, opened with O_APPEND by every process that runs handlers. A line shorter than a page is
appended in one piece and no process ever holds a lock, so a process that is frozen or killed in the
middle disturbs nobody, and the order of lines is one that all processes agree on.

    S <job> <fence> <attempt> <pid> <worker pid> <seconds> <digest>      a handler began, with this
                                                                         input
    E <job> <fence> <attempt> <pid> <worker pid> <seconds> <outcome>     done | fail | stop |
                                                                         snooze

That order is what makes a *fenced* resource out of the same lines: one that takes an effect only
from the highest fence it has met. `read_ledger` plays it. An effect it refuses is the effect of a
zombie: an attempt that went on after a later one had begun.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE, FAIL, STOP, SNOOZE = "done", "fail", "stop", "snooze"


def digest(given: Mapping[str, Any]) -> str:
    """What an input comes down to: the same for who sent it and for the handler that got it. What
    is left out and what is said to be nothing are the same.
    """
    said = json.dumps({name: value for name, value in given.items() if value}, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def append(path: str, kind: str, job: str, fence: int, attempt: int, word: str) -> None:
    """One line from inside a handler; its last word is the digest of its input, or its outcome."""
    words = [kind, job, fence, attempt, os.getpid(), os.getppid(), f"{time.time():.6f}", word]
    line = " ".join(str(word) for word in words).rstrip() + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@dataclass(slots=True)
class Run:
    """One attempt as its handler saw it. `ended` is None if nobody lived to write that line."""

    job: str
    fence: int
    attempt: int
    pid: int
    worker_pid: int
    began: float
    ended: float | None = None
    outcome: str = ""
    input: str = ""
    """The digest of what its handler was given."""
    starts: int = 1
    is_zombie: bool = False
    """A later fence had begun when it ended: the fenced resource refused its effect, if any."""


@dataclass(slots=True)
class Ledger:
    """All runs by job and fence, and what a fenced resource has accepted."""

    runs: dict[str, dict[int, Run]] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    """The fence of the last effect the resource took, per job."""

    @property
    def zombies(self) -> list[Run]:
        return [run for runs in self.runs.values() for run in runs.values() if run.is_zombie]

    def of(self, job: str) -> dict[int, Run]:
        return self.runs.get(job, {})


def read_ledger(path: Path) -> Ledger:
    """The ledger of a run; empty if no handler ever ran."""
    return parse(path.read_text().splitlines() if path.exists() else [])


def parse(lines: Iterable[str]) -> Ledger:
    ledger = Ledger()
    highest: dict[str, int] = {}
    for line in lines:
        kind, job, fence_, attempt, pid, worker, at, *rest = line.split()
        fence, runs = int(fence_), ledger.runs.setdefault(job, {})
        if kind == "S":
            highest[job] = max(fence, highest.get(job, 0))
            if fence in runs:
                runs[fence].starts += 1
            else:
                run = Run(job, fence, int(attempt), int(pid), int(worker), float(at))
                run.input = rest[0] if rest else ""
                runs[fence] = run
        elif fence in runs:
            _end(ledger, runs[fence], float(at), rest[0] if rest else "", highest[job])
    return ledger


def _end(ledger: Ledger, run: Run, at: float, outcome: str, highest: int) -> None:
    run.ended, run.outcome = at, outcome
    run.is_zombie = run.fence < highest
    if outcome == DONE and not run.is_zombie:
        ledger.accepted[run.job] = run.fence
