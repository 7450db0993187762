"""What a shard answers, and what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum, unique
from uuid import UUID

from services.mesh.errors import MeshError
from services.mesh.jobs.model import (
    Claimed,
    EventColumns,
    JobEvent,
    JobProgress,
    Position,
)
from services.mesh.jobs.record import record
from services.mesh.jobs.reports import ReportOutcome, ReportResult
from services.mesh.jobs.states import JobState
from services.mesh.jobs.turns import Turned


@record
class ProbeResult:
    """What a shard says about itself."""

    now: datetime
    incarnation: UUID
    """Identity of the database's contents."""
    epoch: int
    writable: bool
    """False in recovery and when set to read-only."""
    next_xid: int
    """Only grows; a smaller one than before means that the shard was restored from an older copy.
    """
    durable: bool = True
    """Whether what it commits is on disk by then."""


@unique
class PutOutcome(Enum):
    """What became of one new job."""

    CREATED = "created"
    EXISTING = "existing"
    """The same request was stored before; `job_id` is the first one's."""
    CONFLICT = "conflict"
    """The key was used before with other content; `job_id` is the first one's."""
    HELD = "held"
    """A live job holds the unique key, and the policy, or that job, does not let it be changed;
    `job_id` is the holder's.
    """
    REPLACED = "replaced"
    """The job that holds the unique key took the new content."""


@record
class PutResult:
    """The answer to one new job."""

    outcome: PutOutcome
    job_id: UUID
    state: JobState
    version: int
    due_time: datetime
    create_time: datetime
    due_now: bool
    """Due at the time of the statement: worth a nudge when CREATED."""
    handed: bool = False
    """With its second version, of the same statement, it is in a worker's hands."""


PutResults = list[PutResult | MeshError]


class PutAnswer:
    """One result per job, in order. `time` is set if all of them were created then, and due then;
    `handed`, if that put them into a worker's hands.

    An error stands for its own job only: others may have been stored before it came.

    The events are made when they are looked at, which is rare: nobody can follow a job before it
    has an id. So may the results be.
    """

    __slots__ = ("_events", "_results", "delivered", "handed", "time", "took")

    def __init__(
        self,
        results: PutResults | Callable[[], PutResults],
        events: list[JobEvent] | Callable[[], list[JobEvent]],
        time: datetime | None = None,
        *,
        handed: bool = False,
    ) -> None:
        self._results, self._events, self.time, self.handed = results, events, time, handed
        #: Whether those that were handed to a worker were sent there, too.
        self.delivered = False
        #: Seconds that the shard needed, and what was done to find out what became of them.
        self.took = 0.0

    @property
    def results(self) -> PutResults:
        return self._results() if callable(self._results) else self._results

    @property
    def events(self) -> list[JobEvent]:
        return self._events() if callable(self._events) else self._events


@record
class ClaimAnswer:
    """The claimed jobs, in the order in which they should start. Each tells its transition, too."""

    jobs: list[Claimed]
    now: datetime
    """The shard's clock when it looked."""
    skipped: bool = False
    """Some are due and were passed over, since their keys have no room."""
    more: bool = False
    """There are others that it did not look at."""
    took: float = 0.0
    """Seconds, by the shard's clock; 0: not known."""
    lowest: int = 0
    """The priority of the last job from the line, the lowest there."""
    crowd: str = ""
    """The namespace of the last job from the line; "": none is from there."""
    turned: Turned | None = None
    """What it brought before that, if it began with namespaces in turn."""


@record
class ReportAnswer:
    """One result per report, in order; the events, and the progress that was accepted. Of what came
    in columns the outcomes, in order, and the events, in columns too.
    """

    results: list[ReportResult]
    events: list[JobEvent]
    progress: list[JobProgress] = field(default_factory=list)
    outcomes: list[ReportOutcome] = field(default_factory=list)
    columns: list[EventColumns] = field(default_factory=list)


@unique
class CancelOutcome(Enum):
    """What became of one cancellation."""

    CANCELLED = "cancelled"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"
    UNRESOLVED = "unresolved"
    """It was not cancelled; the shard could not be asked why."""


@record
class CancelResult:
    """The answer for one id. `worker_id` and `fence` are set if an attempt was in flight."""

    job_id: UUID
    outcome: CancelOutcome
    state: JobState | None
    worker_id: str | None = None
    fence: int = 0


@record
class CancelAnswer:
    """One result per id, in order."""

    results: list[CancelResult]
    events: list[JobEvent]


@unique
class RedriveOutcome(Enum):
    """What became of one wish to repeat a job."""

    CREATED = "created"
    EXISTING = "existing"
    """The job that an earlier wish made is still live."""
    REFUSED = "refused"
    """It has not ended, or it succeeded."""
    NOT_FOUND = "not_found"
    HELD = "held"
    """Another live job, `redrive_id`, holds its unique key."""


@record
class RedriveResult:
    """The answer for one id. `redrive_id` is the job that repeats it, `state` where it stands."""

    job_id: UUID
    outcome: RedriveOutcome
    redrive_id: UUID | None = None
    state: JobState | None = None


@record
class RedriveAnswer:
    """One result per id, in order."""

    results: list[RedriveResult]
    events: list[JobEvent]


@record
class JobChange:
    """What to change about a job that waits. None leaves a field as it is."""

    move: bool = False
    """Whether to take `due_time`."""
    due_time: datetime | None = None
    """None: the shard's now."""
    priority: int | None = None
    labels: Mapping[str, str] | None = None
    """All of them: those that are not named go."""
    version: int = 0
    """Only if this is the job's version; 0: whatever it is."""


@unique
class ChangeOutcome(Enum):
    """What became of one change."""

    CHANGED = "changed"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    """It does not wait: somebody has it, or it has ended."""
    OTHER_VERSION = "other_version"
    PAST_EXPIRY = "past_expiry"
    """It would expire before it is due."""


@record
class ChangeAnswer:
    """The outcome; `state` is where the job stands; the event, if there is one."""

    outcome: ChangeOutcome
    state: JobState | None = None
    event: JobEvent | None = None
    due_now: bool = False


@record
class QueuePlace:
    """Where a job stands in the queue of its type on one shard."""

    now: datetime
    ahead: int
    capped: bool
    """More are before it."""


@record
class DueTime:
    """Jobs of one type that become due together."""

    type: str
    due_time: datetime
    count: int


@record
class Slot:
    """The due times in `[start, end)`, oldest first; `end` is earlier than asked if `limit` was
    hit.
    """

    now: datetime
    start: datetime
    end: datetime
    due_times: list[DueTime]


@record
class Pulse:
    """What a keeper wants to know of its shard every few seconds."""

    slot: Slot
    due_types: list[str]
    """Types that have due jobs."""
    next_schedule: datetime | None
    """When a schedule wants to be looked at next."""
    next_expiry: datetime | None
    in_flight: bool
    """Jobs are in the hands of workers."""
    overdue: bool
    """Some of them since as long as was asked about."""
    next_release: datetime | None = None
    """When the end of a job that others wait for wants to be told next."""
    next_check: datetime | None = None
    """When the parents of a BLOCKED job want to be looked at next."""
    due_since: list[datetime] = field(default_factory=list)
    """The due time of the oldest due job of each of the `due_types`."""
    deep: bool = True
    """Only then was anything looked for besides the slot and schedules."""
    took: float = 0.0
    """Seconds that the shard needed for all this."""


@record
class InFlight:
    """A dispatch that has not ended."""

    job_id: UUID
    fence: int
    worker_id: str
    type: str


@record
class Ends:
    """How jobs ended, of those that have; and the ids, as 16 bytes, of those that do not exist."""

    events: list[JobEvent]
    unknown: list[bytes]


@record
class EventPage:
    """Events in the shard's order, and where to go on."""

    events: list[JobEvent]
    next: Position
    """Everything before it is in this page, or was before it."""
    more: bool
    """The page is full; ask again at once."""
    truncated: bool
    """Events after the given position have been purged: the stream has a gap."""
    next_xid: int
    """Whatever was committed before this page was read has a smaller transaction."""
    lasting: Position
    """The same place as `next`, by its last transaction: no crash gives that number out again."""


@record
class PurgeStep:
    """What one step of the walk over ended jobs did."""

    gone: int
    seen: int
    done: bool
    """The walk has come to its end; the next step begins anew."""


@record
class OutputReference:
    """What decides about objects that a job's attempts wrote."""

    job_id: UUID
    ended: bool
    fence: int
    key: str | None
    """That of its output, if it has one in the store."""


@record
class FireAnswer:
    """What the due schedules made."""

    events: list[JobEvent]
    fired: int
    missed: int
    """Nominal times passed over."""
    cancelled: list[CancelResult] = field(default_factory=list)
    """Runs that had to make way."""
    more: bool = False
    """Others may be due: ask again at once."""
    moved: int = 0
    """Schedules that were moved on, whatever they made."""


@record
class TriggerAnswer:
    """The job that was asked for."""

    job_id: UUID
    type: str
    events: list[JobEvent]


@record
class BackfillAnswer:
    """What became of a part of a backfill."""

    made: int
    waiting: int
    left_out: int
    further: datetime | None
    """Where to go on; None: it is done."""
    events: list[JobEvent]
    cancelled: list[CancelResult]
    type: str


@record
class Rescue:
    """What was taken back from workers without a lease."""

    events: list[JobEvent]
    more: bool
    """They may hold others, however few of those that were looked at came back: ask again."""


@record
class Release:
    """Who was released, or ended, since parents of theirs have ended."""

    events: list[JobEvent]
    more: bool
    """Others wait for the same parents: ask again at once."""
