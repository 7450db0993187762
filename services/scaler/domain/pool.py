"""What an operator says about a pool."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

DEFAULT_MAX_WORKERS = 4
DEFAULT_TARGET_BACKLOG = 100
DEFAULT_HIGH_ALARM = 1
DEFAULT_EMPTY_FOR = timedelta(seconds=10)
DEFAULT_COOLDOWN = timedelta(seconds=10)
DEFAULT_DRAIN_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class ProcessLaunch:
    """Workers as processes on the Scaler's machine: which handlers, how much room, from where."""

    app: str
    #: Attempts at once; 0 leaves it to the handlers.
    capacity: int = 0
    #: Where the process starts; empty is the Scaler's own directory.
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """One pool as it should be run; every default is filled in."""

    type: str
    min_workers: int = 0
    max_workers: int = DEFAULT_MAX_WORKERS
    target_backlog_per_worker: int = DEFAULT_TARGET_BACKLOG
    high_alarm_backlog: int = DEFAULT_HIGH_ALARM
    empty_for: timedelta = DEFAULT_EMPTY_FOR
    cooldown: timedelta = DEFAULT_COOLDOWN
    drain_timeout: timedelta = DEFAULT_DRAIN_TIMEOUT
    #: How workers are started; None: somebody else runs them, and the pool is only watched.
    process: ProcessLaunch | None = None

    def clamp(self, count: int) -> int:
        """The count, brought within the pool's bounds."""
        return max(self.min_workers, min(self.max_workers, count))

    def workers_for(self, jobs: int) -> int:
        """How many workers so many jobs ask for, whatever the bounds."""
        return -(-jobs // self.target_backlog_per_worker)


@dataclass(frozen=True, slots=True)
class Hold:
    """A count an operator fixed by hand, until a moment or until it is given back (None)."""

    desired: int
    until: datetime | None = None

    def active(self, now: datetime) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool as it is kept: the operator's word, and the revision of the key that holds it."""

    spec: PoolSpec
    hold: Hold | None = None
    revision: int = 0

    @property
    def type(self) -> str:
        return self.spec.type

    @property
    def etag(self) -> str:
        return str(self.revision)
