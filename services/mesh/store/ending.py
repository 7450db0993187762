"""How jobs end, or come back, by other hands than their workers': cancel, sweep, rescue, expire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from services.mesh.errors import MeshError
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.retry import TOTAL_TIMEOUT, Failure, FailureKind
from services.mesh.jobs.states import IN_FLIGHT, Cause, JobState
from services.mesh.store.answers import CancelAnswer, CancelOutcome, CancelResult, InFlight, Rescue
from services.mesh.store.arrays import Texts, Uuids
from services.mesh.store.base import Int8
from services.mesh.store.connection import Row
from services.mesh.store.reporting import Reporting
from services.mesh.store.rows import STATES, to_json
from services.mesh.store.settling import Standing, settle_rescued, settle_swept

TOTAL_OVER = Failure(
    TOTAL_TIMEOUT, "the job's total time was over while it waited", kind=FailureKind.TIMEOUT
)


class Ending(Reporting):
    """Ends jobs from outside, and takes lost ones back."""

    async def cancel(
        self, ids: Sequence[UUID], reason: str = "", namespace: str | None = None
    ) -> CancelAnswer:
        """Cancel jobs at once; the answers are in the order of the ids."""
        ordered = Uuids(sorted(set(ids), key=lambda job_id: job_id.int))
        params = {"ids": ordered, "namespace": namespace, "note": reason or None}
        rows = {row[0]: row for row in await self._fetch("cancel", params)}
        missed = [job_id for job_id in ids if job_id not in rows]
        found = {job_id: cancel_result(job_id, row, None) for job_id, row in rows.items()}
        try:
            found |= await self._not_cancelled(missed, namespace)
        except MeshError:
            if not rows:
                raise
            # What was cancelled is, and somebody has to tell the workers.
            found |= {i: CancelResult(i, CancelOutcome.UNRESOLVED, None) for i in missed}
        events = [cancelled_event(row, reason) for row in rows.values()]
        return CancelAnswer([found[job_id] for job_id in ids], events)

    async def _not_cancelled(
        self, ids: Sequence[UUID], namespace: str | None
    ) -> dict[UUID, CancelResult]:
        """Why these were not."""
        if not ids:
            return {}
        rows = await self._fetch("states", {"ids": Uuids(ids), "namespace": namespace})
        states: dict[UUID, int] = dict(rows)
        return {job_id: cancel_result(job_id, None, states.get(job_id)) for job_id in ids}

    async def overdue_dispatches(self, older_than: timedelta, limit: int = 1000) -> list[InFlight]:
        """Dispatches that nobody started for so long. Rows that outlived theirs are removed: a
        cancel that waits for a claim does not see the claim's.
        """
        params = {"age": older_than, "limit": Int8(limit)}
        held = await self._still_held(await self._fetch("overdue_dispatches", params))
        return [InFlight(row[0], row[3], row[1], row[4]) for row in held]

    async def sweep(self, dispatches: Sequence[tuple[UUID, int]]) -> list[JobEvent]:
        """Take lost dispatches back, unless they have moved on."""
        return await self.settle([settle_swept(job_id, fence) for job_id, fence in dispatches])

    async def inflight_workers(self) -> list[str]:
        """The workers that hold jobs, by the rows."""
        return [row[0] for row in await self._fetch("inflight_workers")]

    async def rescue(self, worker_ids: Sequence[str], limit: int = 1000) -> Rescue:
        """Take back the jobs of workers without a lease."""
        if not worker_ids:
            return Rescue([], more=False)
        params = {"workers": Texts(list(worker_ids)), "limit": Int8(limit)}
        rows = await self._fetch("held_by", params)
        events = await self.settle(
            [
                settle_rescued(row[0], row[3], Standing.from_row(row[4:]), self._random)
                for row in await self._still_held(rows)
            ]
        )
        # By what was seen: some of it has moved on, or outlived its dispatch.
        return Rescue(events, more=len(rows) >= limit)

    async def _still_held(self, rows: list[Row]) -> list[Row]:
        """Those of the rows `(job, worker, whether that holds it, …)`; the others are removed."""
        left = [(row[0], row[1]) for row in rows if not row[2]]
        if left:
            ids, workers = zip(*left, strict=True)
            await self._fetch("let_go", {"ids": Uuids(ids), "workers": Texts(workers)})
        return [row for row in rows if row[2]]

    async def expire_overdue(self, limit: int = 1000) -> list[JobEvent]:
        """End the jobs that waited past their expire time or their total time."""
        params = {"limit": Int8(limit), "failure": to_json(TOTAL_OVER)}
        rows = await self._fetch("expire_overdue", params)
        rows += await self._fetch("expire_blocked", {"limit": Int8(limit)})
        return [_expired_event(row) for row in rows]


def cancel_result(job_id: UUID, row: Row | None, state: int | None) -> CancelResult:
    if row is not None:
        held = row[4] in IN_FLIGHT
        worker_id, fence = (row[7], row[6]) if held else (None, 0)
        return CancelResult(job_id, CancelOutcome.CANCELLED, JobState.CANCELLED, worker_id, fence)
    if state is None:
        return CancelResult(job_id, CancelOutcome.NOT_FOUND, None)
    return CancelResult(job_id, CancelOutcome.ALREADY_TERMINAL, STATES[state])


def cancelled_event(row: Row, reason: str) -> JobEvent:
    job_id, namespace, type_, version, _, attempt, fence, worker_id, end_time, awaited = row
    what = (job_id, version, JobState.CANCELLED, Cause.CANCELLED, end_time)
    who = (attempt, fence, worker_id)
    note = reason or None
    return JobEvent(*what, *who, None, None, note, namespace, type_, awaited=bool(awaited))


def _expired_event(row: Row) -> JobEvent:
    job_id, namespace, type_, version, attempt, fence, worker_id, end_time, state, awaited, _ = row
    what = (job_id, version, STATES[state], Cause.EXPIRED, end_time)
    failure = TOTAL_OVER if state == JobState.FAILED else None
    who = (attempt, fence, worker_id)
    return JobEvent(*what, *who, None, failure, None, namespace, type_, awaited=bool(awaited))
