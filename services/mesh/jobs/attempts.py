"""Attempts, folded from a job's events. They are not stored: the events already say all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, unique

from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.retry import Failure, FailureKind
from services.mesh.jobs.states import Cause, is_terminal


@unique
class Outcome(Enum):
    """How a dispatch ended."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    HANDED_BACK = "handed_back"
    SNOOZED = "snoozed"
    SWEPT = "swept"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One dispatch of a job. Dispatches that cost nothing share their number with the next one; the
    fence differs.
    """

    number: int
    fence: int
    worker_id: str | None
    dispatch_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    outcome: Outcome = Outcome.OPEN
    failure: Failure | None = None


_ENDINGS = {
    Cause.SUCCEEDED: Outcome.SUCCEEDED,
    Cause.LATE_COMMIT: Outcome.SUCCEEDED,
    Cause.RETRY: Outcome.FAILED,
    Cause.FAILED: Outcome.FAILED,
    Cause.HANDED_BACK: Outcome.HANDED_BACK,
    Cause.SNOOZED: Outcome.SNOOZED,
    Cause.SWEPT: Outcome.SWEPT,
    Cause.RESCUED: Outcome.LOST,
    Cause.CANCELLED: Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class History:
    """What only the events of a job tell."""

    attempts: Sequence[Attempt] = ()
    """Oldest first. If there were more before them, the first one's fence is not 1."""
    end_note: str = ""
    """What was said of its end."""

    @classmethod
    def of(cls, events: Sequence[JobEvent], most: int) -> History:
        """Of one job's newest events, in version order; its newest attempts, of whose failures
        the texts have at most so many bytes.
        """
        last = events[-1]
        note = last.note if is_terminal(last.state) else None
        return cls(_newest(attempts_from_events(events), most), note or "")


NO_HISTORY = History()


def attempts_from_events(events: Iterable[JobEvent]) -> list[Attempt]:
    """Fold one job's events, in version order, into its attempts, oldest first."""
    attempts: list[Attempt] = []
    for event in events:
        if event.cause is Cause.CLAIMED:
            attempts.append(Attempt(event.attempt, event.fence, event.worker_id, event.time))
        elif attempts and attempts[-1].fence == event.fence:
            attempts[-1] = _after(attempts[-1], event)
    return attempts


def _newest(attempts: list[Attempt], most: int) -> list[Attempt]:
    left = most
    for place in reversed(range(len(attempts))):
        if (failure := attempts[place].failure) is not None:
            texts = (failure.type, failure.message, failure.traceback)
            left -= sum(len(text.encode()) for text in texts)
        if left < 0 and place < len(attempts) - 1:
            return attempts[place + 1 :]
    return attempts


def _after(attempt: Attempt, event: JobEvent) -> Attempt:
    if event.cause is Cause.STARTED:
        return replace(attempt, start_time=event.time)
    ending = _ENDINGS.get(event.cause)
    if ending is None or (attempt.outcome is not Outcome.OPEN and ending is Outcome.CANCELLED):
        return attempt  # cancelled while it waited between two attempts: no attempt's doing
    if event.failure is not None and event.failure.kind is FailureKind.TIMEOUT:
        ending = Outcome.TIMED_OUT
    return replace(attempt, end_time=event.time, outcome=ending, failure=event.failure)
