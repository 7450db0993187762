"""What a shard can do, as services see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from services.mesh.jobs.model import (
    BacklogStat,
    EventFilter,
    JobEvent,
    JobFilter,
    JobRecord,
    NewJob,
    Position,
)
from services.mesh.jobs.reports import Report, Successes
from services.mesh.jobs.schedules import NewSchedule, SchedulePut, ScheduleRecord
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Parent
from services.mesh.jobs.turns import Turn
from services.mesh.jobs.type_settings import RetentionRules
from services.mesh.store.answers import (
    BackfillAnswer,
    CancelAnswer,
    ChangeAnswer,
    ClaimAnswer,
    Ends,
    EventPage,
    FireAnswer,
    InFlight,
    JobChange,
    OutputReference,
    ProbeResult,
    Pulse,
    PurgeStep,
    PutAnswer,
    QueuePlace,
    RedriveAnswer,
    Release,
    ReportAnswer,
    Rescue,
    TriggerAnswer,
)


class ShardStore(Protocol):
    """One shard. Every method may raise ShardUnavailable; those that write, OutcomeUnknown too."""

    @property
    def name(self) -> str:
        """The shard's name."""
        ...

    @property
    def answers(self) -> int:
        """How many statements it has answered so far: one that answers others is not away, however
        long it leaves a probe waiting.
        """
        ...

    async def open(self) -> None:
        """Begin to connect. Returns at once; a shard that is away does not stop a service."""

    async def close(self) -> None:
        """Give all connections back. May be called twice."""

    def abandon(self) -> None:
        """End every call under way as if the connection had broken: the shard answers nobody."""

    def when_slow(self, tell: Callable[[], None]) -> None:
        """Have it told when a call takes long, while it is still under way: a shard that hangs says
        nothing, and is found by whoever waits for it sooner than by the next probe.
        """

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied."""

    async def probe(self, timeout: float = 0.5) -> ProbeResult:
        """Ask for a sign of life, on a connection of its own, so that a full pool is not a dead
        shard.
        """

    async def raise_epoch(self, epoch: int) -> int:
        """Refuse writers with an older map from now on; the epoch now in force.

        Returns when every put under an older epoch has ended.
        """

    # --- new jobs

    async def put_jobs(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None = None
    ) -> PutAnswer:
        """Write new jobs in one statement. Safe to repeat. May raise StaleEpoch.

        With a worker they are handed to it as well: they must be due at once, and never expire.

        Raises ShardUnavailable and StaleEpoch only if nothing was stored. What fails after some of
        them were is the result of the others; one that cannot be stored at all keeps none out.
        """

    async def put_tied_jobs(self, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        """Write new jobs with dependencies or unique keys. Safe to repeat. Raises as `put_jobs`.

        Those with `ties.waits` become BLOCKED: first mark the parents (`await_jobs`), and look at
        them once more afterwards.
        """

    async def cancel(
        self, ids: Sequence[UUID], reason: str = "", namespace: str | None = None
    ) -> CancelAnswer:
        """Cancel jobs at once, whatever they do; with `namespace`, only that tenant's."""

    async def redrive(
        self, ids: Mapping[UUID, UUID], namespace: str, epoch: int, traceparent: str | None = None
    ) -> RedriveAnswer:
        """Repeat ended jobs `{id: id of the new job}`. Safe to repeat. May raise StaleEpoch."""

    async def change(self, job_id: UUID, namespace: str, change: JobChange) -> ChangeAnswer:
        """Change time, priority or labels of a job that waits."""

    # --- jobs that wait for others

    async def await_jobs(self, jobs: Sequence[tuple[str, UUID]]) -> dict[tuple[str, UUID], Parent]:
        """Mark jobs `(namespace, id)` as awaited and say how they stand; those that exist."""

    async def parents(self, ids: Sequence[UUID]) -> list[Parent]:
        """How jobs stand that others wait for; those that exist."""

    async def release(self, parents: Sequence[Parent], limit: int = 1000) -> Release:
        """Take parents that have ended off the jobs of this shard that wait for them."""

    async def take_ended_parents(
        self, limit: int = 500, hold: timedelta = timedelta(seconds=5)
    ) -> list[Parent]:
        """Awaited jobs of this shard that have ended. Nobody else is given them for `hold`."""

    async def forget_ended_parents(self, ids: Sequence[UUID]) -> None:
        """All who waited for them, in whichever shard, are released."""

    async def check_blocked(self, limit: int = 500) -> list[UUID]:
        """The parents of jobs that have been BLOCKED for a while, the longer the more seldom."""

    async def waits_of(self, job_id: UUID) -> list[UUID]:
        """The jobs that a BLOCKED job still waits for."""

    # --- dispatch

    async def claim(
        self,
        type: str,
        worker_id: str,
        limit: int,
        ahead: timedelta = timedelta(0),
        recent: timedelta | None = None,
        below: int | None = None,
        turn: Turn | None = None,
    ) -> ClaimAnswer:
        """Take up to `limit` due jobs for a worker: highest priority, then longest due. `recent`
        leaves aside what has been due for longer, `below` that priority and those above. With a
        `turn` it begins with other namespaces than the one in front, from each an equal part.
        """

    async def claim_keyed(
        self, type: str, worker_id: str, limit: int, per_key: int, held: Mapping[UUID, int]
    ) -> ClaimAnswer:
        """The same, but of each limit key at most `per_key`, those `held` included."""

    async def report(
        self, reports: Sequence[Report], successes: Sequence[Successes] = ()
    ) -> ReportAnswer:
        """Commit what workers report. Replays are COMMITTED; superseded ones STALE."""

    async def pulse(
        self,
        start: datetime | None = None,
        width: timedelta = timedelta(0),
        limit: int = 1000,
        dispatch: timedelta = timedelta(0),
        *,
        deep: bool = True,
    ) -> Pulse:
        """What there is to do for the shard's keeper: the slot that begins at `start`, or at the
        shard's now, and schedules; if the look is a `deep` one, what else goes by time, too.
        Dispatches older than `dispatch` are overdue.

        May raise DeadlineExceeded: the shard answers, and so deep a look takes too long.
        """

    async def overdue_dispatches(self, older_than: timedelta, limit: int = 1000) -> list[InFlight]:
        """Dispatches that nobody started for so long; they may be lost. Writes, too: rows that
        outlived their dispatch go.
        """

    async def sweep(self, dispatches: Sequence[tuple[UUID, int]]) -> list[JobEvent]:
        """Take lost dispatches `(job id, fence)` back, unless they have moved on."""

    async def inflight_workers(self) -> list[str]:
        """The workers that hold jobs, by the rows."""

    async def rescue(self, worker_ids: Sequence[str], limit: int = 1000) -> Rescue:
        """Take back the jobs of workers without a lease. Call again while there may be `more`."""
        ...

    async def expire_overdue(self, limit: int = 1000) -> list[JobEvent]:
        """End the jobs whose expire time passed before they spent an attempt: EXPIRED; and those
        that wait past their total time: FAILED, or EXPIRED if their handler never started.
        """

    async def backlog(self, cap: int = 10_000) -> list[BacklogStat]:
        """The load per type; due jobs are counted up to `cap`."""

    # --- reading

    async def get_jobs(self, ids: Sequence[UUID], payloads: bool = False) -> list[JobRecord]:
        """The jobs that exist, in no particular order."""

    async def list_jobs(
        self, jobs: JobFilter, before: UUID | None, limit: int, payloads: bool = False
    ) -> list[JobRecord]:
        """A page of jobs, newest first; `before` is the last id of the page before."""

    async def match_jobs(self, jobs: JobFilter, before: UUID | None, limit: int) -> list[UUID]:
        """A page of ids, newest first; `before` is the last id of the page before."""

    async def count_jobs(self, jobs: JobFilter) -> dict[JobState, int]:
        """How many jobs are in each state that has some."""

    async def place_in_queue(self, job: JobRecord, cap: int = 10_000) -> QueuePlace:
        """How many due jobs of its type on this shard start before `job`, wherever that one is."""

    async def claims_per_second(self, type: str) -> float:
        """How fast jobs of a type were taken lately, by a sample of the newest commits."""

    async def versions(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """The newest version of each job that exists."""

    async def events_after(
        self, cursors: Sequence[tuple[UUID, int]], limit: int = 10_000
    ) -> list[JobEvent]:
        """The events of jobs after `(job id, version)`, by job and version."""

    async def ends(self, keys: Sequence[bytes], namespace: str | None = None) -> Ends:
        """The transitions that ended jobs, named by their 16 bytes; and which do not exist."""

    async def events_since(
        self, after: Position | None, limit: int, wanted: EventFilter | None = None
    ) -> EventPage:
        """The shard's events after a position; None begins at the horizon, with no events."""

    # --- schedules

    async def put_schedule(
        self, schedule: NewSchedule, replace: bool = False, version: int | None = None
    ) -> tuple[SchedulePut, ScheduleRecord | None]:
        """Create a schedule, or replace its definition. Jobs that it made are left alone.

        With `version`, only that version is replaced.
        """

    async def get_schedule(self, namespace: str, name: str) -> ScheduleRecord | None:
        """One schedule, None if there is none."""

    async def list_schedules(self, namespace: str, after: str, limit: int) -> list[ScheduleRecord]:
        """A page of schedules by name; `after` is the last name of the page before, or empty."""

    async def pause_schedule(
        self, namespace: str, name: str, paused: bool, note: str = ""
    ) -> ScheduleRecord | None:
        """Pause or resume; None if there is no such schedule."""

    async def delete_schedule(self, namespace: str, name: str) -> bool:
        """Delete a schedule; False if there was none. Jobs that it made are left alone."""

    async def fire_due_schedules(
        self, limit: int = 100, ahead: timedelta = timedelta(0)
    ) -> FireAnswer:
        """Make the jobs of schedules whose time has come, once per nominal time; with `ahead`, also
        of times so soon to come, where nothing has to be known by then.
        """

    async def trigger_schedule(self, namespace: str, name: str) -> TriggerAnswer | None:
        """Make one job now; None if there is no such schedule."""

    async def backfill_schedule(
        self, namespace: str, name: str, first: datetime, until: datetime, limit: int = 500
    ) -> BackfillAnswer | None:
        """Make the jobs of up to `limit` nominal times in `[first, until)` that made none; None if
        there is no such schedule. Safe to repeat.
        """

    # --- retention

    async def purge_order(self, older_than: timedelta, limit: int = 1000) -> int:
        """Shorten the order of events from its old end; how many entries went."""

    async def purge_jobs(self, rules: RetentionRules, limit: int = 500) -> PurgeStep:
        """Delete jobs that were kept for long enough: the next step of a walk over all.

        Never such as the order of events still names.
        """

    async def input_references(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that a job or a schedule refers to."""
        ...

    async def output_references(self, ids: Sequence[UUID]) -> list[OutputReference]:
        """Where the jobs that exist stand."""
        ...

    async def purge_names(self, limit: int = 1000) -> int:
        """Forget names of schedules that nothing refers to any more; how many. Each call looks at
        the next `limit` of them.
        """
