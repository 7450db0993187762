"""Records of schedules: a recurring definition that makes one job per nominal time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, unique
from uuid import UUID

from services.mesh.jobs.cron import DstGap, DstOverlap
from services.mesh.jobs.model import NO_PAYLOAD, NO_TIMEOUTS, Payload, Timeouts, no_labels
from services.mesh.jobs.overlap import Overlap
from services.mesh.jobs.recurrence import DEFAULT_CATCH_UP, AnyOf, CatchUpPolicy, Rule
from services.mesh.jobs.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """What each job of a schedule looks like."""

    type: str
    input: Payload = NO_PAYLOAD
    priority: int = 0
    timeouts: Timeouts = NO_TIMEOUTS
    retry: RetryPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=no_labels)
    concurrency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """What the owner of a schedule says about it. Kept as one document, so that it can grow."""

    recurrences: tuple[Rule, ...]
    template: JobTemplate
    catch_up: CatchUpPolicy = DEFAULT_CATCH_UP
    start_time: datetime | None = None
    """No nominal time before it; None: from its creation on."""
    end_time: datetime | None = None
    """No nominal time at or after it."""
    max_runs: int = 0
    """How many jobs it makes before it ends by itself; 0 is no limit."""
    jitter: timedelta = timedelta(0)
    """Each job is due at its nominal time plus a random part of this."""
    exclusions: tuple[Rule, ...] = ()
    """Times that are left out although a recurrence names them."""
    overlap: Overlap = Overlap.ALLOW_ALL
    pause_on_failure: bool = False
    dst_gap: DstGap = DstGap.RUN_AT_SHIFT
    dst_overlap: DstOverlap = DstOverlap.ONCE
    """Like the gap policy: what the owner said. The cron rules carry both."""

    @property
    def calendar(self) -> AnyOf:
        """Its nominal times, but for the bounds."""
        return AnyOf(self.recurrences, self.exclusions)

    @property
    def follows_runs(self) -> bool:
        """Whether it matters how its runs go."""
        return self.pause_on_failure or self.overlap is not Overlap.ALLOW_ALL


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule to be written.

    Its id was minted in the bucket of (namespace, name); its jobs get ids in that bucket, so they
    live beside it and are made in the transaction that advances it.
    """

    id: UUID
    namespace: str
    name: str
    definition: Definition
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """The row of a schedule."""

    id: UUID
    namespace: str
    name: str
    definition: Definition
    paused: bool
    pause_note: str
    next_time: datetime | None
    """The next nominal time; None once the schedule has ended."""
    last_time: datetime | None
    """The newest nominal time that made a job."""
    last_job_id: UUID | None
    runs: int
    """How many jobs it has made."""
    missed: int
    """How many nominal times were passed over."""
    version: int
    """Grows with each change of the definition or of `paused`; its etag."""
    create_time: datetime
    update_time: datetime
    open_jobs: tuple[UUID, ...] = ()
    """The jobs it made that had not ended when it last looked; kept if it `follows_runs`."""
    waiting: tuple[datetime, ...] = ()
    """Nominal times whose turn comes when the run before them has ended."""


@unique
class SchedulePut(Enum):
    """What became of a schedule to be written."""

    CREATED = "created"
    REPLACED = "replaced"
    EXISTS = "exists"
    """The name is taken and replacing was not asked for."""
    ETAG_MISMATCH = "etag_mismatch"
    """It changed since the version that the caller had read."""
    NOT_FOUND = "not_found"
    """A version was expected, and there is no such schedule."""
