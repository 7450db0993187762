"""A model of the job database: what each statement of the store does, in memory and in one piece.

Written down from the rules, not from the SQL. Which way an attempt's end takes (retry, give up, at
no cost) is asked of the same pure rules as the store asks; how rows, fences and events change is
written here a second time. `tests/unit/simulation` holds it against the suite that the Postgres
adapter passes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from services.mesh.jobs.model import JobEvent, JobRecord, NewJob
from services.mesh.jobs.reports import (
    Failed,
    HandedBack,
    Report,
    ReportOutcome,
    ReportResult,
    Started,
    Succeeded,
    Successes,
)
from services.mesh.jobs.retry import RetryPolicy
from services.mesh.jobs.states import TERMINAL, Cause, JobState
from services.mesh.jobs.turns import Turn, Turned
from services.mesh.store import claiming
from services.mesh.store.answers import (
    CancelAnswer,
    CancelOutcome,
    CancelResult,
    ClaimAnswer,
    DueTime,
    FireAnswer,
    InFlight,
    ProbeResult,
    Pulse,
    PurgeStep,
    PutAnswer,
    PutOutcome,
    PutResult,
    ReportAnswer,
    Rescue,
    Slot,
)
from services.mesh.store.settling import (
    Settlement,
    Standing,
    settle_failed,
    settle_handed_back,
    settle_rescued,
    settle_swept,
)
from tests.simulation.rows import Row, claimed, in_line, record

S, D, R = JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING
_PROOFS: dict[type[Report], frozenset[Cause]] = {
    Succeeded: frozenset({Cause.SUCCEEDED, Cause.LATE_COMMIT}),
    Failed: frozenset({Cause.RETRY, Cause.FAILED}),
    HandedBack: frozenset({Cause.HANDED_BACK, Cause.SNOOZED}),
}
_PROOFS[Started] = frozenset({Cause.STARTED}).union(*_PROOFS.values())


#: What a claim takes, as it says: slow ones make the next ones leave aside what was due before.
LOOK_SECONDS = (0.0, 0.0, 0.03, 0.3)


class ModelShard:
    """What `PostgresShard` does, as far as the simulation asks for it."""

    def __init__(self, name: str, now: Callable[[], datetime], random: Random) -> None:
        self.name = name
        self.rows: dict[UUID, Row] = {}
        self._keys: dict[tuple[str, str], UUID] = {}
        self._now, self._random = now, random
        self._looks = Random(name)
        #: Jobs that were in a worker's hands as they were stored.
        self.handed = 0

    # --- the shard itself

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    answers = 0

    def abandon(self) -> None: ...

    def when_slow(self, tell: Callable[[], None]) -> None: ...

    async def migrate(self) -> list[str]:
        return []

    async def probe(self, timeout: float = 0.5) -> ProbeResult:
        return ProbeResult(self._now(), UUID(int=1), 0, True, 1)

    # --- new jobs

    async def put_jobs(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None = None
    ) -> PutAnswer:
        results, events = [], []
        for job in jobs:
            result, event = self._put(job)
            if event is not None:
                events.append(event)
                if worker_id is not None:
                    self._hand_out(self.rows[job.id], worker_id, result.create_time)
                    result = replace(result, handed=True)
                    self.handed += 1
            results.append(result)
        return PutAnswer(results, events)

    def _put(self, job: NewJob) -> tuple[PutResult, JobEvent | None]:
        now = self._now()
        known = self.rows.get(job.id)
        if known is None and job.idempotency_key:
            taken = self._keys.get((job.namespace, job.idempotency_key))
            known = self.rows[taken] if taken is not None else None
        if known is not None:
            same = known.new.request_hash == job.request_hash
            outcome = PutOutcome.EXISTING if same else PutOutcome.CONFLICT
            outcome = PutOutcome.CREATED if known.new.id == job.id else outcome
            row = known
            what = (row.new.id, row.state, row.version, row.due_time, row.create_time, False)
            return PutResult(outcome, *what), None
        due = max(now + (job.delay or timedelta(0)), job.due_time or now)
        row = self.rows[job.id] = Row(job, due, due, now)
        if job.idempotency_key:
            self._keys[job.namespace, job.idempotency_key] = job.id
        event = self._log(row, S, Cause.CREATED, worker_id=None, due=due)
        return PutResult(PutOutcome.CREATED, job.id, S, 1, due, now, due <= now), event

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
        now = self._now()
        since = now - recent if recent is not None else None
        due = [
            row
            for row in self._waiting(type)
            if row.due_time <= now + ahead and not self._late(row)
        ]
        due.sort(key=in_line)
        first, turned = [], None
        if turn is not None:
            first, turned = self._in_turn(type, due, turn, limit)
        begun = {row.new.id for row in first}
        line = [
            row
            for row in due
            if (since is None or row.due_time >= since)
            and (below is None or row.new.priority < below)
            and row.new.id not in begun
        ][: limit - len(first)]
        taken = sorted([*first, *line], key=in_line)
        for row in taken:
            self._hand_out(row, worker_id, now)
        return ClaimAnswer(
            [claimed(row) for row in taken],
            now,
            took=self._looks.choice(LOOK_SECONDS),
            lowest=line[-1].new.priority if line else 0,
            crowd=line[-1].new.namespace if line else "",
            turned=turned,
        )

    def _hand_out(self, row: Row, worker_id: str, now: datetime) -> None:
        row.state, row.version = D, row.version + 1
        row.fence, row.attempt = row.fence + 1, row.attempt + 1
        row.worker_id, row.dispatch_time, row.start_time = worker_id, now, None
        self._log(row, D, Cause.CLAIMED, worker_id=worker_id)

    def _in_turn(
        self, type_: str, due: list[Row], turn: Turn, limit: int
    ) -> tuple[list[Row], Turned]:
        """An equal part for each of the next namespaces that have something due."""
        wanted: dict[str, list[Row]] = {}
        for row in due:
            if turn.least is None or row.new.priority >= turn.least:
                wanted.setdefault(row.new.namespace, []).append(row)
        names = sorted({row.new.namespace for row in self._waiting(type_)} - {turn.besides})
        found, last = _walked([name for name in names if name > turn.after], wanted, limit)
        if not found and not last and turn.after:
            found, last = _walked(names, wanted, limit)
        part = limit // max(1, len(found))
        rows = [row for name in found for row in wanted[name][:part]]
        took = self._looks.choice(LOOK_SECONDS)
        return rows, Turned(len(rows), len(found), last, took)

    def _waiting(self, type_: str | None = None) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.state is S and (type_ is None or row.new.type == type_)
        ]

    def _late(self, row: Row) -> bool:
        expire = row.new.expire_time
        return expire is not None and expire <= self._now() and row.attempt == 0

    async def pulse(
        self,
        start: datetime | None = None,
        width: timedelta = timedelta(0),
        limit: int = 1000,
        dispatch: timedelta = timedelta(0),
        *,
        deep: bool = True,
    ) -> Pulse:
        now = self._now()
        begin = now if start is None else start
        due: dict[tuple[datetime, str], int] = {}
        for row in self._waiting():
            if begin <= row.due_time < begin + width:
                at = row.due_time, row.new.type
                due[at] = due.get(at, 0) + 1
        found = [DueTime(type_, time, count) for (time, type_), count in sorted(due.items())]
        expiries = [
            row.new.expire_time
            for row in self._waiting()
            if row.new.expire_time and not row.attempt
        ]
        since: dict[str, datetime] = {}
        for row in self._waiting() if deep else ():
            if row.due_time <= now:
                since[row.new.type] = min(row.due_time, since.get(row.new.type, now))
        return Pulse(
            slot=Slot(now, begin, begin + width, found[:limit]),
            due_types=sorted(since),
            due_since=[since[type_] for type_ in sorted(since)],
            next_schedule=None,
            next_expiry=min(expiries, default=None) if deep else None,
            in_flight=deep and bool(self._held()),
            overdue=deep and any((r.dispatch_time or now) < now - dispatch for r in self._held()),
            deep=deep,
            took=self._looks.choice(LOOK_SECONDS),
        )

    async def fire_due_schedules(
        self, limit: int = 100, ahead: timedelta = timedelta(0)
    ) -> FireAnswer:
        return FireAnswer([], 0, 0)

    # --- what no job of the simulation makes necessary

    async def take_ended_parents(
        self, limit: int = 500, hold: timedelta = timedelta(seconds=5)
    ) -> list[Any]:
        return []

    async def check_blocked(self, limit: int = 500) -> list[UUID]:
        return []

    async def purge_order(self, older_than: timedelta, limit: int = 1000) -> int:
        return 0

    async def purge_jobs(self, rules: Any, limit: int = 500) -> PurgeStep:
        return PurgeStep(0, 0, done=True)

    async def purge_names(self, limit: int = 1000) -> int:
        return 0

    # --- repairs

    async def overdue_dispatches(self, older_than: timedelta, limit: int = 1000) -> list[InFlight]:
        old = self._now() - older_than
        return [
            InFlight(row.new.id, row.fence, row.worker_id or "", row.new.type)
            for row in self.rows.values()
            if row.state is D and row.dispatch_time is not None and row.dispatch_time < old
        ][:limit]

    async def inflight_workers(self) -> list[str]:
        return sorted({row.worker_id or "" for row in self._held()})

    def _held(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state in (D, R)]

    # --- reports

    async def report(
        self, said: Sequence[Report], successes: Sequence[Successes] = ()
    ) -> ReportAnswer:
        """Successes in columns become reports: the model has one way to commit."""
        plain = [report for one in successes for report in one.reports()]
        answer = await self._reported([*plain, *said])
        outcomes = [result.outcome for result in answer.results[: len(plain)]]
        return ReportAnswer(answer.results[len(plain) :], answer.events, [], outcomes)

    async def _reported(self, reports: Sequence[Report]) -> ReportAnswer:
        events: list[JobEvent] = []
        ends = {_dispatch(report) for report in reports if not isinstance(report, Started)}
        # A start whose end is in the same batch is part of that end.
        for report in sorted(reports, key=lambda r: isinstance(r, Started)):
            if not isinstance(report, Started) or _dispatch(report) not in ends:
                events += self._report(report)
        return ReportAnswer([self._answer(report) for report in reports], events)

    def _report(self, report: Report) -> list[JobEvent]:
        row = self.rows.get(report.job_id)
        if row is None or row.fence != report.fence or row.worker_id != report.worker_id:
            return []
        match report:
            case Started():
                return [self._start(row)] if row.state is D else []
            case Succeeded():
                return self._succeed(row, report) if row.state in (S, D, R) else []
            case Failed():
                if row.state not in (D, R):
                    return []
                return self._settle(settle_failed(report, self._standing(row), self._random))
            case HandedBack():
                return self._settle(settle_handed_back(report))

    def _start(self, row: Row) -> JobEvent:
        row.state, row.version, row.start_time = R, row.version + 1, self._now()
        return self._log(row, R, Cause.STARTED, worker_id=row.worker_id)

    def _succeed(self, row: Row, report: Succeeded) -> list[JobEvent]:
        late = row.state is S
        if late:
            row.attempt = max(event.attempt for event in row.events if event.fence == row.fence)
        events = [self._start(row)] if row.state is D else []
        row.state, row.version = JobState.SUCCEEDED, row.version + 1
        row.end_time, row.output, row.failure = self._now(), report.output, None
        cause = Cause.LATE_COMMIT if late else Cause.SUCCEEDED
        return [*events, self._log(row, row.state, cause, worker_id=row.worker_id)]

    def _standing(self, row: Row) -> Standing:
        policy = RetryPolicy.from_json(row.policy.to_json() if row.policy else None)
        elapsed = self._now() - row.first_due_time
        return Standing(row.attempt, row.losses, policy, row.new.timeouts.total, elapsed)

    def _settle(self, end: Settlement) -> list[JobEvent]:
        row = self.rows.get(end.job_id)
        if row is None or row.fence != end.fence or row.state not in (D, R):
            return []
        if row.state > end.source or end.worker_id not in (None, row.worker_id):
            return []
        events = [self._start(row)] if end.ran and row.state is D else []
        attempt, worker = row.attempt, row.worker_id
        row.state, row.version = end.target, row.version + 1
        row.attempt -= int(end.refund)
        row.losses += int(end.loss)
        row.due_time = row.due_time if end.delay is None else self._now() + end.delay
        row.worker_id = worker if end.keep_worker else None
        row.failure = end.failure or row.failure
        row.end_time = self._now() if end.target is JobState.FAILED else None
        due = row.due_time if end.target is S else None
        return [*events, self._log(row, row.state, end.cause, worker, due, attempt)]

    def _answer(self, report: Report) -> ReportResult:
        row = self.rows.get(report.job_id)
        if row is None:
            return ReportResult(report.job_id, report.fence, ReportOutcome.NOT_FOUND, None)
        proofs = _PROOFS[type(report)]
        proven = any(
            event.fence == report.fence
            and event.worker_id == report.worker_id
            and event.cause in proofs
            for event in row.events
        )
        outcome = ReportOutcome.COMMITTED if proven else ReportOutcome.STALE
        return ReportResult(report.job_id, report.fence, outcome, row.state)

    # --- by other hands

    async def sweep(self, dispatches: Sequence[tuple[UUID, int]]) -> list[JobEvent]:
        return self._settle_all(settle_swept(job_id, fence) for job_id, fence in dispatches)

    async def rescue(self, worker_ids: Sequence[str], limit: int = 1000) -> Rescue:
        held = [row for row in self._held() if row.worker_id in worker_ids][:limit]
        events = self._settle_all(
            settle_rescued(row.new.id, row.fence, self._standing(row), self._random) for row in held
        )
        return Rescue(events, more=len(held) >= limit)

    def _settle_all(self, ends: Iterable[Settlement]) -> list[JobEvent]:
        return [event for end in list(ends) for event in self._settle(end)]

    async def cancel(
        self, ids: Sequence[UUID], reason: str = "", namespace: str | None = None
    ) -> CancelAnswer:
        results, events = [], []
        for job_id in ids:
            row = self.rows.get(job_id)
            if row is None:
                results.append(CancelResult(job_id, CancelOutcome.NOT_FOUND, None))
            elif row.state in TERMINAL:
                outcome = CancelOutcome.ALREADY_TERMINAL
                results.append(CancelResult(job_id, outcome, row.state))
            else:
                held = (row.worker_id, row.fence) if row.state in (D, R) else (None, 0)
                row.state, row.version = JobState.CANCELLED, row.version + 1
                row.end_time = self._now()
                outcome = CancelOutcome.CANCELLED
                results.append(CancelResult(job_id, outcome, row.state, *held))
                events.append(self._log(row, row.state, Cause.CANCELLED, row.worker_id))
        return CancelAnswer(results, events)

    async def expire_overdue(self, limit: int = 1000) -> list[JobEvent]:
        events = []
        for row in [row for row in self._waiting() if self._late(row)][:limit]:
            row.state, row.version = JobState.EXPIRED, row.version + 1
            row.end_time = self._now()
            events.append(self._log(row, row.state, Cause.EXPIRED, row.worker_id))
        return events

    # --- reading

    async def get_jobs(self, ids: Sequence[UUID], payloads: bool = False) -> list[JobRecord]:
        return [record(self.rows[job_id]) for job_id in ids if job_id in self.rows]

    async def events_after(
        self, cursors: Sequence[tuple[UUID, int]], limit: int = 10_000
    ) -> list[JobEvent]:
        return [
            event
            for job_id, version in cursors
            if job_id in self.rows
            for event in self.rows[job_id].events
            if event.version > version
        ][:limit]

    def _log(
        self,
        row: Row,
        state: JobState,
        cause: Cause,
        worker_id: str | None,
        due: datetime | None = None,
        attempt: int | None = None,
    ) -> JobEvent:
        event = JobEvent(
            job_id=row.new.id,
            version=row.version,
            state=state,
            cause=cause,
            time=self._now(),
            attempt=row.attempt if attempt is None else attempt,
            fence=row.fence,
            worker_id=worker_id,
            due_time=due,
            failure=None,
            note=None,
            namespace=row.new.namespace,
            type=row.new.type,
        )
        row.events.append(event)
        return event


def _walked(names: list[str], wanted: Container[str], limit: int) -> tuple[list[str], str]:
    """The first that are wanted, and where the walk stopped before its end."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        found += [name] if name in wanted else []
        if number == claiming.TURN_STEPS or len(found) == min(limit, claiming.TURN_NAMESPACES):
            return found, name
    return found, ""


def _dispatch(report: Report) -> tuple[UUID, int]:
    return report.job_id, report.fence
