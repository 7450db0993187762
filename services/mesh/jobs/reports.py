"""What workers say about their attempts, and what the row answers."""

from __future__ import annotations

from collections.abc import Sequence
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
    elapsed: timedelta | None = None
    """Since then, by the worker's monotonic clock; dates the start."""


@record
class Succeeded:
    """The handler ended well, and its output is in place."""

    job_id: UUID
    fence: int
    worker_id: str
    output: Payload = NO_PAYLOAD
    elapsed: timedelta | None = None
    """As of `Started`; dates the start when none was reported."""


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


@record
class Successes:
    """Attempts of one worker that ended well, in columns: what most reports say."""

    worker_id: str
    keys: list[bytes]
    """The jobs' ids, 16 bytes each."""
    fences: list[int]
    elapsed_us: list[int]
    """0: not known."""
    outputs: list[bytes] | None
    """None: none of them has any."""
    content_type: str

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, places: Sequence[int]) -> Successes:
        """Those at these places."""
        return Successes(
            self.worker_id,
            [self.keys[at] for at in places],
            [self.fences[at] for at in places],
            [self.elapsed_us[at] for at in places],
            None if self.outputs is None else [self.outputs[at] for at in places],
            self.content_type,
        )

    def reports(self) -> list[Succeeded]:
        """A report each."""
        kind = self.content_type
        bare = Payload(kind) if kind else NO_PAYLOAD
        return [
            Succeeded(
                UUID(bytes=key),
                fence,
                self.worker_id,
                bare if self.outputs is None else Payload.inline(self.outputs[at], kind),
                timedelta(microseconds=took) if took > 0 else None,
            )
            for at, (key, fence, took) in enumerate(
                zip(self.keys, self.fences, self.elapsed_us, strict=True)
            )
        ]


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
