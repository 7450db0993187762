"""New jobs that are alike, in columns: what they have in common is held once (docs/adr/0009)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from random import Random
from typing import TypeGuard

from services.mesh.clock import Clock
from services.mesh.errors import MeshError, NoHealthyShard, ShardUnavailable
from services.mesh.jobs.alike import AlikeJobs, Keyed
from services.mesh.jobs.ids import new_job_keys
from services.mesh.jobs.model import NewJob
from services.mesh.jobs.record import record
from services.mesh.jobs.states import JobState
from services.mesh.jobs.topology import CHUNK, BucketMap, Group, free_buckets, keyed_groups, takers
from services.mesh.runtime import together
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.storing import Outcome, Storing, defect
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.dueness import is_long
from services.orchestrator.ports import Announcer


@record
class StoredAlike:
    """Jobs that one statement stored, new and due at once; their ids as 16 bytes each."""

    shard: str
    time: datetime
    keys: list[bytes]
    handed: bool = False
    """A worker has them."""


@record
class AlikeOutcome:
    """What became of some jobs, whose places those are: of all at once, or one by one."""

    places: Sequence[int]
    stored: StoredAlike | list[Outcome]


class AlikeSubmission:
    """Stores jobs that differ in the bytes of their inputs, and their idempotency keys, only."""

    def __init__(
        self,
        storing: Storing,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        clock: Clock,
        random: Random,
    ) -> None:
        self._storing, self._shards, self._topology = storing, shards, topology
        self._announcer, self._clock, self._random = announcer, clock, random
        self._turn = 0

    async def put(
        self, like: NewJob, inputs: Sequence[bytes], keyed: Keyed | None = None
    ) -> list[AlikeOutcome]:
        """Jobs without ties: those with keys go where their keys belong, or nowhere; others, chunk
        by chunk, to any healthy shard.
        """
        if keyed is not None:
            return await self._put_keyed(like, inputs, keyed)
        chunks = [range(len(inputs))[at : at + CHUNK] for at in range(0, len(inputs), CHUNK)]
        stored = await together(*(self._free(like, inputs[c.start : c.stop]) for c in chunks))
        return [AlikeOutcome(*pair) for pair in zip(chunks, stored, strict=True)]

    async def _put_keyed(
        self, like: NewJob, inputs: Sequence[bytes], keyed: Keyed
    ) -> list[AlikeOutcome]:
        bucket_map = self._topology.map
        groups = keyed_groups(bucket_map, like.namespace, keyed.keys)

        def jobs_of(group: Group) -> AlikeJobs:
            own, ids = [inputs[at] for at in group.items], self._ids(group.buckets)
            if len(set(group.buckets)) == 1:  # as those with one tag: claimed as they were sent
                ids.sort()
            return AlikeJobs(like, ids, own, keyed.at(group.items))

        stored = await together(
            *(self._at_home(g.shard, jobs_of(g), bucket_map.epoch) for g in groups)
        )
        return [AlikeOutcome(g.items, one) for g, one in zip(groups, stored, strict=True)]

    async def _free(self, like: NewJob, inputs: Sequence[bytes]) -> StoredAlike | list[Outcome]:
        try:
            return await self._anywhere(like, inputs, frozenset())
        except Exception:
            return [defect(len(inputs))] * len(inputs)

    async def _anywhere(
        self, like: NewJob, inputs: Sequence[bytes], avoid: Collection[str]
    ) -> StoredAlike | list[Outcome]:
        bucket_map = self._topology.map
        shard = self._next_shard(bucket_map, avoid)
        if shard is None:
            return [NoHealthyShard()] * len(inputs)
        ids = self._ids(free_buckets(bucket_map, shard, len(inputs), self._random))
        # In order: they go to the right end of every index, and are claimed as they were sent.
        jobs = AlikeJobs(like, sorted(ids), list(inputs))
        try:
            return await self._stored(shard, jobs, bucket_map.epoch)
        except ShardUnavailable:
            # Certain: nothing was stored there. They may go elsewhere.
            self._shards.doubt(shard)
            return await self._anywhere(like, inputs, {*avoid, shard})
        except MeshError as error:
            return [error] * len(inputs)

    async def _at_home(
        self, shard: str, jobs: AlikeJobs, epoch: int
    ) -> StoredAlike | list[Outcome]:
        try:
            return await self._stored(shard, jobs, epoch)
        except MeshError as error:
            if isinstance(error, ShardUnavailable):
                self._shards.doubt(shard)
            return [error] * len(jobs)
        except Exception:
            return [defect(len(jobs))] * len(jobs)

    def _next_shard(self, bucket_map: BucketMap, avoid: Collection[str]) -> str | None:
        healthy = [name for name in self._shards.usable() if name not in avoid]
        targets = takers(bucket_map, healthy)
        self._turn += 1
        return targets[self._turn % len(targets)] if targets else None

    def _ids(self, buckets: Sequence[int]) -> list[bytes]:
        return new_job_keys(buckets, self._clock.now_us() // 1000, self._random)

    async def _stored(self, shard: str, jobs: AlikeJobs, epoch: int) -> StoredAlike | list[Outcome]:
        answer = await self._storing.store(shard, jobs, epoch)
        slow = is_long(answer.took)
        try:
            await self._announce(shard, jobs.like, answer, slow=slow)
        except Exception:  # they are stored, whatever becomes of the word about it
            defect(len(jobs))
        if answer.time is not None:
            return StoredAlike(shard, answer.time, jobs.keys, handed=answer.delivered)
        return self._storing.outcomes(shard, answer)

    async def _announce(self, shard: str, like: NewJob, answer: PutAnswer, *, slow: bool) -> None:
        if answer.time is not None:
            is_waiting = [not answer.delivered]
        else:
            is_waiting = [_waits(one, answer) for one in answer.results if _is_new(one)]
        if any(is_waiting):
            long = (like.type,) if slow else ()
            await self._announcer.due(shard, (like.type,), long=long, new=True)
        if is_waiting:
            await self._announcer.stored(shard, (like.namespace, like.type))


def _is_new(result: PutResult | MeshError) -> TypeGuard[PutResult]:
    return isinstance(result, PutResult) and result.outcome is PutOutcome.CREATED


def _waits(result: PutResult, answer: PutAnswer) -> bool:
    """Whether the job is in the queue, and not in the hands of a worker who has heard of it."""
    return result.state is JobState.SCHEDULED and not (result.handed and answer.delivered)
