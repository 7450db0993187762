"""Shards that fail as they are told, and a Submission over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from services.mesh.clock import ManualClock
from services.mesh.jobs.alike import AlikeJobs, Keyed
from services.mesh.jobs.model import NewJob, Payload
from services.mesh.jobs.states import JobState
from services.mesh.jobs.topology import BucketMap
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult, PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.parents import Parents
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.submission import Draft, Submission
from services.orchestrator.domain.dueness import NOTHING_SOON
from tests.unit.orchestrator.loan_fakes import FakeHands, loans_over

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NAMES = ["s0", "s1", "s2"]


class Shard:
    """A shard that keeps ids, and fails as it is told: before or after it stored them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: set[UUID] = set()
        self.keys: dict[str, UUID] = {}
        self.calls = 0
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []
        self.wait: Callable[[], None] = lambda: None
        self.until: Callable[[], Awaitable[object]] | None = None
        self.reached = asyncio.Event()

    def abandon(self) -> None: ...

    async def put_jobs(self, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        self.calls += 1
        self.reached.set()
        if self.until is not None:
            await self.until()
        if self.before and (error := self.before.pop(0)):
            raise error
        self.wait()
        results = [self._put(job) for job in jobs]
        if self.after and (error := self.after.pop(0)):
            raise error
        all_new = all(result.outcome is PutOutcome.CREATED for result in results)
        return PutAnswer(results, list, NOW if isinstance(jobs, AlikeJobs) and all_new else None)

    def _put(self, job: NewJob) -> PutResult:
        outcome, job_id = PutOutcome.CREATED, job.id
        if job.idempotency_key:
            job_id = self.keys.setdefault(job.idempotency_key, job.id)
            if job_id != job.id:
                other = job.request_hash == b"other"
                outcome = PutOutcome.CONFLICT if other else PutOutcome.EXISTING
        self.rows.add(job_id)
        return PutResult(outcome, job_id, JobState.SCHEDULED, 1, NOW, NOW, True)


class Silent:
    def __init__(self) -> None:
        self.nudged: list[tuple[str, set[str]]] = []
        self.long: list[set[str]] = []
        self.broken: Exception | None = None

    async def committed(self, shard: str, events: Any) -> None: ...

    async def stored(self, shard: str, names: Any) -> None: ...

    async def due(
        self, shard: str, types: Any, soon: Any = NOTHING_SOON, long: Any = (), new: bool = False
    ) -> None:
        if self.broken is not None:
            raise self.broken
        self.nudged.append((shard, set(types)))
        self.long.append(set(long))

    async def scheduled(self, shard: str, type_: str, next_time: datetime) -> None: ...

    async def cancelled(self, worker_id: str, attempts: Any) -> None: ...


class Map:
    def __init__(self) -> None:
        self.map = BucketMap.even(NAMES)


class Stand:
    def __init__(self) -> None:
        self.stores = {name: Shard(name) for name in NAMES}
        self.shards = Shards(self.stores, ManualClock(NOW), Readiness().require("shards"))  # type: ignore[arg-type]
        self.doubted: list[str] = []
        for name in NAMES:
            self.shards.probed_by(name, partial(self.doubted.append, name))
            self.heal(name)
        self.announcer = Silent()
        self.clock = ManualClock(NOW)
        self.parents = Parents(Lookup(self.shards, Map(), self.announcer), self.shards)  # type: ignore[arg-type]
        self.submission = Submission(
            self.shards,
            Map(),  # type: ignore[arg-type]
            self.announcer,
            self.clock,
            Random(1),
            self.parents,
            loans_over(self.shards, FakeHands()),
        )

    def heal(self, name: str) -> None:
        probe = ProbeResult(NOW, UUID(int=1), 1, True, 1)
        for _ in range(2):
            self.shards.probed(name, probe, 1.0)

    def lose(self, name: str) -> None:
        for _ in range(3):
            self.shards.missed(name, "gone")

    def rows(self) -> list[UUID]:
        return [row for store in self.stores.values() for row in store.rows]

    def slow_down(self, seconds: float) -> None:
        for store in self.stores.values():
            store.wait = partial(self.clock.advance, seconds)

    async def put_alike(self, count: int):
        """As `put`, of jobs that differ in their inputs only: one outcome each."""
        like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
        inputs = [str(number).encode() for number in range(count)]
        return [
            outcome
            for part in await self.submission.alike.put(like, inputs)
            for outcome in (part.stored if isinstance(part.stored, list) else part.stored.keys)
        ]

    async def put_keyed(self, count: int, content: bytes = b"same", keys: Sequence[str] = ()):
        """As `put_alike`, of jobs with keys."""
        like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
        keys = keys or [f"k{number}" for number in range(count)]
        outcomes: dict[int, Any] = {}
        parts = await self.submission.alike.put(
            like, [b"x"] * len(keys), Keyed(keys, [content] * len(keys))
        )
        for part in parts:
            stored = part.stored if isinstance(part.stored, list) else part.stored.keys
            outcomes |= zip(part.places, stored, strict=True)
        return [outcomes[at] for at in range(len(keys))]

    async def put(self, count: int = 1, key: str = "", content: bytes = b"same"):
        return await self.submission.put([draft(key, content) for _ in range(count)])


def draft(key: str = "", content: bytes = b"same") -> Draft:
    def build(job_id: UUID) -> NewJob:
        return NewJob(
            job_id, "n", "echo", idempotency_key=key or None, request_hash=content if key else None
        )

    return Draft("n", ("n", key) if key else None, "echo", build)
