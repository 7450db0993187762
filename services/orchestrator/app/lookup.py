"""Reading and cancelling jobs over all shards. A shard that is away hurts only its own jobs."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from services.mesh.errors import JobNotFound, MeshError, Overloaded, ShardUnavailable
from services.mesh.jobs.attempts import NO_HISTORY, History
from services.mesh.jobs.ids import bucket_of_bytes
from services.mesh.jobs.model import JobEvent, JobFilter, JobRecord
from services.mesh.jobs.record import record
from services.mesh.store.answers import CancelOutcome, CancelResult, Ends
from services.mesh.store.port import ShardStore
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.ports import Announcer

T = TypeVar("T")

#: Searches at once of one shard, unless it is said: half of the connections that a process has.
SEARCHES = 4
#: Calls that search, under way or waiting, for each search that a shard may have at once. Who comes
#: after them would wait for longer than a caller does.
CALLS_PER_SEARCH = 16
#: Events that one answer is made from: all attempts that a policy grants, at three events each, and
#: some more. Of a job that has more yet, as one that snoozes often, the newest are told.
MOST_EVENTS = 4_000
#: Bytes of failures in one answer: with inputs and outputs beside them it must fit a message.
MOST_BYTES = 8 * 1024**2


@record
class Found:
    """A job, where it is, and (when asked for) what its events tell."""

    shard: str
    record: JobRecord
    history: History = NO_HISTORY


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs newest first. `missing` are the shards that did not answer."""

    jobs: list[Found]
    more: bool
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Events:
    """Events by job and version. `missing` are the shards that did not answer."""

    events: list[JobEvent]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class EndsFound:
    """How jobs ended, by shard; ids that do not exist; shards that did not answer."""

    by_shard: dict[str, list[JobEvent]]
    unknown: list[bytes]
    missing: list[str]


class Lookup:
    """Finds jobs wherever they are."""

    def __init__(
        self,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        searches: int = SEARCHES,
    ) -> None:
        self._shards, self._topology, self._announcer = shards, topology, announcer
        self._searches = {name: asyncio.Semaphore(searches) for name in shards.names}
        self._searching, self._most_searching = 0, searches * CALLS_PER_SEARCH

    async def get(
        self, ids: Sequence[UUID], namespace: str | None, *, full: bool
    ) -> list[Found | MeshError]:
        """One answer per id, in order. A job of another namespace is not found."""

        async def ask(store: ShardStore, asked: list[UUID]) -> dict[UUID, Found]:
            records = await store.get_jobs(asked, payloads=full)
            histories = await _histories(store, records, len(ids)) if full else {}
            return {
                job.id: Found(store.name, job, histories.get(job.id, NO_HISTORY))
                for job in records
                if namespace is None or job.namespace == namespace
            }

        answers = await self.by_id(ids, ask)
        return [answer or JobNotFound(job_id) for job_id, answer in zip(ids, answers, strict=True)]

    async def cancel(
        self, ids: Sequence[UUID], namespace: str, reason: str
    ) -> list[CancelResult | MeshError]:
        """One answer per id, in order; the row decided each."""

        async def ask(store: ShardStore, asked: list[UUID]) -> dict[UUID, CancelResult | MeshError]:
            results = await self.cancel_on(store, asked, namespace, reason)
            away = ShardUnavailable(store.name)
            return {
                r.job_id: away if r.outcome is CancelOutcome.UNRESOLVED else r
                for r in results
                if r.outcome is not CancelOutcome.NOT_FOUND
            }

        answers = await self.by_id(ids, ask)
        return [answer or JobNotFound(job_id) for job_id, answer in zip(ids, answers, strict=True)]

    async def cancel_on(
        self, store: ShardStore, ids: Sequence[UUID], namespace: str, reason: str
    ) -> list[CancelResult]:
        """Cancel jobs of one shard, and tell watchers and workers."""
        answer = await store.cancel(ids, reason, namespace)
        await self._announcer.committed(store.name, answer.events)
        await self._stop_workers(answer.results)
        return answer.results

    async def page(self, jobs: JobFilter, before: UUID | None, limit: int, *, full: bool) -> Page:
        """A page over all shards, newest first, stable while jobs move: ids never change."""

        async def ask(store: ShardStore) -> list[Found]:
            records = await store.list_jobs(jobs, before, limit + 1, payloads=full)
            return [Found(store.name, job) for job in records]

        pages, missing = await self.search(ask)
        merged = list(heapq.merge(*pages, key=lambda found: found.record.id, reverse=True))
        return Page(merged[:limit], len(merged) > limit, missing)

    async def events(self, cursors: Sequence[tuple[UUID, int]]) -> Events:
        """What happened to jobs after the version known of each."""
        groups: dict[str, list[tuple[UUID, int]]] = {}
        for job_id, version in cursors:
            groups.setdefault(self._topology.shard_of(job_id), []).append((job_id, version))

        async def ask(store: ShardStore) -> list[JobEvent]:
            return await store.events_after(groups[store.name])

        found, missing = await self.everywhere(ask, groups)
        return Events([event for events in found for event in events], missing)

    async def ends(self, keys: Sequence[bytes], namespace: str | None) -> EndsFound:
        """How jobs ended, of those that have."""
        groups: dict[str, list[bytes]] = {}
        shard_of = self._topology.map.shard_of
        for key in keys:
            groups.setdefault(shard_of(bucket_of_bytes(key)), []).append(key)

        async def ask(store: ShardStore) -> tuple[str, Ends]:
            return store.name, await store.ends(groups[store.name], namespace)

        found, missing = await self.everywhere(ask, groups)
        return EndsFound(
            {shard: ends.events for shard, ends in found if ends.events},
            [key for _, ends in found for key in ends.unknown],
            missing,
        )

    async def _stop_workers(self, results: Sequence[CancelResult]) -> None:
        attempts: dict[str, list[tuple[UUID, int]]] = {}
        for result in results:
            if result.outcome is CancelOutcome.CANCELLED and result.worker_id:
                attempts.setdefault(result.worker_id, []).append((result.job_id, result.fence))
        for worker_id, stopped in attempts.items():
            await self._announcer.cancelled(worker_id, stopped)

    async def by_id(
        self,
        ids: Sequence[UUID],
        ask: Callable[[ShardStore, list[UUID]], Awaitable[dict[UUID, T]]],
    ) -> list[T | MeshError | None]:
        """Ask each shard for its own ids; None where a shard that answered has no such job."""
        groups: dict[str, list[UUID]] = {}
        for job_id in ids:
            groups.setdefault(self._topology.shard_of(job_id), []).append(job_id)

        async def group(name: str, asked: list[UUID]) -> dict[UUID, T | MeshError]:
            try:
                return {**await ask(self._shards.store(name), asked)}
            except MeshError as error:
                return dict.fromkeys(asked, error)

        answers: dict[UUID, T | MeshError] = {}
        for part in await asyncio.gather(*(group(n, asked) for n, asked in groups.items())):
            answers.update(part)
        return [answers.get(job_id) for job_id in ids]

    def all_shards(self) -> list[str]:
        """Those of the map, also if this process was not told how to reach them."""
        named = (shard.name for shard in self._topology.map.shards)
        return sorted({*self._shards.names, *named})

    async def search(self, ask: Callable[[ShardStore], Awaitable[T]]) -> tuple[list[T], list[str]]:
        """As `everywhere`, of what may take long. The others of its kind wait before they take a
        connection, so that some are left for puts and reports. Overloaded if too many wait.
        """
        with self.searching():
            return await self.everywhere(lambda store: self.search_one(store.name, ask))

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Count a call in that searches in this block; Overloaded if there are too many. It is
        refused as a whole, before it does anything: no shard would be missing in its answer.
        """
        if self._searching >= self._most_searching:
            raise Overloaded(f"{self._searching} searches are under way already")
        self._searching += 1
        try:
            yield
        finally:
            self._searching -= 1

    async def search_one(self, name: str, ask: Callable[[ShardStore], Awaitable[T]]) -> T:
        """As `search`, of one shard, in a block of `searching`."""
        async with self._searches[name]:
            # Asked for only now: it may have gone away while others were before us.
            return await ask(self._shards.store(name))

    async def everywhere(
        self, ask: Callable[[ShardStore], Awaitable[T]], names: Iterable[str] | None = None
    ) -> tuple[list[T], list[str]]:
        """Ask several shards at once: their answers, and the names of those that gave none."""
        asked = list(self._shards.names if names is None else names)

        async def one(name: str) -> T | MeshError:
            try:
                return await ask(self._shards.store(name))
            except MeshError as error:
                return error

        answers = await asyncio.gather(*(one(name) for name in asked))
        missing = [n for n, a in zip(asked, answers, strict=True) if isinstance(a, MeshError)]
        return [a for a in answers if not isinstance(a, MeshError)], missing


async def _histories(
    store: ShardStore, records: Sequence[JobRecord], sharers: int
) -> dict[UUID, History]:
    """What the events of jobs tell, each as far as its share of the room goes."""
    share = max(1, MOST_EVENTS // sharers)
    cursors = [(job.id, max(0, job.version - share)) for job in records]
    by_job: dict[UUID, list[JobEvent]] = {}
    # Twice as many: jobs may have moved on since they were read, and nothing is cut off then.
    for event in await store.events_after(cursors, 2 * MOST_EVENTS):
        by_job.setdefault(event.job_id, []).append(event)
    most = MOST_BYTES // sharers
    return {job_id: History.of(events, most) for job_id, events in by_job.items()}
