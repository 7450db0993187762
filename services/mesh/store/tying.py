"""New jobs that are tied to others: they wait for some, or hold a key that only one may hold.

At most one live job holds a unique key. The key's row is written with its job and deleted by the
statement that ends it, so the database decides every race: of two submissions one gets the row, and
one that comes while the holder ends waits for that to be committed. A submission that did not get
the key looks at the holder; should that be gone by then, it goes round again.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import psycopg

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.jobs.model import NO_LABELS, JobEvent, NewJob
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, Ties, UniquePolicy
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.mesh.store.arrays import Smallints, Texts, Uuids, milliseconds, milliseconds_of
from services.mesh.store.connection import BUSY, Row, is_fault_of_data
from services.mesh.store.put_columns import put_params
from services.mesh.store.putting import Puts, Putting, admitted, created_event, refused
from services.mesh.store.rows import STATES, dependencies_to_json, labels_to_json, to_json

#: How often a submission goes round while the holders of its key come and go.
_ROUNDS = 20
_REPLACE_ROUNDS = 2
_NO_TIES = Ties()


class Tying(Putting):
    """Writes new jobs with ties."""

    async def put_tied_jobs(self, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        """Write new jobs with dependencies or unique keys; the answers are in their order."""
        return await self._sifted(self._put_tied_jobs, jobs, epoch)

    async def _put_tied_jobs(self, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        # All writers take the same keys in the same order, or two could wait for each other.
        in_order = sorted(range(len(jobs)), key=lambda place: _keys_of(jobs[place]))
        put = Puts(jobs, epoch)
        await self._put_tied(put, in_order)
        await self._told_apart(put, in_order, self._resolve_apart)
        if left := put.open(in_order):
            # Certain: nobody has their idempotency keys, and their unique keys were never free.
            put.fail(left, ShardUnavailable(self._connections.shard, why=BUSY))
        return put.answer()

    async def _put_tied(self, put: Puts, places: Sequence[int]) -> None:
        """Store those of the jobs that are new, and whose keys are free."""
        params = _tied_params([put.jobs[place] for place in places], put.epoch)
        rows = await self._fetch("put_tied_jobs", params)
        admitted(rows, put.epoch)
        stored = {row[2]: row[1:] for row in rows if row[2] is not None}
        for place in places:
            if (row := stored.get(put.jobs[place].id)) is not None:
                put.settle(place, *_created(put.jobs[place], row))

    async def _resolve_apart(self, put: Puts, places: Sequence[int]) -> None:
        """As `_resolve_tied`; and if there are some that the database cannot take, each alone."""
        try:
            await self._resolve_tied(put, places)
        except psycopg.Error as error:
            if not is_fault_of_data(error):
                raise
            left = put.open(places)
            if len(left) == 1:
                put.results[left[0]] = refused(put.jobs[left[0]], error)
            else:
                for place in left:
                    await self._resolve_apart(put, [place])

    async def _resolve_tied(self, put: Puts, in_order: Sequence[int]) -> None:
        """Look at what is in the way of the others; if it is gone, they go round again."""
        look = (self._look, self._answer_held)
        for step in (*look, *(self._put_tied, *look) * (_ROUNDS - 1)):
            if not (left := put.open(in_order)):
                return
            await step(put, left)

    async def _answer_held(self, put: Puts, places: Sequence[int]) -> None:
        """Answer those whose key a live job holds, as each one's policy says."""
        keyed = [place for place in places if _ties(put.jobs[place]).unique_key is not None]
        holders = await self._holders([put.jobs[place] for place in keyed]) if keyed else {}
        for number, row in holders.items():
            place, job = keyed[number], put.jobs[keyed[number]]
            if _ties(job).unique_policy is UniquePolicy.REPLACE:
                await self._replace_for(put, place, row)
            else:
                put.settle(place, _held(job, row))

    async def _holders(self, jobs: Sequence[NewJob]) -> dict[int, Row]:
        """The live holders of the jobs' keys; keys that nobody live holds are given back."""
        params: dict[str, object] = {
            "namespaces": Texts([job.namespace for job in jobs]),
            "unique_keys": Texts([_ties(job).unique_key for job in jobs]),
        }
        rows = await self._fetch("key_holders", params)
        if forgotten := [row for row in rows if row[3] is None]:
            left = [jobs[row[0] - 1] for row in forgotten]
            await self._fetch(
                "free_keys",
                {
                    "namespaces": Texts([job.namespace for job in left]),
                    "unique_keys": Texts([_ties(job).unique_key for job in left]),
                    "ids": Uuids([row[1] for row in forgotten]),
                },
            )
        return {row[0] - 1: row[1:] for row in rows if row[3] is not None}

    async def _replace_for(self, put: Puts, place: int, row: Row) -> None:
        """Replace the holder by one of the jobs. What is unknown of that stays unknown: the holder
        may have run with the new content by the time that somebody asks again, and the job would be
        stored beside it.
        """
        try:
            put.settle(place, *await self._replace(put.jobs[place], row))
        except OutcomeUnknown as unknown:
            put.results[place] = unknown

    async def _replace(self, job: NewJob, row: Row) -> tuple[PutResult, JobEvent | None]:
        """Give the holder the new content, if it was never handed to a worker; else it stays."""
        for _ in range(_REPLACE_ROUNDS):  # another change may have come at the same moment
            rows = await self._fetch("replace_job", _replace_params(job, row[0]))
            if rows:
                return _replaced(rows[0])
        return _held(job, row), None


def _ties(job: NewJob) -> Ties:
    return job.ties or _NO_TIES


def _keys_of(job: NewJob) -> tuple[str, str, str]:
    return job.namespace, _ties(job).unique_key or "", job.idempotency_key or ""


def _tied_params(jobs: Sequence[NewJob], epoch: int) -> dict[str, object]:
    ties = [_ties(job) for job in jobs]
    waits = [(job.id, wait) for job, tie in zip(jobs, ties, strict=True) for wait in tie.waits]
    waiting = [bool(tie.waits) for tie in ties]
    return put_params(jobs, epoch) | {
        # The start timeout of a job that waits for others begins when it no longer does.
        "start_timeouts": milliseconds(
            [None if w else job.timeouts.start for job, w in zip(jobs, waiting, strict=True)]
        ),
        "blockers": Smallints([len(tie.waits) or None for tie in ties]),
        "unique_keys": Texts([tie.unique_key for tie in ties]),
        "unique_policies": Smallints([tie.kept_policy for tie in ties]),
        "dependencies": Texts([dependencies_to_json(tie.dependencies) for tie in ties]),
        **_edges(waits),
    }


def _edges(waits: Sequence[tuple[UUID, Dependency]]) -> dict[str, object]:
    return {
        "parents": Uuids([wait.job_id for _, wait in waits]),
        "children": Uuids([child for child, _ in waits]),
        "policies": Smallints([int(wait.on_failure) for _, wait in waits]),
    }


def _replace_params(job: NewJob, holder: UUID) -> dict[str, object]:
    delay, start = milliseconds_of(job.delay), milliseconds_of(job.timeouts.start)
    return {
        "id": holder,
        "type": job.type,
        "priority": job.priority,
        "due_time": job.due_time,
        "delay_ms": delay,
        "expire_time": job.expire_time,
        "start_ms": start,
        "timeouts": to_json(job.timeouts) if job.timeouts.to_json() else None,
        "retry": to_json(job.retry),
        "labels": labels_to_json(job.labels),
        "input": job.input.data,
        "input_type": job.input.content_type or None,
        "input_ref": to_json(job.input.ref),
        "concurrency_key": job.concurrency_key,
        "unique_policy": _ties(job).kept_policy,
    }


def _created(job: NewJob, row: Row) -> tuple[PutResult, JobEvent]:
    now, _, due_time, number = row
    state = STATES[number]
    event = created_event(job, due_time, now, state)
    due_now = state is JobState.SCHEDULED and due_time <= now
    return PutResult(PutOutcome.CREATED, job.id, state, 1, due_time, now, due_now), event


def _held(job: NewJob, row: Row) -> PutResult:
    job_id, _, state, version, due_time, create_time = row
    keeps = _ties(job).unique_policy is not UniquePolicy.REFUSE
    outcome = PutOutcome.EXISTING if keeps else PutOutcome.HELD
    return PutResult(outcome, job_id, STATES[state], version, due_time, create_time, False)


def _replaced(row: Row) -> tuple[PutResult, JobEvent]:
    job_id, namespace, type_, version, attempt, fence, due_time, now, labels, number, created = row
    state = STATES[number]
    waits = state is JobState.BLOCKED
    what = (job_id, version, state, Cause.UPDATED, now, attempt, fence, None)
    told = (None if waits else due_time, None, None, namespace, type_, labels or NO_LABELS)
    result = PutResult(
        PutOutcome.REPLACED,
        job_id,
        state,
        version,
        due_time,
        created,
        not waits and due_time <= now,
    )
    return result, JobEvent(*what, *told)
