"""How attempts end in any way but success: one row of the statement `settle` per attempt.

Reports of failure, hand backs, sweeps and rescues differ in what they cost, when the job is due
again, and whether the worker may still commit. This module turns each into a `Settlement`; one
statement applies them all, each under its fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from random import Random
from uuid import UUID

from services.mesh.jobs.model import JobEvent, Timeouts
from services.mesh.jobs.record import record
from services.mesh.jobs.reports import Failed, HandedBack
from services.mesh.jobs.retry import (
    Failure,
    FailureKind,
    GiveUp,
    NoCost,
    RetryPolicy,
    decide,
)
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.arrays import (
    Booleans,
    Integers,
    Smallints,
    Texts,
    Uuids,
    milliseconds,
)
from services.mesh.store.connection import Row
from services.mesh.store.rows import CAUSES, STATES, to_json

LOST = Failure("WorkerLost", "the worker's lease ended", kind=FailureKind.LOST)


@record
class Settlement:
    """The end of one attempt."""

    job_id: UUID
    fence: int
    target: JobState
    cause: Cause
    worker_id: str | None = None
    """Whose attempt it must be; None: whoever's."""
    source: JobState = JobState.RUNNING
    """DISPATCHED: only if it has not started."""
    refund: bool = False
    """The attempt is given back."""
    loss: bool = False
    delay: timedelta | None = None
    """None keeps the due time."""
    keep_worker: bool = False
    """The worker may still commit, as long as nobody claims the job."""
    ran: bool = False
    """The handler ran: a start that was not reported is recorded."""
    elapsed: timedelta | None = None
    failure: Failure | None = None
    note: str | None = None


@record
class Standing:
    """What a decision needs to know about a job."""

    attempt: int
    losses: int
    policy: RetryPolicy
    total: timedelta | None
    elapsed: timedelta
    """Since it was first due."""

    @classmethod
    def from_row(cls, row: Row) -> Standing:
        """Read attempt, losses, retry, timeouts, elapsed."""
        attempt, losses, retry, timeouts, elapsed = row
        policy = RetryPolicy.from_json(retry)
        return cls(attempt, losses, policy, Timeouts.from_json(timeouts).total, elapsed)


def settle_handed_back(report: HandedBack) -> Settlement:
    """Given back unharmed: costs nothing."""
    return Settlement(
        report.job_id,
        report.fence,
        JobState.SCHEDULED,
        Cause.SNOOZED if report.snoozed else Cause.HANDED_BACK,
        worker_id=report.worker_id,
        refund=True,
        delay=report.delay,
        ran=report.snoozed,
        elapsed=report.elapsed,
        note=report.note or None,
    )


def settle_swept(job_id: UUID, fence: int) -> Settlement:
    """The dispatch seems lost: costs nothing."""
    return Settlement(
        job_id,
        fence,
        JobState.SCHEDULED,
        Cause.SWEPT,
        source=JobState.DISPATCHED,
        refund=True,
        keep_worker=True,
    )


def settle_failed(report: Failed, standing: Standing, random: Random) -> Settlement:
    """The handler failed: the policy decides."""
    end = _end_of(report.failure, standing, random, report.retry_after)
    return Settlement(
        report.job_id,
        report.fence,
        end.target,
        Cause.FAILED if end.target is JobState.FAILED else Cause.RETRY,
        worker_id=report.worker_id,
        refund=end.refund,
        loss=end.loss,
        delay=end.delay,
        ran=True,
        elapsed=report.elapsed,
        failure=report.failure,
        note=end.note,
    )


def settle_rescued(job_id: UUID, fence: int, standing: Standing, random: Random) -> Settlement:
    """The worker's lease is gone: costs nothing up to the budget."""
    end = _end_of(LOST, standing, random, None)
    return Settlement(
        job_id,
        fence,
        end.target,
        Cause.RESCUED,
        refund=end.refund,
        loss=True,
        delay=end.delay or None,
        keep_worker=True,
        failure=LOST,
        note=end.note,
    )


@record
class _End:
    target: JobState
    refund: bool = False
    loss: bool = False
    delay: timedelta | None = None
    note: str | None = None


def _end_of(
    failure: Failure, standing: Standing, random: Random, retry_after: timedelta | None
) -> _End:
    decision = decide(
        standing.policy,
        standing.attempt,
        standing.losses,
        failure,
        random,
        standing.elapsed,
    )
    if isinstance(decision, GiveUp):
        return _End(JobState.FAILED, note=decision.reason)
    after = max(decision.after, retry_after or timedelta(0))
    if standing.total is not None and standing.elapsed + after > standing.total:
        return _End(JobState.FAILED, note="its total time is over")
    lost = isinstance(decision, NoCost)
    return _End(JobState.SCHEDULED, refund=lost, loss=lost, delay=after)


def settle_params(settlements: Sequence[Settlement]) -> dict[str, object]:
    """The columns of a batch, in the order of ids, so that two batches never lock crosswise."""
    batch = sorted(settlements, key=lambda s: s.job_id.int)
    return {
        "ids": Uuids([s.job_id for s in batch]),
        "fences": Integers([s.fence for s in batch]),
        "workers": Texts([s.worker_id for s in batch]),
        "sources": Smallints([s.source for s in batch]),
        "targets": Smallints([s.target for s in batch]),
        "reasons": Smallints([s.cause for s in batch]),
        "refunds": Integers([int(s.refund) for s in batch]),
        "losses": Integers([int(s.loss) for s in batch]),
        "delays": milliseconds([s.delay for s in batch]),
        "keep_workers": Booleans([s.keep_worker for s in batch]),
        "ran": Booleans([s.ran for s in batch]),
        "elapsed": milliseconds([s.elapsed for s in batch]),
        "failures": Texts([to_json(s.failure) for s in batch]),
        "notes": Texts([s.note for s in batch]),
    }


def settled_events(row: Row, failure: Failure | None) -> list[JobEvent]:
    """The events of one row that `settle` returned."""
    job_id, namespace, type_, version, old_state, state, reason, attempt, fence = row[:9]
    worker_id, start_time, due_time, ran, note, now, awaited = row[9:]
    who = (attempt, fence, worker_id)
    events: list[JobEvent] = []
    if ran and old_state == JobState.DISPATCHED:
        began = (job_id, version - 1, JobState.RUNNING, Cause.STARTED, start_time)
        events.append(JobEvent(*began, *who, None, None, None, namespace, type_))
    due = due_time if state == JobState.SCHEDULED else None
    ended = (job_id, version, STATES[state], CAUSES[reason], now)
    event = JobEvent(*ended, *who, due, failure, note, namespace, type_, awaited=bool(awaited))
    events.append(event)
    return events
