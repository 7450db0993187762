"""New jobs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg.errors import UniqueViolation

from services.mesh.errors import InvalidField, MeshError, OutcomeUnknown, StaleEpoch
from services.mesh.jobs.alike import AlikeJobs
from services.mesh.jobs.model import JobEvent, NewJob
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.mesh.store.arrays import (
    Texts,
    Uuids,
)
from services.mesh.store.base import ShardBase
from services.mesh.store.connection import Row, is_fault_of_data
from services.mesh.store.put_columns import alike_params, put_params
from services.mesh.store.rows import STATES

log = logging.getLogger(__name__)

_ROUNDS = 3
_MILLISECOND = timedelta(milliseconds=1)


class Puts:
    """New jobs on their way into the shard, and perhaps on to a worker: what is known of each so
    far, by its place.
    """

    def __init__(self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None = None) -> None:
        self.jobs, self.epoch, self.worker_id = jobs, epoch, worker_id
        self.results: dict[int, PutResult | MeshError] = {}
        self.events: list[JobEvent] = []

    def settle(self, place: int, result: PutResult, event: JobEvent | None = None) -> None:
        """So much is known of one of them."""
        self.results[place] = result
        if event is not None:
            self.events.append(event)

    def created(self, places: Sequence[int], stored: dict[UUID, datetime], now: datetime) -> None:
        """Those of them whose ids are in `stored`, with their due times, were stored now."""
        handed = self.worker_id is not None
        for place in places:
            job = self.jobs[place]
            if (due_time := stored.pop(job.id, None)) is not None:
                created = _created(job, due_time, now, handed=handed)
                self.settle(place, created, created_event(job, due_time, now))

    def open(self, places: Sequence[int]) -> list[int]:
        """Those of which nothing is known yet."""
        return [place for place in places if place not in self.results]

    def fail(self, places: Sequence[int], error: MeshError) -> None:
        """No more will be known of these. If nothing is known of any, the error is the answer."""
        if not self.results:
            raise error
        self.results |= dict.fromkeys(places, error)

    def answer(self) -> PutAnswer:
        return PutAnswer([self.results[place] for place in range(len(self.jobs))], self.events)


_Put = Callable[[Sequence[NewJob], int], Awaitable[PutAnswer]]
_Resolve = Callable[[Puts, Sequence[int]], Awaitable[None]]


class Putting(ShardBase):
    """Writes new jobs."""

    async def put_jobs(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None = None
    ) -> PutAnswer:
        """Write new jobs, in one statement unless some exist already."""
        put = self._put_jobs if worker_id is None else partial(self._put_jobs, worker_id=worker_id)
        return await self._sifted(put, jobs, epoch)

    async def _sifted(self, put: _Put, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        """Write them by `put`. Jobs of many callers share a statement: one that the database cannot
        take is found by halving, and refused; it must not keep the others out. `put` raises an
        error of the database only if nothing was stored.
        """
        try:
            return await put(jobs, epoch)
        except psycopg.Error as error:
            if not is_fault_of_data(error):
                raise
            # Of those that differ in bytes only, what holds for one holds for all.
            if len(jobs) == 1 or (isinstance(jobs, AlikeJobs) and jobs.keyed is None):
                return PutAnswer([refused(jobs[0], error)] * len(jobs), [])
        half = len(jobs) // 2
        first = await self._sifted(put, jobs[:half], epoch)
        try:
            second = await self._sifted(put, jobs[half:], epoch)
        except MeshError as error:  # no word about the first half, which may be stored
            second = PutAnswer([error] * (len(jobs) - half), [])
        return PutAnswer(first.results + second.results, first.events + second.events)

    async def _put_jobs(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None = None
    ) -> PutAnswer:
        if isinstance(jobs, AlikeJobs) and jobs.keyed is not None:
            return await self._put_keyed(jobs, jobs.keyed.keys, epoch, worker_id)
        if isinstance(jobs, AlikeJobs) or not any(job.idempotency_key for job in jobs):
            try:
                return await self._put_new(jobs, epoch, worker_id)
            except UniqueViolation:
                pass  # a repeated call: nothing was stored, look at each job
        return await self._put_each(jobs, epoch, worker_id)

    async def _put_keyed(
        self, jobs: AlikeJobs, keys: Sequence[str], epoch: int, worker_id: str | None
    ) -> PutAnswer:
        """As `_put_each`; mostly all are new, and nothing need be said of each."""
        in_order = sorted(range(len(jobs)), key=keys.__getitem__)
        name, hands = _handed_or("put_keyed", worker_id)
        rows = await self._fetch(name, alike_params(jobs.at(in_order), epoch) | hands)
        now, stored = admitted(rows, epoch), rows[0][2]
        if stored is None:
            return _all_created(jobs, now, handed=worker_id is not None)
        ids = (UUID(bytes=stored[at : at + 16]) for at in range(0, len(stored), 16))
        put = Puts(jobs, epoch, worker_id)
        put.created(in_order, dict.fromkeys(ids, now), now)
        return await self._resolved(put, in_order)

    async def _put_new(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None
    ) -> PutAnswer:
        handed = worker_id is not None
        name, hands = _handed_or("put_new", worker_id)
        if isinstance(jobs, AlikeJobs):
            rows = await self._fetch(name, alike_params(jobs, epoch) | hands)
            return _all_created(jobs, admitted(rows, epoch), handed=handed)
        rows = await self._fetch(name, put_params(jobs, epoch) | hands)
        now = admitted(rows, epoch)
        due_times = [due_time_of(job, now) for job in jobs]
        pairs = list(zip(jobs, due_times, strict=True))
        return PutAnswer(
            [_created(job, due_time, now, handed=handed) for job, due_time in pairs],
            lambda: [created_event(job, due_time, now) for job, due_time in pairs],
        )

    async def _put_each(
        self, jobs: Sequence[NewJob], epoch: int, worker_id: str | None
    ) -> PutAnswer:
        # All writers take the same keys in the same order, or two could wait for each other.
        in_order = sorted(range(len(jobs)), key=lambda place: _key_of(jobs[place]))
        put = Puts(jobs, epoch, worker_id)
        await self._put_some(put, in_order)
        return await self._resolved(put, in_order)

    async def _resolved(self, put: Puts, in_order: Sequence[int]) -> PutAnswer:
        await self._told_apart(put, in_order, self._resolve)
        if left := put.open(in_order):
            put.fail(left, OutcomeUnknown(self._connections.shard))
        return put.answer()

    async def _told_apart(self, put: Puts, in_order: Sequence[int], resolve: _Resolve) -> None:
        """Find out about those that were not stored. Others may be by now: what fails from here on
        is no word about these, and none about the rest either, for what is in their way may be the
        same job, from an earlier call.
        """
        shard = self._connections.shard
        try:
            await resolve(put, in_order)
        except (MeshError, psycopg.Error) as error:
            left = put.open(in_order)
            extra = {"action": "puts_unresolved", "shard": shard, "count": len(left)}
            log.warning("cannot tell what became of new jobs: %s", error, extra=extra)
            put.fail(left, OutcomeUnknown(shard))

    async def _put_some(self, put: Puts, places: Sequence[int]) -> None:
        """Store those of the jobs that are new."""
        params = put_params([put.jobs[at] for at in places], put.epoch)
        name, hands = _handed_or("put", put.worker_id)
        rows = await self._fetch(name, params | hands)
        put.created(places, stored_due_times(rows), admitted(rows, put.epoch))

    async def _resolve(self, put: Puts, in_order: Sequence[int]) -> None:
        """Look at what is in the way of the others. What is gone again (purged meanwhile) is no
        longer: they go round once more.
        """
        for step in (self._look, self._put_some) * _ROUNDS:
            if not (left := put.open(in_order)):
                return
            await step(put, left)

    async def _look(self, put: Puts, places: Sequence[int]) -> None:
        found = await self._find_existing(put.jobs, places)
        put.results |= found
        put.events += first_events(put.jobs, found)

    async def _find_existing(
        self, jobs: Sequence[NewJob], places: Sequence[int]
    ) -> dict[int, PutResult]:
        wanted = [jobs[place] for place in places]
        params = {
            "ids": Uuids([job.id for job in wanted]),
            "namespaces": Texts([job.namespace for job in wanted]),
            "keys": Texts([job.idempotency_key for job in wanted]),
        }
        found: dict[int, PutResult] = {}
        for ordinal, *row in await self._fetch("find_existing", params):
            place = places[ordinal - 1]
            # The row under the job's own id comes first, and wins: the same call stored it before.
            found.setdefault(place, existing_result(jobs[place], row))
        return found


def refused(job: NewJob, error: psycopg.Error) -> InvalidField:
    """What its submitter is told of a job that the database cannot take."""
    extra = {"action": "job_refused", "job_id": str(job.id), "namespace": job.namespace}
    log.error("cannot store a job", exc_info=error, extra=extra)
    why = error.diag.message_primary or error
    return InvalidField("job", f"the database cannot hold it: {why}")


def _handed_or(put: str, worker_id: str | None) -> tuple[str, dict[str, object]]:
    """The statement that hands out what it stores, if there is a worker, and what it needs more."""
    return (f"{put}_jobs", {}) if worker_id is None else (f"{put}_handed", {"worker_id": worker_id})


def _key_of(job: NewJob) -> tuple[str, str]:
    return job.namespace, job.idempotency_key or ""


def due_time_of(job: NewJob, now: datetime) -> datetime:
    """When a job is due that was stored at `now`, as the statement reckons it."""
    if job.due_time is None and job.delay is None:
        return now
    delay = timedelta(0) if job.delay is None else job.delay // _MILLISECOND * _MILLISECOND
    return max(now + delay, job.due_time or now)


def stored_due_times(rows: Sequence[Row]) -> dict[UUID, datetime]:
    """What `put_jobs` stored: due times by id."""
    return {row[2]: row[3] for row in rows if row[2] is not None}


def _all_created(jobs: AlikeJobs, now: datetime, *, handed: bool) -> PutAnswer:
    return PutAnswer(
        lambda: [_created(job, now, now, handed=handed) for job in jobs],
        lambda: [created_event(job, now, now) for job in jobs],
        now,
        handed=handed,
    )


def created_event(
    job: NewJob, due_time: datetime, now: datetime, state: JobState = JobState.SCHEDULED
) -> JobEvent:
    """The first event of a job, as the statement wrote it."""
    cause = Cause.CREATED if job.origin_id is None else Cause.REDRIVEN
    due = due_time if state is JobState.SCHEDULED else None
    place = (job.id, 1, state, cause, now, 0, 0, None, due)
    return JobEvent(*place, None, None, job.namespace, job.type, job.labels)


def admitted(rows: Sequence[Row], epoch: int) -> datetime:
    """The shard's now, if it takes writers with this map; else StaleEpoch."""
    in_force, now = rows[0][:2]
    if in_force > epoch:
        raise StaleEpoch(in_force)
    return cast(datetime, now)


def _created(job: NewJob, due_time: datetime, now: datetime, *, handed: bool = False) -> PutResult:
    due = due_time <= now
    return PutResult(PutOutcome.CREATED, job.id, JobState.SCHEDULED, 1, due_time, now, due, handed)


def existing_result(job: NewJob, row: Sequence[Any]) -> PutResult:
    """The answer for a job that met itself, the same request, or another one under its key."""
    job_id, request_hash, number, version, due_time, create_time = row
    state = STATES[number]
    what = (job_id, state, version, due_time, create_time)
    if job_id == job.id:
        # Ids are minted for one call: it was this one, whose first answer was lost.
        due_now = state is JobState.SCHEDULED and due_time <= create_time
        return PutResult(PutOutcome.CREATED, *what, due_now)
    same = request_hash == job.request_hash
    return PutResult(PutOutcome.EXISTING if same else PutOutcome.CONFLICT, *what, False)


def first_events(jobs: Sequence[NewJob], found: Mapping[int, PutResult]) -> list[JobEvent]:
    """The first events of jobs that were found under their own ids; nobody was told of them yet."""
    return [
        created_event(jobs[place], result.due_time, result.create_time, result.state)
        for place, result in found.items()
        if result.outcome is PutOutcome.CREATED and result.version == 1
    ]
