"""Workers that die young, and how long to wait before the next try."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

FIRST_PAUSE = timedelta(seconds=0.5)
LONGEST_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """Rounds of failed starts in a row.

    After each round the pause doubles; then one worker is tried alone. If it registers, the pool
    may grow again; if it lives on, the record is clean.
    """

    rounds: int = 0
    last_at: datetime | None = None
    detail: str = ""
    #: A worker registered since the last crash.
    recovered: bool = False

    @property
    def retry_at(self) -> datetime | None:
        """Before this nothing is started; None: nothing holds us back."""
        if self.last_at is None or self.recovered:
            return None
        doubled = FIRST_PAUSE * (1 << min(self.rounds - 1, 10))
        return self.last_at + min(doubled, LONGEST_PAUSE)

    def after_crash(self, started_at: datetime, now: datetime, detail: str) -> CrashRecord:
        """Workers started before the last crash belong to the same round as it."""
        same_round = self.last_at is not None and started_at < self.last_at
        rounds = max(1, self.rounds if same_round else self.rounds + 1)
        return CrashRecord(rounds, now, detail)

    def after_registration(self) -> CrashRecord:
        return replace(self, recovered=True) if self.rounds else self

    def start_limit(self, now: datetime, starting: int) -> int | None:
        """How many may be started now; None: as many as wanted."""
        retry_at = self.retry_at
        if self.last_at is None or retry_at is None:
            return None
        # Before the crash itself: the clock was set back, and the pause would not end for as long.
        return 0 if self.last_at <= now < retry_at else max(0, 1 - starting)


CLEAN = CrashRecord()
