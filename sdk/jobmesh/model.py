"""Jobs, events and schedules as plain values, read-only.

Each keeps the message it was made from in `message`, for whatever is not spelled out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message


class JobState(StrEnum):
    """The place of a job in its life."""

    #: A state this version does not know; not terminal.
    UNKNOWN = "UNKNOWN"
    SCHEDULED = "SCHEDULED"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    BLOCKED = "BLOCKED"

    @property
    def terminal(self) -> bool:
        """Whether nothing changes any more."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed."""

    type: str
    message: str
    traceback: str = ""
    permanent: bool = False
    #: Of a program, or of an executor process that died; None: there was none.
    exit_code: int | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running handler said last about its advance; total is 0 when unknown."""

    done: float
    total: float
    message: str

    @property
    def percent(self) -> float | None:
        """From 0 to 100; None when the total is unknown."""
        return min(100.0, 100 * self.done / self.total) if self.total > 0 else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One numbered try of a job. `outcome` is empty while it runs."""

    attempt: int
    dispatch_no: int
    worker_id: str
    dispatch_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    outcome: str
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Job:
    """One submitted unit of work. Times are aware and in UTC."""

    id: str
    namespace: str
    type: str
    state: JobState
    version: int
    attempt: int
    priority: int
    labels: Mapping[str, str]
    create_time: datetime | None
    due_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    worker_id: str
    schedule: str
    #: The instant this job stands for, if a schedule made it.
    nominal_time: datetime | None
    shard: str
    failure: Failure | None
    progress: Progress | None
    attempts: tuple[Attempt, ...]
    message: Message = field(repr=False, compare=False)
    #: What was said of its end, such as the reason of a cancel; like the attempts, with `full`.
    end_note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is not running."""

    #: NOT_DUE, RETRY_BACKOFF, QUEUED, NO_WORKER, POOL_SCALING, PAUSED, BLOCKED, SHARD_AWAY…
    reason: str
    #: The same in words, with the numbers.
    text: str
    #: Due jobs of its type that are before it; at least as many if `position_capped`.
    position: int
    position_capped: bool
    #: When it will probably start, if that can be told.
    start_time: datetime | None
    message: Message = field(repr=False, compare=False)
    #: The jobs that a BLOCKED one still waits for.
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One committed transition, or (reason "SNAPSHOT") the state when the watch began.

    With reason "PROGRESS" it is no transition: the running handler said how far it is.
    """

    job_id: str
    namespace: str
    type: str
    version: int
    state: JobState
    reason: str
    time: datetime | None
    attempt: int
    worker_id: str
    failure: Failure | None
    #: When the next attempt is due, if the job goes back to SCHEDULED.
    due_time: datetime | None
    #: The job as it was, in a snapshot only.
    job: Job | None
    message: Message = field(repr=False, compare=False)
    #: How far the handler is; with reason "PROGRESS" only.
    progress: Progress | None = None
    #: What was said of it, such as the reason of a cancel.
    note: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a handler logged."""

    attempt: int
    time: datetime | None
    text: str
    #: The fence of the attempt: attempts that cost nothing share their number with the next one.
    dispatch_no: int
    #: Number of the line within its dispatch, from 1.
    number: int
    message: Message = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring definition that makes one job per nominal time."""

    name: str
    namespace: str
    type: str
    #: The rules in words: "every 300s", "cron 30 1 * * * Europe/Berlin".
    rules: tuple[str, ...]
    paused: bool
    pause_note: str
    next_time: datetime | None
    last_time: datetime | None
    last_job_id: str
    runs: int
    etag: str
    message: Message = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TypeSettings:
    """What holds for all jobs of one type."""

    type: str
    #: Attempts that may run at once in the whole mesh; 0: no limit.
    max_running: int
    #: Attempts with the same namespace and concurrency key that may run at once; 0: no limit.
    max_running_per_key: int
    #: What follows a failed attempt of a job that says nothing, in words; empty: as the handler
    #: asks.
    retry: str
    #: Bounds, in seconds, of jobs that say nothing: "run", "start", "progress", "total".
    timeouts: Mapping[str, float]
    #: Seconds that ended jobs are kept: "succeeded", "failed", "cancelled", "expired". What is
    #: missing is as the mesh is set.
    keep: Mapping[str, float]
    #: Empty if nothing was ever set, nor asked for by a handler.
    etag: str
    message: Message = field(repr=False, compare=False)
    #: What the handler itself asks for (`@job(retries=3)`), in words; empty: no retry.
    handler_retry: str = ""
    #: Seconds that an attempt may run by what the handler says (`@job(timeout=30)`); None: no word.
    handler_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A night on which the clocks of a schedule's time zone change."""

    time: datetime
    time_zone: str
    #: By how much they move: positive for forward.
    shift: timedelta
    #: The nominal times of that day.
    times: tuple[datetime, ...]
    #: What it does to the schedule, in words.
    effect: str


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """When a schedule is going to run."""

    times: tuple[datetime, ...]
    clock_changes: tuple[ClockChange, ...]
    #: There are more times than asked for.
    more: bool
    message: Message = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill did."""

    #: Jobs made.
    count: int
    #: Nominal times that wait for their turn, and those left out, by the overlap policy.
    waiting: int
    left_out: int
