"""New jobs: place them, write each group in one statement, answer item by item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from uuid import UUID, uuid4

from services.mesh.clock import Clock
from services.mesh.errors import (
    IdempotencyConflict,
    MeshError,
    NoHealthyShard,
    OutcomeUnknown,
    ShardUnavailable,
    StaleEpoch,
    UniqueConflict,
)
from services.mesh.jobs.ids import new_job_id, new_job_keys
from services.mesh.jobs.model import AlikeJobs, NewJob
from services.mesh.jobs.record import record
from services.mesh.jobs.states import JobState
from services.mesh.jobs.topology import CHUNK, BucketMap, Group, free_buckets, place, takers
from services.mesh.runtime import together
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.parents import Parents, Wish
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.dueness import due_work, is_long
from services.orchestrator.domain.lent import Part
from services.orchestrator.ports import Announcer

log = logging.getLogger(__name__)

#: What puts a job into the queue, or at another place in it.
NEWS = (PutOutcome.CREATED, PutOutcome.REPLACED)

#: A try that fails so has stored nothing.
CERTAIN = (ShardUnavailable, StaleEpoch)


@record
class Draft:
    """A job that has no home yet: its key, if it has one, and how to make it under an id."""

    namespace: str
    key: tuple[str, str] | None
    type: str
    build: Callable[[UUID], NewJob]
    wish: Wish | None = None
    """What it waits for, and the key it wants to hold; most have neither."""


@record
class Stored:
    """A job that is in a shard."""

    shard: str
    result: PutResult


Outcome = Stored | MeshError

#: Until it is placed; made once, for making an error costs more than placing a job.
UNDECIDED = NoHealthyShard()


@record
class StoredAlike:
    """Jobs that one statement stored, new and due at once; their ids as 16 bytes each."""

    shard: str
    time: datetime
    keys: list[bytes]
    handed: bool = False
    """A worker has them."""


#: What became of jobs that are alike: of a chunk of them, or one by one.
AlikeOutcome = StoredAlike | list[Outcome]


class Submission:
    """Stores jobs. Redirects only what is certain not to have been stored."""

    def __init__(
        self,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        clock: Clock,
        random: Random,
        parents: Parents,
        loans: Loans,
    ) -> None:
        self._shards, self._topology, self._announcer = shards, topology, announcer
        self._clock, self._random = clock, random
        self._parents, self._loans = parents, loans
        self._turn = 0

    async def put(self, drafts: Sequence[Draft]) -> list[Outcome]:
        """One outcome per draft, in order."""
        outcomes: list[Outcome] = [UNDECIDED] * len(drafts)
        tied = [at for at, draft in enumerate(drafts) if draft.wish is not None]
        if not tied:
            await self._put(drafts, range(len(drafts)), outcomes, avoid=frozenset())
            return outcomes
        plain = [at for at, draft in enumerate(drafts) if draft.wish is None]
        await asyncio.gather(
            _apart(self._put(drafts, plain, outcomes, avoid=frozenset()), plain, outcomes),
            _apart(self._put_tied(drafts, tied, outcomes), tied, outcomes),
        )
        return outcomes

    async def put_alike(self, like: NewJob, inputs: Sequence[bytes]) -> list[AlikeOutcome]:
        """Jobs without keys and ties that differ in their inputs only: chunk by chunk, in order."""
        chunks = [inputs[at : at + CHUNK] for at in range(0, len(inputs), CHUNK)]
        return await together(*(self._put_apart(like, chunk) for chunk in chunks))

    async def _put_apart(self, like: NewJob, inputs: Sequence[bytes]) -> AlikeOutcome:
        try:
            return await self._put_chunk(like, inputs, frozenset())
        except Exception:
            return [_defect(len(inputs))] * len(inputs)

    async def _put_chunk(
        self, like: NewJob, inputs: Sequence[bytes], avoid: Collection[str]
    ) -> AlikeOutcome:
        bucket_map = self._topology.map
        healthy = [name for name in self._shards.usable() if name not in avoid]
        targets = takers(bucket_map, healthy)
        if not targets:
            return [NoHealthyShard()] * len(inputs)
        self._turn += 1
        shard = targets[self._turn % len(targets)]
        buckets = free_buckets(bucket_map, shard, len(inputs), self._random)
        # In order: they go to the right end of every index, and are claimed as they were sent.
        keys = sorted(new_job_keys(buckets, self._now_ms(), self._random))
        began = self._clock.monotonic()
        try:
            jobs = AlikeJobs(like, keys, list(inputs))
            answer = await self._stored(shard, jobs, bucket_map.epoch)
        except ShardUnavailable:
            # Certain: nothing was stored there. They may go elsewhere.
            self._shards.doubt(shard)
            return await self._put_chunk(like, inputs, {*avoid, shard})
        except MeshError as error:
            return [error] * len(inputs)
        if answer.time is not None:
            outcome: AlikeOutcome = StoredAlike(shard, answer.time, keys, handed=answer.delivered)
        else:
            outcome = [self._outcome(shard, result) for result in answer.results]
            if not any(isinstance(one, Stored) for one in outcome):
                return outcome
        slow = is_long(self._clock.monotonic() - began)
        try:
            if not answer.delivered:
                long = (like.type,) if slow else ()
                await self._announcer.due(shard, (like.type,), long=long, new=True)
            await self._announcer.stored(shard, (like.namespace, like.type))
        except Exception:  # they are stored, whatever becomes of the word about it
            _defect(len(inputs))
        return outcome

    async def _put_tied(
        self, drafts: Sequence[Draft], items: Sequence[int], outcomes: list[Outcome]
    ) -> None:
        """Jobs with ties go in statements of their own, when their parents are known."""
        wishes = [wish for at in items if (wish := drafts[at].wish) is not None]
        prepared = list(drafts)
        ready: list[int] = []
        for at, wish, ties in zip(items, wishes, await self._parents.marked(wishes), strict=True):
            if isinstance(ties, MeshError):
                outcomes[at] = ties
            else:
                prepared[at] = replace(drafts[at], wish=replace(wish, ties=ties))
                ready.append(at)
        await self._put(prepared, ready, outcomes, avoid=frozenset())

    async def _put(
        self,
        drafts: Sequence[Draft],
        items: Sequence[int],
        outcomes: list[Outcome],
        avoid: Collection[str],
    ) -> None:
        bucket_map = self._topology.map
        healthy = [name for name in self._shards.usable() if name not in avoid]
        self._turn += 1
        placement = place(
            bucket_map, healthy, [drafts[i].key for i in items], self._turn, self._random
        )
        for place_ in placement.homeless:
            outcomes[items[place_]] = NoHealthyShard()
        groups = [([items[i] for i in group.items], group) for group in placement.groups]
        await together(
            *(
                _apart(
                    self._put_group(drafts, places, group, bucket_map, outcomes, avoid),
                    places,
                    outcomes,
                )
                for places, group in groups
            )
        )

    async def _put_group(
        self,
        drafts: Sequence[Draft],
        places: Sequence[int],
        group: Group,
        bucket_map: BucketMap,
        outcomes: list[Outcome],
        avoid: Collection[str],
    ) -> None:
        began = self._clock.monotonic()
        try:
            answer = await self._write(drafts, places, group, bucket_map.epoch)
        except CERTAIN as error:
            if isinstance(error, ShardUnavailable):
                self._shards.doubt(group.shard)
            if isinstance(error, ShardUnavailable) and not group.keyed:
                # Certain: nothing was stored there. Un-keyed jobs may go elsewhere.
                await self._put(drafts, places, outcomes, {*avoid, group.shard})
                return
            self._fail(places, outcomes, error)
        except MeshError as error:
            self._fail(places, outcomes, error)
        else:
            # First of all: whatever goes wrong from here on, so much is known of them.
            self._settled(places, outcomes, group.shard, answer)
            if drafts[places[0]].wish is not None:
                ties = [wish.ties for at in places if (wish := drafts[at].wish) is not None]
                answer = await self._parents.released(group.shard, ties, answer)
                self._settled(places, outcomes, group.shard, answer)
            took = self._clock.monotonic() - began
            await self._announce(group.shard, drafts, places, answer, took)

    async def _write(
        self, drafts: Sequence[Draft], places: Sequence[int], group: Group, epoch: int
    ) -> PutAnswer:
        now_ms = self._now_ms()
        jobs: Sequence[NewJob] = [
            drafts[at].build(new_job_id(bucket, now_ms, self._random))
            for at, bucket in zip(places, group.buckets, strict=True)
        ]
        if drafts[places[0]].wish is not None:  # either all have ties or none
            wishes = [wish for at in places if (wish := drafts[at].wish) is not None]
            jobs = [replace(j, ties=wish.ties) for j, wish in zip(jobs, wishes, strict=True)]
        return await self._stored(group.shard, jobs, epoch)

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    async def _stored(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        part = self._loans.take(jobs)
        if part is not None:
            return await self._handed(part, shard, jobs, epoch)
        try:
            return await self._store(shard, jobs, epoch)
        except OutcomeUnknown:
            # The same rows under the same ids: if they are there, nothing happens; if not, now.
            return await self._settle(shard, jobs, epoch)

    async def _handed(
        self, part: Part, shard: str, jobs: Sequence[NewJob], epoch: int
    ) -> PutAnswer:
        """Store jobs into the hands of a worker that has room for them, and send them there."""
        try:
            answer = await self._into_hands(part, shard, jobs, epoch)
        except BaseException:
            self._loans.give_back(part)
            raise
        await self._loans.deliver(part, shard, jobs, answer)
        return answer

    async def _into_hands(
        self, part: Part, shard: str, jobs: Sequence[NewJob], epoch: int
    ) -> PutAnswer:
        store = self._shards.store(shard)
        try:
            return await store.put_jobs(jobs, epoch, part.grab.worker_id)
        except OutcomeUnknown:
            # If they are there, they are in its hands; if not, they go the usual way now.
            return await self._settle(shard, jobs, epoch)

    async def _store(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        store = self._shards.store(shard)
        if not isinstance(jobs, AlikeJobs) and jobs[0].ties is not None:
            return await store.put_tied_jobs(jobs, epoch)
        return await store.put_jobs(jobs, epoch)

    async def _settle(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        try:
            return _uncertain(shard, await self._store(shard, jobs, epoch))
        except MeshError as error:
            extra = {"action": "outcome_unknown", "shard": shard, "count": len(jobs)}
            log.warning("cannot tell whether jobs were stored", extra=extra)
            raise OutcomeUnknown(shard) from error

    def _settled(
        self, places: Sequence[int], outcomes: list[Outcome], shard: str, answer: PutAnswer
    ) -> None:
        for at, result in zip(places, answer.results, strict=True):
            outcomes[at] = self._outcome(shard, result)

    def _fail(self, places: Sequence[int], outcomes: list[Outcome], error: MeshError) -> None:
        for at in places:
            outcomes[at] = error

    def _outcome(self, shard: str, result: PutResult | MeshError) -> Outcome:
        if isinstance(result, MeshError):
            return result
        if result.outcome is PutOutcome.CONFLICT:
            return IdempotencyConflict(result.job_id)
        if result.outcome is PutOutcome.HELD:
            return UniqueConflict(result.job_id)
        return Stored(shard, result)

    async def _announce(
        self,
        shard: str,
        drafts: Sequence[Draft],
        places: Sequence[int],
        answer: PutAnswer,
        took: float,
    ) -> None:
        created = [
            (drafts[at], result)
            for at, result in zip(places, answer.results, strict=True)
            if isinstance(result, PutResult) and result.outcome in NEWS
        ]
        waiting = (
            (draft.type, result.due_time, result.create_time)
            for draft, result in created
            if result.state is JobState.SCHEDULED and not (result.handed and answer.delivered)
        )
        due = due_work(waiting, took)
        if due:
            await self._announcer.due(shard, due.now, due.soon, due.long, new=True)
        if drafts[places[0]].wish is not None:  # jobs that were there before may have changed
            await self._announcer.committed(shard, answer.events)
        elif created:
            names = {name for draft, _ in created for name in (draft.namespace, draft.type)}
            await self._announcer.stored(shard, names)


async def _apart(work: Awaitable[None], places: Sequence[int], outcomes: list[Outcome]) -> None:
    """Await what is done for some jobs. What goes wrong unforeseen is told of these only, as far as
    nothing is known of them: those beside them go on, and have outcomes of their own.
    """
    try:
        await work
    except Exception:
        error = _defect(len(places))
        for at in places:
            if outcomes[at] is UNDECIDED:
                outcomes[at] = error


def _defect(count: int) -> OutcomeUnknown:
    """What is told of jobs that went wrong in a way nobody thought of: maybe after the write."""
    correlation_id = uuid4().hex
    extra = {"action": "put_defect", "correlation_id": correlation_id, "count": count}
    log.exception("new jobs went wrong", extra=extra)
    return OutcomeUnknown.by_defect(correlation_id)


def _uncertain(shard: str, answer: PutAnswer) -> PutAnswer:
    """The answer to jobs that were sent again: what this try certainly did not store, the first
    one may have.
    """
    if answer.time is not None or not any(isinstance(r, CERTAIN) for r in answer.results):
        return answer
    unknown = OutcomeUnknown(shard)
    results = [unknown if isinstance(r, CERTAIN) else r for r in answer.results]
    return PutAnswer(results, answer.events)
