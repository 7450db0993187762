"""What holds for all jobs of one type: defaults of its jobs, limits, how long ended ones are kept.

Defaults become part of a job when it is made, by whoever makes it (Enqueue for what is submitted,
the firing of schedules for theirs): a change holds for jobs made afterwards. Limits and retention
are looked up when they matter, so that a change holds for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from services.mesh.jobs.model import NO_TIMEOUTS, NewJob, Timeouts
from services.mesh.jobs.retry import RetryPolicy
from services.mesh.jobs.states import JobState


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept, counted from their end. None: the mesh's own setting."""

    succeeded: timedelta | None = None
    failed: timedelta | None = None
    cancelled: timedelta | None = None
    expired: timedelta | None = None

    def by_state(self) -> dict[int, timedelta | None]:
        """The same by the numbers of the states."""
        return {
            JobState.SUCCEEDED: self.succeeded,
            JobState.FAILED: self.failed,
            JobState.CANCELLED: self.cancelled,
            JobState.EXPIRED: self.expired,
        }


NO_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What the mesh says, for every state; and what types say themselves."""

    mesh: Retention
    types: Mapping[str, Retention] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TypeSettings:
    """The settings of one type. 0 is no limit."""

    type: str
    retry: RetryPolicy | None = None
    timeouts: Timeouts = NO_TIMEOUTS
    max_running: int = 0
    max_running_per_key: int = 0
    retention: Retention = NO_RETENTION

    @property
    def limited(self) -> bool:
        return self.max_running > 0 or self.max_running_per_key > 0


def with_defaults(job: NewJob, settings: TypeSettings | None) -> NewJob:
    """The job, with what it does not say itself; each bound of time by itself."""
    if settings is None or (settings.retry is None and settings.timeouts == NO_TIMEOUTS):
        return job
    said, default = job.timeouts, settings.timeouts
    timeouts = Timeouts(
        run=default.run if said.run is None else said.run,
        start=default.start if said.start is None else said.start,
        progress=default.progress if said.progress is None else said.progress,
        total=default.total if said.total is None else said.total,
    )
    return replace(
        job,
        retry=settings.retry if job.retry is None else job.retry,
        timeouts=NO_TIMEOUTS if timeouts == NO_TIMEOUTS else timeouts,
    )
