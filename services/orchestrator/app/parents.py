"""New jobs that wait for others: the parents are marked first, and looked at once more afterwards.

A parent that ends between the two looks is seen by the second one. Should this process die before
that, the schedulers' look at BLOCKED jobs finds it; nothing here has to succeed once a job is
stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from services.mesh.errors import JobNotFound, MeshError
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Parent, Ties, open_waits
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.mesh.store.port import ShardStore
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.shards import Shards

log = logging.getLogger(__name__)

Named = tuple[str, UUID]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a new job is tied to, as its submitter said it."""

    namespace: str
    ties: Ties


class Parents:
    """Knows how the jobs stand that new ones wait for, wherever they are."""

    def __init__(self, lookup: Lookup, shards: Shards) -> None:
        self._lookup, self._shards = lookup, shards

    async def marked(self, wishes: Sequence[Wish]) -> list[Ties | MeshError]:
        """The ties of each, with what stands in its way; or why it cannot be stored."""
        named = {(wish.namespace, d.job_id) for wish in wishes for d in wish.ties.dependencies}
        known = await self._mark(named) if named else {}
        return [_with_waits(wish, known) for wish in wishes]

    async def _mark(self, named: Iterable[Named]) -> Mapping[Named, Parent | MeshError]:
        spaces: dict[UUID, list[str]] = {}
        for namespace, job_id in named:
            spaces.setdefault(job_id, []).append(namespace)

        async def ask(store: ShardStore, ids: list[UUID]) -> dict[UUID, dict[Named, Parent]]:
            found = await store.await_jobs([(space, i) for i in ids for space in spaces[i]])
            by_id: dict[UUID, dict[Named, Parent]] = {}
            for name, parent in found.items():
                by_id.setdefault(parent.job_id, {})[name] = parent
            return by_id

        known: dict[Named, Parent | MeshError] = {}
        ids = list(spaces)
        answers = await self._lookup.by_id(ids, ask)
        for job_id, answer in zip(ids, answers, strict=True):
            if isinstance(answer, MeshError):
                known.update({(space, job_id): answer for space in spaces[job_id]})
            elif answer is not None:
                known.update(answer)
        return known

    async def released(self, shard: str, ties: Sequence[Ties], answer: PutAnswer) -> PutAnswer:
        """The answer after those were released whose parents have ended meanwhile."""
        waits = {
            wait.job_id
            for tie, result in zip(ties, answer.results, strict=True)
            if _is_blocked(result)
            for wait in tie.waits
        }
        if not waits:
            return answer
        try:
            events = await self._release(shard, list(waits))
        except MeshError as error:
            extra = {"action": "release_deferred", "shard": shard, "count": len(waits)}
            log.warning("leaves a release to the schedulers: %s", error, extra=extra)
            return answer
        after = {event.job_id: event for event in events}
        results = [_after(result, after) for result in answer.results]
        return PutAnswer(results, [*answer.events, *events])

    async def _release(self, shard: str, ids: list[UUID]) -> list[JobEvent]:
        async def ask(store: ShardStore, asked: list[UUID]) -> dict[UUID, Parent]:
            return {parent.job_id: parent for parent in await store.parents(asked)}

        answers = await self._lookup.by_id(ids, ask)
        ended = [parent for parent in answers if isinstance(parent, Parent) and parent.ended]
        events: list[JobEvent] = []
        more = bool(ended)
        while more:
            release = await self._shards.store(shard).release(ended)
            events += release.events
            more = release.more
        return events


def _with_waits(wish: Wish, known: Mapping[Named, Parent | MeshError]) -> Ties | MeshError:
    parents: dict[UUID, Parent] = {}
    for number, dependency in enumerate(wish.ties.dependencies):
        found = known.get((wish.namespace, dependency.job_id))
        if found is None:
            text = f"dependencies[{number}]: no job {dependency.job_id} in this namespace"
            return JobNotFound(dependency.job_id, text)
        if isinstance(found, MeshError):
            return found
        parents[dependency.job_id] = found
    return replace(wish.ties, waits=open_waits(wish.ties.dependencies, parents))


def _is_blocked(result: PutResult | MeshError) -> bool:
    return (
        isinstance(result, PutResult)
        and result.outcome is PutOutcome.CREATED
        and result.state is JobState.BLOCKED
    )


def _after(result: PutResult | MeshError, events: Mapping[UUID, JobEvent]) -> PutResult | MeshError:
    if not isinstance(result, PutResult) or result.outcome is not PutOutcome.CREATED:
        return result
    if (event := events.get(result.job_id)) is None:
        return result
    due = event.due_time
    return replace(
        result,
        state=event.state,
        version=event.version,
        due_time=due or result.due_time,
        due_now=due is not None and due <= event.time,
    )
