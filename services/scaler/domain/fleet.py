"""The workers of a pool: how many in which condition, and which to let go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

STARTED_BY_SCALER = "scaler"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker by its registration."""

    worker_id: str
    #: Room for attempts by type.
    types: Mapping[str, int]
    address: str = ""
    host: str = ""
    pid: int = 0
    started_at: datetime | None = None
    started_by: str = ""
    draining: bool = False

    @property
    def ours(self) -> bool:
        """Started for a pool. Others count as workers, but are never told to go."""
        return self.started_by == STARTED_BY_SCALER


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many workers take work, are on their way, or finish what they have."""

    live: int = 0
    starting: int = 0
    draining: int = 0

    @property
    def coming(self) -> int:
        """Those that take work now or soon."""
        return self.live + self.starting


def parted(members: list[Worker], leaving: frozenset[str]) -> tuple[list[Worker], list[Worker]]:
    """Those on their way out, and those that take work."""
    going = [w for w in members if w.draining or w.worker_id in leaving]
    staying = [w for w in members if not (w.draining or w.worker_id in leaving)]
    return going, staying


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could go, with the attempts in its hands; None: it did not say."""

    worker: Worker
    running: int | None


def choose_victims(candidates: list[Candidate], count: int) -> list[Worker]:
    """The workers whose end disturbs least: idle first, then those with least in hand.

    Among equals the youngest goes: it has the least warmed up. One that did not answer may be in
    the middle of anything, so it goes last.
    """
    ranked = sorted(candidates, key=_disturbance)
    return [candidate.worker for candidate in ranked[: max(0, count)]]


def _disturbance(candidate: Candidate) -> tuple[bool, int, float, str]:
    started = candidate.worker.started_at
    return (
        candidate.running is None,
        candidate.running or 0,
        -started.timestamp() if started else 0.0,
        candidate.worker.worker_id,
    )
