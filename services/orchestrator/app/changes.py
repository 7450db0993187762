"""What callers do to many jobs, or to one that exists already: count, cancel by filter, redrive,
update, locate.

A call by filter walks each shard from the newest id down, in batches of one statement each, and
stops at a bound: the caller goes on from there. Shards walk side by side, so the place to go on
from is the newest at which one of them stopped; the others meet a few jobs twice, which changes
nothing, since those no longer match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from uuid import UUID

from services.mesh.clock import Clock
from services.mesh.errors import (
    EtagMismatch,
    ForbiddenTransition,
    InvalidField,
    JobNotFound,
    MeshError,
    OutcomeUnknown,
    ShardUnavailable,
    UniqueConflict,
)
from services.mesh.jobs.ids import bucket_of, new_job_id
from services.mesh.jobs.model import JobEvent, JobFilter
from services.mesh.jobs.states import LIVE, UNSUCCESSFUL, JobState
from services.mesh.store.answers import (
    CancelOutcome,
    ChangeAnswer,
    ChangeOutcome,
    JobChange,
    QueuePlace,
    RedriveOutcome,
    RedriveResult,
)
from services.mesh.store.port import ShardStore
from services.orchestrator.app.lookup import Found, Lookup
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.dueness import due_work
from services.orchestrator.ports import Announcer

#: Jobs per statement, and statements per shard in one call.
BATCH = 500
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state. `missing` are the shards that did not answer."""

    by_state: dict[JobState, int]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Walked:
    """How many jobs were changed, where to go on, and the shards that did not answer."""

    count: int
    next_before: UUID | None
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Redriven:
    """The job that repeats another; `existing`: an earlier call made it."""

    found: Found
    existing: bool


@dataclass(frozen=True, slots=True)
class Located:
    """A job and the line before it. `missing` are shards whose part of the line is not known."""

    found: Found
    now: datetime
    ahead: int = 0
    capped: bool = False
    starts_per_second: float = 0.0
    missing: Sequence[str] = ()
    waits_for: Sequence[Found | UUID] = ()
    """What a BLOCKED job still waits for; only the id where the shard is away."""


@dataclass(frozen=True, slots=True)
class _Leg:
    """One shard's part of a walk."""

    count: int
    stopped_at: UUID | None = None
    away: str = ""


class Changes:
    """Counts and changes jobs wherever they are."""

    def __init__(
        self,
        lookup: Lookup,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        clock: Clock,
        random: Random,
    ) -> None:
        self._lookup, self._shards, self._topology = lookup, shards, topology
        self._announcer, self._clock, self._random = announcer, clock, random

    async def count(self, jobs: JobFilter) -> Counts:
        """How many jobs of each state match."""
        found, missing = await self._lookup.search(lambda store: store.count_jobs(jobs))
        total: Counter[JobState] = Counter()
        for part in found:
            total.update(part)
        return Counts(dict(total), missing)

    # --- cancel

    async def cancel(
        self, jobs: JobFilter, before: UUID | None, reason: str, *, dry_run: bool
    ) -> Walked:
        """Cancel those that match and have not ended; each row decides."""

        async def batch(store: ShardStore, ids: list[UUID]) -> int:
            results = await self._lookup.cancel_on(store, ids, jobs.namespace or "", reason)
            return sum(result.outcome is CancelOutcome.CANCELLED for result in results)

        return await self._walk(_within(jobs, LIVE), before, batch, dry_run=dry_run)

    # --- redrive

    async def redrive(
        self,
        ids: Sequence[UUID],
        namespace: str,
        traceparent: str,
        wishes: Mapping[UUID, UUID] | None = None,
    ) -> list[Redriven | MeshError]:
        """One answer per id, in order. `wishes`: the ids of the new jobs, where the caller asks
        again under the same ones.
        """

        async def ask(store: ShardStore, asked: list[UUID]) -> dict[UUID, RedriveResult]:
            results = await self._redrive_on(store, asked, namespace, traceparent, wishes)
            return {result.job_id: result for result in results}

        answers = await self._lookup.by_id(ids, ask)
        results = [_refusal(job_id, a) for job_id, a in zip(ids, answers, strict=True)]
        made = [r.redrive_id for r in results if isinstance(r, RedriveResult) and r.redrive_id]
        jobs = iter(await self._lookup.get(made, namespace, full=False))
        return [
            result if isinstance(result, MeshError) else self._redriven(result, next(jobs))
            for result in results
        ]

    def _redriven(self, result: RedriveResult, job: Found | MeshError) -> Redriven | MeshError:
        if isinstance(job, ShardUnavailable):
            # It may have been made: that is not to be denied.
            return OutcomeUnknown(self._topology.shard_of(result.job_id))
        if isinstance(job, MeshError):
            return job
        return Redriven(job, result.outcome is RedriveOutcome.EXISTING)

    async def redrive_matching(
        self, jobs: JobFilter, before: UUID | None, traceparent: str, *, dry_run: bool
    ) -> Walked:
        """Redrive those that match, ended without success and were not redriven before."""

        async def batch(store: ShardStore, ids: list[UUID]) -> int:
            results = await self._redrive_on(store, ids, jobs.namespace or "", traceparent)
            return sum(result.outcome is RedriveOutcome.CREATED for result in results)

        wanted = _within(jobs, UNSUCCESSFUL)
        if wanted is not None:
            wanted = replace(wanted, redriven=False)
        return await self._walk(wanted, before, batch, dry_run=dry_run)

    async def _redrive_on(
        self,
        store: ShardStore,
        ids: Sequence[UUID],
        namespace: str,
        traceparent: str,
        given: Mapping[UUID, UUID] | None = None,
    ) -> list[RedriveResult]:
        now_ms = int(self._clock.now().timestamp() * 1000)
        # In the bucket of the origin: wherever that moves, the two stay together.
        wishes = {job_id: new_job_id(bucket_of(job_id), now_ms, self._random) for job_id in ids}
        wishes |= {job_id: new for job_id, new in (given or {}).items() if job_id in wishes}
        epoch, began = self._topology.map.epoch, self._clock.monotonic()
        try:
            answer = await store.redrive(wishes, namespace, epoch, traceparent or None)
        except OutcomeUnknown as unknown:
            # Asked again, the shard says what there is: a job that was made is found, not doubled.
            try:
                answer = await store.redrive(wishes, namespace, epoch, traceparent or None)
            except MeshError as error:
                raise unknown from error  # this one says only that the second try stored nothing
        await self._tell(store.name, answer.events, began)
        return answer.results

    # --- update

    async def update(self, job_id: UUID, namespace: str, change: JobChange) -> Found:
        """Change a job that waits, and return it as it is then."""
        store = self._shards.store(self._topology.shard_of(job_id))
        began = self._clock.monotonic()
        answer = await store.change(job_id, namespace, change)
        if answer.event is None:
            raise _not_changed(job_id, answer)
        await self._tell(store.name, [answer.event], began)
        (found,) = await self._lookup.get([job_id], namespace, full=False)
        if isinstance(found, ShardUnavailable):
            raise OutcomeUnknown(store.name) from found  # it is changed: that is not to be denied
        if isinstance(found, MeshError):
            raise found
        return found

    # --- locate

    async def locate(self, job_id: UUID, namespace: str) -> Located:
        """A job, and the line before it if it is due."""
        (found,) = await self._lookup.get([job_id], namespace, full=False)
        if isinstance(found, MeshError):
            raise found
        job = found.record
        if job.state is JobState.BLOCKED:
            return await self._locate_blocked(found)
        if job.state is not JobState.SCHEDULED:
            return Located(found, self._clock.now())
        home = await self._shards.store(found.shard).place_in_queue(job)
        if job.due_time > home.now:
            return Located(found, home.now)

        async def ask(store: ShardStore) -> tuple[QueuePlace, float]:
            return await store.place_in_queue(job), await store.claims_per_second(job.type)

        parts, missing = await self._lookup.everywhere(ask)
        return Located(
            found,
            home.now,
            ahead=sum(place.ahead for place, _ in parts),
            capped=any(place.capped for place, _ in parts),
            starts_per_second=sum(pace for _, pace in parts),
            missing=missing,
        )

    async def _locate_blocked(self, found: Found) -> Located:
        ids = await self._shards.store(found.shard).waits_of(found.record.id)
        parents = await self._lookup.get(ids, found.record.namespace, full=False)
        waits = [p if isinstance(p, Found) else i for i, p in zip(ids, parents, strict=True)]
        return Located(found, self._clock.now(), waits_for=waits)

    # --- what they share

    async def _walk(
        self,
        jobs: JobFilter | None,
        before: UUID | None,
        batch: Callable[[ShardStore, list[UUID]], Awaitable[int]],
        *,
        dry_run: bool,
    ) -> Walked:
        if jobs is None:
            return Walked(0, None, [])
        if dry_run:
            counts = await self.count(jobs)
            return Walked(sum(counts.by_state.values()), None, counts.missing)
        wanted = jobs

        async def leg(store: ShardStore) -> _Leg:
            return await self._leg(store, wanted, before, batch)

        with self._lookup.searching():
            legs, missing = await self._lookup.everywhere(leg)
        stops = [leg.stopped_at for leg in legs if leg.stopped_at is not None]
        missing += [leg.away for leg in legs if leg.away]
        return Walked(sum(leg.count for leg in legs), max(stops, default=None), missing)

    async def _leg(
        self,
        store: ShardStore,
        jobs: JobFilter,
        before: UUID | None,
        batch: Callable[[ShardStore, list[UUID]], Awaitable[int]],
    ) -> _Leg:
        async def match(found: ShardStore) -> list[UUID]:
            return await found.match_jobs(jobs, before, BATCH)

        count = 0
        for _ in range(ROUNDS):
            try:
                # To find them may take long; to change them does not, and waits for no search.
                ids = await self._lookup.search_one(store.name, match)
                if ids:
                    count += await batch(store, ids)
            except MeshError:
                return _Leg(count, away=store.name)  # what was done before is done
            if len(ids) < BATCH:
                return _Leg(count)
            before = ids[-1]
        return _Leg(count, stopped_at=before)

    async def _tell(self, shard: str, events: Sequence[JobEvent], began: float) -> None:
        took = self._clock.monotonic() - began
        due = due_work(((event.type, event.due_time, event.time) for event in events), took)
        if due:
            await self._announcer.due(shard, due.now, due.soon, due.long)
        await self._announcer.committed(shard, events)


def _within(jobs: JobFilter, states: frozenset[JobState]) -> JobFilter | None:
    """The filter with its states cut down to `states`; None if nothing is left."""
    left = jobs.states & states if jobs.states else states
    return replace(jobs, states=left) if left else None


def _refusal(job_id: UUID, answer: RedriveResult | MeshError | None) -> RedriveResult | MeshError:
    if answer is None or isinstance(answer, MeshError):
        return answer or JobNotFound(job_id)
    if answer.outcome is RedriveOutcome.NOT_FOUND:
        return JobNotFound(job_id)
    if answer.outcome is RedriveOutcome.HELD:
        text = f"cannot retry job {job_id}: another live one holds its unique key"
        return UniqueConflict(answer.redrive_id, text)
    if answer.outcome is RedriveOutcome.REFUSED:
        assert answer.state is not None
        return ForbiddenTransition(job_id, answer.state.name, "retry")
    return answer


def _not_changed(job_id: UUID, answer: ChangeAnswer) -> MeshError:
    match answer.outcome:
        case ChangeOutcome.FORBIDDEN:
            state = answer.state.name if answer.state is not None else ""
            return ForbiddenTransition(job_id, state, "update")
        case ChangeOutcome.OTHER_VERSION:
            return EtagMismatch("job", str(job_id))
        case ChangeOutcome.PAST_EXPIRY:
            return InvalidField("job.schedule_time", "must be before the job's expire_time")
        case _:
            return JobNotFound(job_id)
