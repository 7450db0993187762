"""What callers do to jobs that exist: repeat those that ended, change those that wait; and how long
the line before a job is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from services.mesh.errors import ShardBusy, StaleEpoch
from services.mesh.jobs.model import NO_LABELS, JobEvent, JobRecord
from services.mesh.jobs.states import LIVE, UNSUCCESSFUL, Cause, JobState
from services.mesh.store.answers import (
    ChangeAnswer,
    ChangeOutcome,
    JobChange,
    QueuePlace,
    RedriveAnswer,
    RedriveOutcome,
    RedriveResult,
)
from services.mesh.store.arrays import Texts, Uuids
from services.mesh.store.base import Int8, ShardBase
from services.mesh.store.connection import BUSY, Row
from services.mesh.store.rows import STATES, labels_to_json

#: How often a wish that met another one on the same job looks again.
_ROUNDS = 5
#: A pace is taken over at least this long: two claims within a millisecond are no 2000 a second.
_LEAST_SECONDS = 1.0


class Changing(ShardBase):
    """Repeats and changes jobs."""

    async def redrive(
        self, ids: Mapping[UUID, UUID], namespace: str, epoch: int, traceparent: str | None = None
    ) -> RedriveAnswer:
        """Repeat ended jobs; one whose last repetition is live answers with that one."""
        results: dict[UUID, RedriveResult] = {}
        events: list[JobEvent] = []
        for _ in range(_ROUNDS):
            missing = [job_id for job_id in ids if job_id not in results]
            if not missing:
                break
            wanted: dict[UUID, Row] = {}
            params = {"ids": Uuids(missing), "namespace": namespace}
            found = {row[0]: row for row in await self._fetch("redrives", params)}
            for job_id in missing:
                answer = _without_redrive(job_id, found.get(job_id), ids[job_id])
                if answer is not None:
                    results[job_id] = answer
                else:
                    wanted[job_id] = found[job_id]
            if wanted:
                made, held = await self._repeat(ids, wanted, namespace, epoch, traceparent)
                results |= held
                for event, origin in made:
                    results[origin] = RedriveResult(
                        origin, RedriveOutcome.CREATED, event.job_id, event.state
                    )
                    events.append(event)
        if len(results) < len(ids):  # somebody else won every time
            raise ShardBusy(self._connections.shard, why=BUSY)
        return RedriveAnswer([results[job_id] for job_id in ids], events)

    async def _repeat(
        self,
        ids: Mapping[UUID, UUID],
        wanted: Mapping[UUID, Row],
        namespace: str,
        epoch: int,
        traceparent: str | None,
    ) -> tuple[list[tuple[JobEvent, UUID]], dict[UUID, RedriveResult]]:
        """The events of new jobs with their origins; and those whose unique key another holds."""
        params = {"epoch": Int8(epoch), "traceparent": traceparent}
        keys = {job_id: row[4] for job_id, row in wanted.items() if row[4] is not None}
        if not keys:
            rows = await self._fetch("redrive", params | _wishes(ids, wanted))
            return _repeated(rows, epoch), {}
        # One transaction: a key without its job would look like one that somebody forgot.
        async with self._connections.transaction() as session:
            taken = await self._connections.run(
                session, self._queries["take_keys"], _key_wishes(ids, keys, namespace)
            )
            got = {row[0] for row in taken}
            free = {j: row for j, row in wanted.items() if j not in keys or ids[j] in got}
            rows = await self._connections.run(
                session, self._queries["redrive"], params | _wishes(ids, free)
            )
            made = _repeated(rows, epoch)
            lost = [j for j in keys if j in free and j not in {origin for _, origin in made}]
            if lost:
                await self._connections.run(
                    session, self._queries["free_keys"], _lost_keys(ids, keys, lost, namespace)
                )
        unlucky = {job_id: key for job_id, key in keys.items() if job_id not in free}
        return made, await self._holders_of(unlucky, namespace)

    async def _holders_of(
        self, keys: Mapping[UUID, str], namespace: str
    ) -> dict[UUID, RedriveResult]:
        """The answers for jobs whose key is held; those whose holder is gone go round again."""
        if not keys:
            return {}
        jobs, names = list(keys), list(keys.values())
        spaces = Texts([namespace] * len(names))
        rows = await self._fetch("key_holders", {"namespaces": spaces, "unique_keys": Texts(names)})
        held = {jobs[row[0] - 1]: row for row in rows if row[3] is not None}
        if forgotten := {jobs[row[0] - 1]: row[1] for row in rows if row[3] is None}:
            params = _lost_keys(forgotten, keys, list(forgotten), namespace)
            await self._fetch("free_keys", params)
        return {
            job_id: RedriveResult(job_id, RedriveOutcome.HELD, row[1], STATES[row[3]])
            for job_id, row in held.items()
        }

    async def change(self, job_id: UUID, namespace: str, change: JobChange) -> ChangeAnswer:
        """Change a job that waits; the row decides."""
        params = {
            "id": job_id,
            "namespace": namespace,
            "set_time": change.move,
            "due_time": change.due_time,
            "priority": change.priority,
            "set_labels": change.labels is not None,
            "labels": labels_to_json(change.labels or {}),
            "version": Int8(change.version),
        }
        for _ in range(_ROUNDS):
            rows = await self._fetch("update_job", params)
            if rows:
                return _changed(rows[0])
            refused = await self._refused(job_id, namespace, change)
            if refused is not None:
                return refused
        return ChangeAnswer(ChangeOutcome.OTHER_VERSION, JobState.SCHEDULED)

    async def _refused(
        self, job_id: UUID, namespace: str, change: JobChange
    ) -> ChangeAnswer | None:
        """Why nothing was changed; None if it was only another change at the same moment."""
        rows = await self._fetch("waiting", {"id": job_id, "namespace": namespace})
        if not rows:
            return ChangeAnswer(ChangeOutcome.NOT_FOUND)
        state, version, expire_time, now = rows[0]
        if state not in (JobState.SCHEDULED, JobState.BLOCKED):
            return ChangeAnswer(ChangeOutcome.FORBIDDEN, STATES[state])
        if change.version not in (0, version):
            return ChangeAnswer(ChangeOutcome.OTHER_VERSION, STATES[state])
        if change.move and expire_time is not None and expire_time <= (change.due_time or now):
            return ChangeAnswer(ChangeOutcome.PAST_EXPIRY, STATES[state])
        return None

    async def place_in_queue(self, job: JobRecord, cap: int = 10_000) -> QueuePlace:
        """How many due jobs of its type stand before `job` in the line, whoever's turn it is."""
        params = {
            "type": job.type,
            "priority": job.priority,
            "due_time": job.due_time,
            "id": job.id,
            "cap": Int8(cap),
        }
        now, ahead = (await self._fetch("jobs_ahead", params))[0]
        return QueuePlace(now, min(ahead, cap), ahead >= cap)

    async def claims_per_second(self, type: str) -> float:
        """How fast jobs of a type were taken lately."""
        count, span = (await self._fetch("recent_claims", {"type": type}))[0]
        return count / max(span.total_seconds(), _LEAST_SECONDS) if count else 0.0


def _without_redrive(job_id: UUID, row: Row | None, wish: UUID) -> RedriveResult | None:
    """The answer where nothing has to be written; None where a new job is due. One that has the id
    we wish for was made by us: this is asked again, since the answer got lost.
    """
    if row is None:
        return RedriveResult(job_id, RedriveOutcome.NOT_FOUND)
    _, state, redrive_id, redrive_state, _ = row
    if state not in UNSUCCESSFUL:
        return RedriveResult(job_id, RedriveOutcome.REFUSED, None, STATES[state])
    if redrive_id == wish and redrive_state is not None:
        return RedriveResult(job_id, RedriveOutcome.CREATED, redrive_id, STATES[redrive_state])
    if redrive_state in LIVE:
        return RedriveResult(job_id, RedriveOutcome.EXISTING, redrive_id, STATES[redrive_state])
    return None


def _wishes(ids: Mapping[UUID, UUID], wanted: Mapping[UUID, Row]) -> dict[str, object]:
    # In the order of ids, so that two batches never lock crosswise.
    ordered = sorted(wanted, key=lambda job_id: job_id.int)
    return {
        "ids": Uuids(ordered),
        "new_ids": Uuids([ids[job_id] for job_id in ordered]),
        "seen": Uuids([wanted[job_id][2] for job_id in ordered]),
    }


def _key_wishes(
    ids: Mapping[UUID, UUID], keys: Mapping[UUID, str], namespace: str
) -> dict[str, object]:
    # In the order of keys, as all writers take them.
    ordered = sorted(keys, key=lambda job_id: keys[job_id])
    return {
        "namespace": namespace,
        "unique_keys": Texts([keys[job_id] for job_id in ordered]),
        "new_ids": Uuids([ids[job_id] for job_id in ordered]),
    }


def _lost_keys(
    ids: Mapping[UUID, UUID], keys: Mapping[UUID, str], lost: Sequence[UUID], namespace: str
) -> dict[str, object]:
    return {
        "namespaces": Texts([namespace] * len(lost)),
        "unique_keys": Texts([keys[job_id] for job_id in lost]),
        "ids": Uuids([ids[job_id] for job_id in lost]),
    }


def _repeated(rows: Sequence[Row], epoch: int) -> list[tuple[JobEvent, UUID]]:
    if rows[0][0] > epoch:
        raise StaleEpoch(rows[0][0])
    return [(_redriven_event(row), row[3]) for row in rows if row[2] is not None]


def _redriven_event(row: Row) -> JobEvent:
    _, now, job_id, _, due_time, namespace, type_, labels = row
    what = (job_id, 1, JobState.SCHEDULED, Cause.REDRIVEN, now, 0, 0, None, due_time)
    return JobEvent(*what, None, None, namespace, type_, labels or NO_LABELS)


def _changed(row: Row) -> ChangeAnswer:
    job_id, namespace, type_, version, attempt, fence, due_time, now, labels, number = row
    state = STATES[number]
    due = due_time if state is JobState.SCHEDULED else None
    what = (job_id, version, state, Cause.UPDATED, now, attempt, fence, None, due)
    event = JobEvent(*what, None, None, namespace, type_, labels or NO_LABELS)
    return ChangeAnswer(ChangeOutcome.CHANGED, state, event, due is not None and due <= now)
