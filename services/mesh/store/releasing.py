"""Jobs that wait for others: marking the parents, and releasing the children when they have ended.

Nobody misses an end. A parent is marked before the first child is stored; whoever ends a marked
parent writes that down in the same statement (`ended_parents`), where it stays until every shard
has released those who waited. A child that is stored while its parent ends is seen to by its
submitter, who looks at the parents once more; should that one die, by `check_blocked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Parent
from services.mesh.store.answers import Release
from services.mesh.store.arrays import Booleans, Texts, Uuids
from services.mesh.store.base import Int8, ShardBase
from services.mesh.store.connection import Row
from services.mesh.store.rows import STATES, failure_of, to_json


class Releasing(ShardBase):
    """Marks parents and releases children."""

    async def await_jobs(self, jobs: Sequence[tuple[str, UUID]]) -> dict[tuple[str, UUID], Parent]:
        """Mark jobs `(namespace, id)` as awaited and say how they stand; those that exist."""
        # In the order of ids, so that two batches never lock crosswise.
        ordered = sorted(set(jobs), key=lambda job: job[1].int)
        params = {
            "ids": Uuids([job_id for _, job_id in ordered]),
            "namespaces": Texts([namespace for namespace, _ in ordered]),
        }
        rows = await self._fetch("await_jobs", params)
        return {(row[1], row[0]): _parent((row[0], *row[2:])) for row in rows}

    async def parents(self, ids: Sequence[UUID]) -> list[Parent]:
        """How jobs stand that others wait for; those that exist."""
        return [_parent(row) for row in await self._fetch("parents", {"ids": Uuids(list(ids))})]

    async def release(self, parents: Sequence[Parent], limit: int = 1000) -> Release:
        """Take parents that have ended off the jobs of this shard that wait for them."""
        ordered = sorted(parents, key=lambda parent: parent.job_id.int)
        failures = [None if p.succeeded else to_json(p.as_failure()) for p in ordered]
        params = {
            "parents": Uuids([parent.job_id for parent in ordered]),
            "succeeded": Booleans([parent.succeeded for parent in ordered]),
            "failures": Texts(failures),
            "limit": Int8(limit),
        }
        rows = await self._fetch("release", params)
        events = [_released_event(row[1:]) for row in rows if row[1] is not None]
        return Release(events, more=rows[0][0] >= limit)

    async def take_ended_parents(
        self, limit: int = 500, hold: timedelta = timedelta(seconds=5)
    ) -> list[Parent]:
        """Awaited jobs of this shard that have ended. Nobody else is given them for `hold`."""
        rows = await self._fetch("take_ended_parents", {"limit": Int8(limit), "hold": hold})
        return [_parent(row) for row in rows]

    async def forget_ended_parents(self, ids: Sequence[UUID]) -> None:
        """All who waited for them, in whichever shard, are released."""
        ordered = sorted(ids, key=lambda job_id: job_id.int)
        await self._fetch("forget_ended_parents", {"ids": Uuids(ordered)})

    async def check_blocked(self, limit: int = 500) -> list[UUID]:
        """The parents of jobs that have been BLOCKED for a while, the longer the more seldom."""
        return [row[0] for row in await self._fetch("check_blocked", {"limit": Int8(limit)})]

    async def waits_of(self, job_id: UUID) -> list[UUID]:
        """The jobs that a BLOCKED job still waits for."""
        return [row[0] for row in await self._fetch("waits_of", {"id": job_id})]


def _parent(row: Row) -> Parent:
    job_id, state, failure = row
    return Parent(job_id, None if state is None else STATES[state], failure_of(failure))


def _released_event(row: Row) -> JobEvent:
    job_id, namespace, type_, number, version, due_time, now, failure, awaited = row
    state = STATES[number]
    freed = state is JobState.SCHEDULED
    cause = Cause.UNBLOCKED if freed else Cause.PARENT_FAILED
    what = (job_id, version, state, cause, now, 0, 0, None, due_time if freed else None)
    told = (failure_of(failure), None, namespace, type_)
    return JobEvent(*what, *told, awaited=bool(awaited))
