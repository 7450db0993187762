"""New jobs on their way into a real shard whose statements fail when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

from services.mesh.clock import SystemClock
from services.mesh.jobs.model import NewJob
from services.mesh.jobs.topology import BucketMap
from services.mesh.runtime import Readiness
from services.mesh.store.connection import Row
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.settings import StoreSettings
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.parents import Parents, Wish
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.submission import Draft, Outcome, Submission
from services.orchestrator.domain.dueness import NOTHING_SOON
from tests.unit.orchestrator.loan_fakes import FakeHands, loans_over


class Faulty(PostgresShard):
    """A shard whose statements fail by name: one error, or None for none, for each time."""

    def __init__(self, dsn: str, settings: StoreSettings | None = None) -> None:
        super().__init__("s0", dsn, settings, Random(5))
        self.before: dict[str, list[Exception | None]] = {}
        """Instead of the statement."""
        self.after: dict[str, list[Exception | None]] = {}
        """Instead of its answer."""
        self.meanwhile: dict[str, Callable[[], Awaitable[object]]] = {}
        """What others do right after a statement, once."""
        self.blind: set[str] = set()
        """Statements that see nothing."""

    async def _fetch(self, name: str, params: Any = None) -> list[Row]:
        _strike(self.before, name)
        rows = await super()._fetch(name, params)
        if name in self.meanwhile:
            await self.meanwhile.pop(name)()
        _strike(self.after, name)
        return [] if name in self.blind else rows


def _strike(errors: Mapping[str, list[Exception | None]], name: str) -> None:
    if errors.get(name) and (error := errors[name].pop(0)):
        raise error


class Heard:
    """What schedulers and watchers are told."""

    def __init__(self) -> None:
        self.nudged: list[set[str]] = []
        self.bells = 0
        self.events: list[UUID] = []

    async def committed(self, shard: str, events: Any) -> None:
        self.events += [event.job_id for event in events]

    async def stored(self, shard: str, names: Any) -> None:
        self.bells += 1

    async def due(
        self, shard: str, types: Any, soon: Any = NOTHING_SOON, long: Any = (), new: bool = False
    ) -> None:
        self.nudged.append(set(types))

    async def scheduled(self, shard: str, type_: str, next_time: Any) -> None: ...

    async def cancelled(self, worker_id: str, attempts: Any) -> None: ...


class _Map:
    map = BucketMap.even(["s0"])


class Submitting:
    """An Orchestrator's part that stores jobs, over one shard."""

    def __init__(self, store: Faulty) -> None:
        self.store, self.heard = store, Heard()
        clock = SystemClock()
        self.shards = Shards({"s0": store}, clock, Readiness().require("shards"))
        self.shards.probed_by("s0", lambda: None)
        lookup = Lookup(self.shards, _Map(), self.heard)  # type: ignore[arg-type]
        parents = Parents(lookup, self.shards)
        self.hands, self.random = FakeHands(), Random(1)
        self.loans = loans_over(self.shards, self.hands)
        self.submission = Submission(
            self.shards,
            _Map(),  # type: ignore[arg-type]
            self.heard,  # type: ignore[arg-type]
            clock,
            self.random,
            parents,
            self.loans,
        )

    async def put(self, *drafts: Draft) -> list[Outcome]:
        return await self.submission.put(drafts)


@asynccontextmanager
async def submitting(dsn: str, **settings: Any) -> AsyncIterator[Submitting]:
    """Over a shard that is healthy."""
    store = Faulty(dsn, StoreSettings(**settings))
    await store.open()
    try:
        stand = Submitting(store)
        for _ in range(2):
            stand.shards.probed("s0", await store.probe(), 1.0)
        yield stand
    finally:
        await store.close()


def draft(key: str = "", type_: str = "echo", wish: Wish | None = None, **fields: Any) -> Draft:
    """A job of namespace "n" as a caller said it; with a key, one with the same content."""

    def build(job_id: UUID) -> NewJob:
        said = {"idempotency_key": key, "request_hash": b"same"} if key else {}
        return NewJob(job_id, "n", type_, **said | fields)

    unique = wish.ties.unique_key if wish is not None else None
    by = unique or key
    return Draft("n", ("n", by) if by else None, type_, build, wish)
