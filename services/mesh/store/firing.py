"""The making of a schedule's jobs: one per nominal time, in the transaction that advances it.

Two schedulers may fire at the same time: each takes the schedules that the other has not locked. A
scheduler that dies between the statements has changed nothing. And should a nominal time come up
twice all the same (a restored definition, an edit, a backfill), the unique index on (schedule,
nominal time) lets it make no second job.

A schedule whose runs matter to it (overlap, pause on failure) remembers those that had not ended.
They live on the same shard, so the same transaction sees how they stand, and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from services.mesh.jobs.ids import bucket_of, new_job_id
from services.mesh.jobs.model import JobEvent, NewJob
from services.mesh.jobs.overlap import Admission, admit, look_again
from services.mesh.jobs.planning import plan, room, times_between
from services.mesh.jobs.recurrence import Firing as Plan
from services.mesh.jobs.schedules import ScheduleRecord
from services.mesh.jobs.states import TERMINAL, JobState
from services.mesh.jobs.type_settings import with_defaults
from services.mesh.store.answers import BackfillAnswer, CancelResult, FireAnswer, TriggerAnswer
from services.mesh.store.arrays import Bigints, Texts, Times, Uuids
from services.mesh.store.base import Int8, ShardBase
from services.mesh.store.connection import Row, Session
from services.mesh.store.definitions import definition_from_json
from services.mesh.store.ending import cancel_result, cancelled_event
from services.mesh.store.floors import lowering
from services.mesh.store.put_columns import put_params
from services.mesh.store.putting import created_event, stored_due_times

_ANY_EPOCH = (1 << 63) - 1
_MICROSECOND = timedelta(microseconds=1)
#: What was due before it was made may stand below the floor; no floor is younger than this.
_LATE = timedelta(seconds=1)
#: Planning for one transaction, and what of it is done in one go.
PLANNING_SECONDS, TURN_SECONDS = 0.25, 0.01
#: Runs that one schedule follows at most.
_MOST_FOLLOWED = 1000


@dataclass(frozen=True, slots=True)
class Runs:
    """How the runs of a schedule stand."""

    open: tuple[UUID, ...] = ()
    failed: UUID | None = None
    oldest: datetime | None = None
    """When the oldest open one was made."""


@dataclass(slots=True)
class Step:
    """What one schedule does in this transaction."""

    schedule: ScheduleRecord
    now: datetime
    runs: Runs
    plan: Plan
    admission: Admission
    jobs: list[NewJob] = field(default_factory=list)
    made: list[NewJob] = field(default_factory=list)
    pause_note: str | None = None

    @property
    def cancels(self) -> bool:
        """Whether the runs that have not ended make way. Only for one that was made: a backfill may
        have been quicker, and then the run in the way is the very one that is due."""
        return self.admission.cancels and bool(self.made)

    @property
    def open_jobs(self) -> tuple[UUID, ...]:
        if not self.schedule.definition.follows_runs:
            return ()
        known = () if self.cancels else self.runs.open
        return (*known, *(job.id for job in self.made))[-_MOST_FOLLOWED:]

    @property
    def next_time(self) -> datetime | None:
        limit = self.schedule.definition.max_runs
        made = self.schedule.runs + len(self.made) + len(self.admission.waiting)
        return None if limit and made >= limit else self.plan.next_time

    @property
    def check_time(self) -> datetime | None:
        """When to look at its runs again, if that matters."""
        waits = bool(self.admission.waiting)
        follows = self.schedule.definition.pause_on_failure and bool(self.open_jobs)
        if not (waits or follows):
            return None
        return self.now + look_again(waits, self.now - (self.runs.oldest or self.now))

    @property
    def missed(self) -> int:
        return self.plan.missed + self.admission.left_out


class Firing(ShardBase):
    """Makes the jobs of schedules."""

    async def fire_due_schedules(
        self, limit: int = 100, ahead: timedelta = timedelta(0)
    ) -> FireAnswer:
        """Make the jobs of schedules whose time has come (or will, `ahead`), each time once."""
        run, queries = self._connections.run, self._queries
        async with self._connections.transaction() as session:
            params = {"limit": Int8(limit), "ahead": ahead}
            rows = await run(session, queries["due_schedules"], params)
            if not rows:
                return FireAnswer([], 0, 0)
            now = rows[0][0]
            schedules = [schedule_record(row[1:]) for row in rows]
            runs = await self._runs(session, schedules)
            steps = await self._planned(schedules, runs, now, ahead)
            events, cancelled = await self._take(session, steps)
        made = sum(len(step.made) for step in steps)
        missed = sum(step.missed for step in steps)
        behind = any(step.next_time is not None and step.next_time <= now for step in steps)
        more = behind or len(rows) == limit or len(steps) < len(rows)
        return FireAnswer(events, made, missed, cancelled, more, len(steps))

    async def trigger_schedule(self, namespace: str, name: str) -> TriggerAnswer | None:
        """Make one job now, whatever the time, the pause and the runs before; None: no schedule."""
        async with self._connections.transaction() as session:
            schedule, now = await self._locked(session, namespace, name)
            if schedule is None:
                return None
            runs = (await self._runs(session, [schedule]))[schedule.id]
            # To the microsecond a time of its own: no rule of whole seconds names it.
            nominal = now if now.microsecond else now + _MICROSECOND
            step = Step(
                schedule,
                now,
                runs,
                Plan((), schedule.next_time, 0),
                Admission((nominal,), schedule.waiting),
            )
            step.jobs = [self._job(schedule, nominal, now, None)]
            events, _ = await self._take(session, [step])
        if not step.made:  # the very microsecond was taken
            return await self.trigger_schedule(namespace, name)
        return TriggerAnswer(step.made[0].id, step.made[0].type, events)

    async def backfill_schedule(
        self, namespace: str, name: str, first: datetime, until: datetime, limit: int = 500
    ) -> BackfillAnswer | None:
        """Make the jobs of up to `limit` nominal times in `[first, until)` that made none yet, as
        the overlap policy admits; None: no schedule.
        """
        async with self._connections.transaction() as session:
            schedule, now = await self._locked(session, namespace, name)
            if schedule is None:
                return None
            times = list(islice(times_between(schedule.definition, first, until), limit + 1))
            further = times[limit] if len(times) > limit else None
            wanted = await self._unmade(session, schedule, times[:limit])
            runs = (await self._runs(session, [schedule]))[schedule.id]
            policy, line = schedule.definition.overlap, schedule.waiting
            admission = admit(policy, wanted, bool(runs.open), line)
            step = Step(schedule, now, runs, Plan((), schedule.next_time, 0), admission)
            step.jobs = [self._job(schedule, time, now, None) for time in admission.runs]
            events, cancelled = await self._take(session, [step])
        added = max(0, len(admission.waiting) - len(line))
        counts = len(step.made), added, admission.left_out
        return BackfillAnswer(
            *counts, further, events, cancelled, schedule.definition.template.type
        )

    # --- parts of the transaction

    async def _locked(
        self, session: Session, namespace: str, name: str
    ) -> tuple[ScheduleRecord | None, datetime]:
        names = {"namespace": namespace, "name": name}
        rows = await self._connections.run(session, self._queries["lock_schedule"], names)
        return (None if rows[0][1] is None else schedule_record(rows[0][1:])), rows[0][0]

    async def _runs(
        self, session: Session, schedules: Sequence[ScheduleRecord]
    ) -> dict[UUID, Runs]:
        """How the runs that each schedule follows stand now. One that is gone has ended."""
        pairs = [(s.id, job_id) for s in schedules for job_id in s.open_jobs]
        if not pairs:
            return {schedule.id: Runs() for schedule in schedules}
        owners, ids = zip(*pairs, strict=True)
        params = {"owners": Uuids(owners), "ids": Uuids(ids)}
        rows = await self._connections.run(session, self._queries["followed_runs"], params)
        by_owner: dict[UUID, list[Row]] = {schedule.id: [] for schedule in schedules}
        for row in rows:
            by_owner[row[0]].append(row[1:])
        return {owner: _runs_of(followed) for owner, followed in by_owner.items()}

    async def _unmade(
        self, session: Session, schedule: ScheduleRecord, times: Sequence[datetime]
    ) -> list[datetime]:
        params = {"schedule": schedule.id, "times": Times(list(times))}
        rows = await self._connections.run(session, self._queries["made_times"], params)
        known = {row[0] for row in rows} | set(schedule.waiting)
        return [time for time in times if time not in known]

    async def _planned(
        self,
        schedules: Sequence[ScheduleRecord],
        runs: Mapping[UUID, Runs],
        now: datetime,
        ahead: timedelta,
    ) -> list[Step]:
        """What they do, of as many as there is time for; the others are for the next transaction.
        To count what a schedule missed in days takes a good part of a second, and the server ends a
        transaction that rests for long: all at once would be tried again and again, for ever.
        """
        clock = asyncio.get_running_loop().time
        began = turn = clock()
        steps: list[Step] = []
        for schedule in schedules:
            steps.append(self._step(schedule, runs[schedule.id], now, ahead))
            time = clock()
            if time - began > PLANNING_SECONDS:
                break
            if time - turn > TURN_SECONDS:
                await asyncio.sleep(0)  # for what else this process has to do
                turn = clock()
        return steps

    def _step(self, schedule: ScheduleRecord, runs: Runs, now: datetime, ahead: timedelta) -> Step:
        definition = schedule.definition
        if definition.pause_on_failure and runs.failed is not None:
            still = Admission((), schedule.waiting)
            step = Step(schedule, now, runs, Plan((), schedule.next_time, 0), still)
            step.pause_note = f"its run {runs.failed} failed"
            return step
        planned = plan(schedule, now, timedelta(0) if definition.follows_runs else ahead)
        times = planned.nominal_times[: room(schedule)]
        admission = admit(definition.overlap, times, bool(runs.open), schedule.waiting)
        step = Step(schedule, now, runs, planned, admission)
        jitter = definition.jitter
        step.jobs = [
            self._job(schedule, time, now, time + jitter * self._random.random())
            for time in admission.runs
        ]
        return step

    async def _take(
        self, session: Session, steps: Sequence[Step]
    ) -> tuple[list[JobEvent], list[CancelResult]]:
        """Make, cancel and advance, as the steps say; fills in what was made."""
        run, queries = self._connections.run, self._queries
        events: list[JobEvent] = []
        jobs = [job for step in steps for job in step.jobs]
        if jobs:
            rows = await run(session, queries["put_jobs"], put_params(jobs, _ANY_EPOCH))
            stored = stored_due_times(rows)
            for step in steps:
                step.made = [job for job in step.jobs if job.id in stored]
                events += [created_event(job, stored[job.id], rows[0][1]) for job in step.made]
        ended, cancelled = await self._cancel_others(session, steps)
        await run(session, queries["advance_schedules"], _advance_params(steps))
        late = [(e.type, e.due_time) for e in events if e.due_time and e.due_time < e.time - _LATE]
        if late:
            # Last, since whoever else lowers them waits for our commit.
            older = lowering([type_ for type_, _ in late], [due for _, due in late])
            await run(session, queries["lower_floors"], older)
        return [*events, *ended], cancelled

    async def _cancel_others(
        self, session: Session, steps: Sequence[Step]
    ) -> tuple[list[JobEvent], list[CancelResult]]:
        ids = [job_id for step in steps if step.cancels for job_id in step.runs.open]
        if not ids:
            return [], []
        note = "the next run of its schedule is due"
        ordered = Uuids(sorted(ids, key=lambda job_id: job_id.int))
        params = {"ids": ordered, "namespace": None, "note": note}
        rows = await self._connections.run(session, self._queries["cancel"], params)
        events = [cancelled_event(row, note) for row in rows]
        return events, [cancel_result(row[0], row, None) for row in rows]

    def _job(
        self, schedule: ScheduleRecord, nominal: datetime, now: datetime, due: datetime | None
    ) -> NewJob:
        template = schedule.definition.template
        now_ms = round(now.timestamp() * 1000)
        job = NewJob(
            id=new_job_id(bucket_of(schedule.id), now_ms, self._random),
            namespace=schedule.namespace,
            type=template.type,
            input=template.input,
            priority=template.priority,
            due_time=due,
            timeouts=template.timeouts,
            retry=template.retry,
            labels=template.labels,
            concurrency_key=template.concurrency_key,
            schedule_id=schedule.id,
            nominal_time=nominal,
        )
        # Now, not when the schedule was made: defaults hold for jobs that are made afterwards.
        return with_defaults(job, self._settings_of(job.type))


def schedule_record(row: Row) -> ScheduleRecord:
    """The fragment `schedule_columns`."""
    job_id, namespace, name, definition, input_, *rest = row
    rest[-2:] = tuple(rest[-2]), tuple(rest[-1])
    told = definition_from_json(definition, input_)
    return ScheduleRecord(job_id, namespace, name, told, *rest)


def _runs_of(rows: Sequence[Row]) -> Runs:
    alive = [row for row in rows if JobState(row[1]) not in TERMINAL]
    failed = [row[0] for row in rows if row[1] == JobState.FAILED]
    return Runs(
        tuple(row[0] for row in alive),
        failed[0] if failed else None,
        min((row[2] for row in alive), default=None),
    )


def _advance_params(steps: Sequence[Step]) -> dict[str, object]:
    newest = [max((j.nominal_time for j in s.made if j.nominal_time), default=None) for s in steps]
    return {
        "ids": Uuids([step.schedule.id for step in steps]),
        "next_times": Times([step.next_time for step in steps]),
        "check_times": Times([step.check_time for step in steps]),
        "last_times": Times(newest),
        "last_job_ids": Uuids([step.made[-1].id if step.made else None for step in steps]),
        "runs": Bigints([len(step.made) for step in steps]),
        "missed": Bigints([step.missed for step in steps]),
        "open_jobs": Texts([_array(map(str, step.open_jobs)) for step in steps]),
        "waiting": Texts([_array(t.isoformat() for t in step.admission.waiting) for step in steps]),
        "pause_notes": Texts([step.pause_note for step in steps]),
    }


def _array(items: Iterable[str]) -> str:
    """An array as text: a statement takes no arrays of arrays of various lengths."""
    return f"{{{','.join(items)}}}"
