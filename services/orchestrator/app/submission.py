"""New jobs: place them, write each group in one statement, answer item by item."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

from services.mesh.clock import Clock
from services.mesh.errors import MeshError, NoHealthyShard, ShardUnavailable
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import NewJob
from services.mesh.jobs.record import record
from services.mesh.jobs.states import JobState
from services.mesh.jobs.topology import BucketMap, Group, place
from services.mesh.runtime import together
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.alike import AlikeSubmission
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.parents import Parents, Wish
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.storing import CERTAIN, Outcome, Storing, defect
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.dueness import due_work
from services.orchestrator.ports import Announcer

#: What puts a job into the queue, or at another place in it.
NEWS = (PutOutcome.CREATED, PutOutcome.REPLACED)


@record
class Draft:
    """A job that has no home yet: its key, if it has one, and how to make it under an id."""

    namespace: str
    key: tuple[str, str] | None
    type: str
    build: Callable[[UUID], NewJob]
    wish: Wish | None = None
    """What it waits for, and the key it wants to hold; most have neither."""


#: Until it is placed; made once, for making an error costs more than placing a job.
UNDECIDED = NoHealthyShard()


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
        self._parents = parents
        self._storing = Storing(shards, loans, clock)
        #: For jobs that differ in little.
        self.alike = AlikeSubmission(self._storing, shards, topology, announcer, clock, random)
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
            took = answer.took
            if drafts[places[0]].wish is not None:
                ties = [wish.ties for at in places if (wish := drafts[at].wish) is not None]
                answer = await self._parents.released(group.shard, ties, answer)
                self._settled(places, outcomes, group.shard, answer)
            await self._announce(group.shard, drafts, places, answer, took)

    async def _write(
        self, drafts: Sequence[Draft], places: Sequence[int], group: Group, epoch: int
    ) -> PutAnswer:
        now_ms = self._clock.now_us() // 1000
        jobs: Sequence[NewJob] = [
            drafts[at].build(new_job_id(bucket, now_ms, self._random))
            for at, bucket in zip(places, group.buckets, strict=True)
        ]
        if drafts[places[0]].wish is not None:  # either all have ties or none
            wishes = [wish for at in places if (wish := drafts[at].wish) is not None]
            jobs = [replace(j, ties=wish.ties) for j, wish in zip(jobs, wishes, strict=True)]
        return await self._storing.store(group.shard, jobs, epoch)

    def _settled(
        self, places: Sequence[int], outcomes: list[Outcome], shard: str, answer: PutAnswer
    ) -> None:
        for at, outcome in zip(places, self._storing.outcomes(shard, answer), strict=True):
            outcomes[at] = outcome

    def _fail(self, places: Sequence[int], outcomes: list[Outcome], error: MeshError) -> None:
        for at in places:
            outcomes[at] = error

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
        error = defect(len(places))
        for at in places:
            if outcomes[at] is UNDECIDED:
                outcomes[at] = error
