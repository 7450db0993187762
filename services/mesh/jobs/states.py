"""States, causes and the table of every transition a job may make.

The table is data: the store's tests walk it, the documentation draws its picture from it, and
`allowed` reads it. The numbers of both enums are stored in Postgres and equal those of the wire;
they never change meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique


@unique
class JobState(IntEnum):
    """Where a job stands. The number is the one in SQL and in the proto."""

    UNSPECIFIED = 0
    SCHEDULED = 1
    DISPATCHED = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    EXPIRED = 7
    BLOCKED = 8


@unique
class Cause(IntEnum):
    """Why a transition happened. Stored with the event."""

    UNSPECIFIED = 0
    CREATED = 1
    CLAIMED = 2
    STARTED = 3
    SUCCEEDED = 4
    RETRY = 5
    FAILED = 6
    HANDED_BACK = 7
    SWEPT = 8
    RESCUED = 9
    CANCELLED = 10
    EXPIRED = 11
    SNOOZED = 12
    UNBLOCKED = 13
    PARENT_FAILED = 14
    UPDATED = 15
    LATE_COMMIT = 16
    REDRIVEN = 17


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal step. `source` is None for the step that creates the job."""

    source: JobState | None
    target: JobState
    cause: Cause
    guard: str


TERMINAL = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED},
)
UNSUCCESSFUL = TERMINAL - {JobState.SUCCEEDED}
IN_FLIGHT = frozenset({JobState.DISPATCHED, JobState.RUNNING})
LIVE = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING, JobState.BLOCKED})

_ASKED = "a caller asked"
_CHANGED = "a caller changed due time, priority or labels, or replaced it under its unique key"
_TOO_LATE = "no attempt was spent before its expire time"
_OWN = "the report's fence and worker are the row's"
_LEASE_GONE = "its worker's lease is gone, same fence"


def _table() -> tuple[Transition, ...]:
    blocked, scheduled, dispatched = JobState.BLOCKED, JobState.SCHEDULED, JobState.DISPATCHED
    running, succeeded, failed = JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED
    cancelled, expired = JobState.CANCELLED, JobState.EXPIRED
    rows: tuple[tuple[JobState | None, JobState, Cause, str], ...] = (
        (None, scheduled, Cause.CREATED, "its id and its keys are new"),
        (None, scheduled, Cause.REDRIVEN, "a caller asked to repeat a job that ended"),
        (None, blocked, Cause.CREATED, "the same, and it waits for other jobs"),
        (blocked, scheduled, Cause.UNBLOCKED, "all it waited for have ended well enough"),
        (blocked, cancelled, Cause.PARENT_FAILED, "one it waited for did not succeed"),
        (blocked, blocked, Cause.UPDATED, _CHANGED),
        (blocked, failed, Cause.PARENT_FAILED, "the same, where it shall fail instead"),
        (blocked, cancelled, Cause.CANCELLED, _ASKED),
        (blocked, expired, Cause.EXPIRED, _TOO_LATE),
        (scheduled, dispatched, Cause.CLAIMED, "due, not expired, and there is credit"),
        (scheduled, scheduled, Cause.UPDATED, _CHANGED),
        (scheduled, cancelled, Cause.CANCELLED, _ASKED),
        (scheduled, expired, Cause.EXPIRED, _TOO_LATE + ", or its total time"),
        (scheduled, failed, Cause.EXPIRED, "its total time is over, its handler had started"),
        (scheduled, succeeded, Cause.LATE_COMMIT, "swept or rescued, not claimed since; " + _OWN),
        (dispatched, running, Cause.STARTED, _OWN),
        (dispatched, scheduled, Cause.HANDED_BACK, _OWN),
        (dispatched, scheduled, Cause.SNOOZED, _OWN),
        (dispatched, scheduled, Cause.SWEPT, "past the dispatch deadline, no lock, same fence"),
        (dispatched, scheduled, Cause.RESCUED, _LEASE_GONE),
        (dispatched, failed, Cause.RESCUED, _LEASE_GONE + ", no attempts left"),
        (dispatched, cancelled, Cause.CANCELLED, _ASKED),
        (running, succeeded, Cause.SUCCEEDED, _OWN),
        (running, scheduled, Cause.RETRY, _OWN + ", attempts left"),
        (running, failed, Cause.FAILED, _OWN + ", no attempts left"),
        (running, scheduled, Cause.HANDED_BACK, _OWN),
        (running, scheduled, Cause.SNOOZED, _OWN),
        (running, scheduled, Cause.RESCUED, _LEASE_GONE),
        (running, failed, Cause.RESCUED, _LEASE_GONE + ", no attempts left"),
        (running, cancelled, Cause.CANCELLED, _ASKED),
    )
    return tuple(Transition(*row) for row in rows)


TRANSITIONS: tuple[Transition, ...] = _table()

_LEGAL = frozenset((step.source, step.target, step.cause) for step in TRANSITIONS)


def is_terminal(state: JobState) -> bool:
    """Whether a job in this state is over for good."""
    return state in TERMINAL


def allowed(source: JobState | None, target: JobState, cause: Cause) -> bool:
    """Whether the table holds this step."""
    return (source, target, cause) in _LEGAL


def sources_of(cause: Cause) -> frozenset[JobState]:
    """The states from which `cause` may move a job."""
    return frozenset(s.source for s in TRANSITIONS if s.cause is cause and s.source is not None)
