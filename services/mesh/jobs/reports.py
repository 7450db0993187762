"""What workers say about their attempts, and what the row answers."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, unique
from uuid import UUID

from services.mesh.jobs.model import NO_PAYLOAD, Payload, Progress
from services.mesh.jobs.record import record
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import JobState


@record
class Started:
    """The handler began."""

    job_id: UUID
    fence: int
    worker_id: str


@record
class Succeeded:
    """The handler ended well, and its output is in place."""

    job_id: UUID
    fence: int
    worker_id: str
    output: Payload = NO_PAYLOAD
    elapsed: timedelta | None = None
    """How long it ran by the worker's monotonic clock; dates the start when none was reported."""


@record
class Failed:
    """The handler ended badly."""

    job_id: UUID
    fence: int
    worker_id: str
    failure: Failure
    elapsed: timedelta | None = None
    retry_after: timedelta | None = None
    """The handler asks to be retried no sooner than this; the policy may say later."""


@record
class HandedBack:
    """The worker gives the job back unharmed (drain, a dependency away), or the handler asked to
    run later.
    """

    job_id: UUID
    fence: int
    worker_id: str
    note: str = ""
    delay: timedelta | None = None
    """None keeps the due time, so that the job stands first in line."""
    snoozed: bool = False
    """The handler ran, and asked for it."""
    elapsed: timedelta | None = None


@record
class Progressed:
    """The handler said how far it is."""

    job_id: UUID
    fence: int
    worker_id: str
    progress: Progress


@record
class Checkpointed:
    """The handler stored where it stands; without data, it forgets that."""

    job_id: UUID
    fence: int
    worker_id: str
    state: Payload


Report = Started | Succeeded | Failed | HandedBack | Progressed | Checkpointed


@unique
class ReportOutcome(Enum):
    """What became of a report."""

    COMMITTED = "committed"
    """It is in the row, now or since an earlier copy of it."""
    STALE = "stale"
    """The job moved on without this attempt: stop it, do not retry."""
    NOT_FOUND = "not_found"


@record
class ReportResult:
    """The answer to one report. `state` is the row's after it, None if there is no row."""

    job_id: UUID
    fence: int
    outcome: ReportOutcome
    state: JobState | None
