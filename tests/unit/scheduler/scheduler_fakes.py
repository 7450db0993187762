"""Shards and a broker that a test holds in its hands."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar, cast
from uuid import UUID, uuid4

from services.mesh.clock import SystemClock
from services.mesh.errors import (
    DeadlineExceeded,
    DependencyUnavailable,
    ShardBusy,
    ShardUnavailable,
)
from services.mesh.jobs.credit import CreditBook, Grab
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import Claimed, JobEvent, Payload, Timeouts
from services.mesh.jobs.ties import Parent
from services.mesh.jobs.turns import Turn, Turned
from services.mesh.jobs.type_settings import RetentionRules, TypeSettings
from services.mesh.runtime import Readiness, Tasks
from services.mesh.store.answers import (
    ClaimAnswer,
    DueTime,
    FireAnswer,
    InFlight,
    ProbeResult,
    Pulse,
    PurgeStep,
    Release,
    Rescue,
    Slot,
)
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing
from services.scheduler.app.board import DueBoard
from services.scheduler.app.claimer import Claimer
from services.scheduler.app.claims import ClaimRules
from services.scheduler.app.limits import Limits
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.domain.flags import DueFlags
from services.scheduler.domain.limits import BatchLimits
from services.scheduler.domain.times import Shown
from services.scheduler.domain.word import Served
from services.scheduler.ports import Shard

T = TypeVar("T")


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once it holds; fails after the deadline."""
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0)


def job(type_: str) -> Claimed:
    now = datetime.now(UTC)
    job_id = new_job_id(random.randrange(4096), 0, random.Random())
    return Claimed(
        job_id,
        "default",
        type_,
        1,
        1,
        1,
        now,
        now,
        Timeouts(),
        Payload.inline(b""),
        None,
        2,
    )


class FakeShard:
    """Rows as a queue per type. `hold` makes claims wait; `away` makes everything fail."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, deque[Claimed]] = {}
        self.claims: list[tuple[str, str, int]] = []
        self.turns: list[Turn] = []
        self.running = self.most_running = 0
        self.open_door = asyncio.Event()
        self.open_door.set()
        self.away = False
        #: So many statements take longer than they may.
        self.gives_up = 0
        self.writable = True
        self.swept: list[tuple[UUID, int]] = []
        self.due_times: list[DueTime] = []
        self.slots_read = self.probes = 0
        self.deep_looks = 0
        self.in_flight = self.overdue = False
        self.look_takes = 0.0
        self.too_deep = False
        self.rescues: deque[Rescue] = deque()
        self.rescues_asked = 0
        self.purges: list[tuple[str, object]] = []
        # What others wait for, and what came of it.
        self.ended: list[Parent] = []
        self.taken: list[Parent] = []
        self.forgotten: list[UUID] = []
        self.released: list[Parent] = []
        self.unsure: list[UUID] = []
        self.standing: dict[UUID, Parent] = {}
        self.waiting: list[JobEvent] = []

    def store(self, type_: str, count: int = 1) -> None:
        self.rows.setdefault(type_, deque()).extend(job(type_) for _ in range(count))

    def _check(self) -> None:
        if self.away:
            raise ShardUnavailable(self.name)
        if self.gives_up:
            self.gives_up -= 1
            raise ShardBusy(self.name)

    async def probe(self, timeout: float = 0.5) -> ProbeResult:
        self._check()
        self.probes += 1
        return ProbeResult(datetime.now(UTC), uuid4(), 1, self.writable, 1)

    async def claim(
        self,
        type: str,
        worker_id: str,
        limit: int,
        ahead: timedelta = timedelta(0),
        recent: timedelta | None = None,
        below: int | None = None,
        turn: Turn | None = None,
    ) -> ClaimAnswer:
        self.turns += [turn] if turn is not None else []
        self.claims.append((type, worker_id, limit))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self._check()
            rows = self.rows.get(type, deque())
            jobs = [rows.popleft() for _ in range(min(limit, len(rows)))]
            await self.open_door.wait()
            self._check()
            crowd = jobs[-1].namespace if jobs else ""
            turned = None if turn is None else Turned(0, 0, "", 0.0)
            return ClaimAnswer(jobs, datetime.now(UTC), crowd=crowd, turned=turned)
        finally:
            self.running -= 1

    def keyed(self, key: UUID, count: int) -> deque[Claimed]:
        return deque(replace(job("t"), limit_key=key) for _ in range(count))

    async def claim_keyed(
        self, type: str, worker_id: str, limit: int, per_key: int, held: Mapping[UUID, int]
    ) -> ClaimAnswer:
        self.claims.append((type, worker_id, limit))
        counts, jobs, left = Counter(held), list[Claimed](), deque[Claimed]()
        for row in self.rows.get(type, ()):
            fits = row.limit_key is None or counts[row.limit_key] < per_key
            if fits and row.limit_key is not None:
                counts[row.limit_key] += 1
            (jobs if fits and len(jobs) < limit else left).append(row)
        self.rows[type] = left
        await self.open_door.wait()
        return ClaimAnswer(jobs, datetime.now(UTC), skipped=bool(left))

    async def pulse(
        self,
        start: datetime | None = None,
        width: timedelta = timedelta(0),
        limit: int = 1000,
        dispatch: timedelta = timedelta(0),
        *,
        deep: bool = True,
    ) -> Pulse:
        self._check()
        self.deep_looks += deep
        if deep and self.too_deep:
            raise DeadlineExceeded
        self.slots_read += 1
        now = datetime.now(UTC)
        begin = start or now
        due = [d for d in self.due_times if begin <= d.due_time < begin + width]
        types = [type_ for type_, rows in self.rows.items() if rows and deep]
        since = [min(row.due_time for row in self.rows[type_]) for type_ in types]
        slot = Slot(now, begin, begin + width, due)
        held, overdue = deep and self.in_flight, deep and self.overdue
        return Pulse(
            slot, types, None, None, held, overdue, due_since=since, deep=deep, took=self.look_takes
        )

    async def fire_due_schedules(
        self, limit: int = 100, ahead: timedelta = timedelta(0)
    ) -> FireAnswer:
        self._check()
        return FireAnswer([], 0, 0)

    async def overdue_dispatches(self, older_than: timedelta, limit: int = 1000) -> list[InFlight]:
        return []

    async def sweep(self, dispatches: Sequence[tuple[UUID, int]]) -> list[JobEvent]:
        self.swept += dispatches
        return []

    async def inflight_workers(self) -> list[str]:
        return []

    async def rescue(self, worker_ids: Sequence[str], limit: int = 1000) -> Rescue:
        self.rescues_asked += 1
        return self.rescues.popleft() if self.rescues else Rescue([], more=False)

    async def purge_order(self, older_than: timedelta, limit: int = 1000) -> int:
        self.purges.append(("order", older_than))
        return 0

    async def purge_jobs(self, rules: RetentionRules, limit: int = 500) -> PurgeStep:
        self.purges.append(("jobs", rules))
        left = sum(what == "jobs" for what, _ in self.purges)
        return PurgeStep(2, limit, left >= 3)

    async def purge_names(self, limit: int = 1000) -> int:
        return 1

    async def expire_overdue(self, limit: int = 1000) -> list[JobEvent]:
        return []

    async def take_ended_parents(
        self, limit: int = 500, hold: timedelta = timedelta(seconds=5)
    ) -> list[Parent]:
        self._check()
        taken, self.ended = self.ended, []
        self.taken += taken
        return taken

    async def forget_ended_parents(self, ids: Sequence[UUID]) -> None:
        self._check()
        self.forgotten += ids

    async def check_blocked(self, limit: int = 500) -> list[UUID]:
        self._check()
        return list(self.unsure)

    async def parents(self, ids: Sequence[UUID]) -> list[Parent]:
        self._check()
        return [self.standing[job_id] for job_id in ids if job_id in self.standing]

    async def release(self, parents: Sequence[Parent], limit: int = 1000) -> Release:
        self._check()
        self.released += parents
        events, self.waiting = self.waiting, []
        return Release(events, more=False)


@dataclass
class FakeBroker:
    """Keeps what was sent; may refuse to send."""

    connected: bool = True
    refuses: bool = False
    sent: list[tuple[Grab, list[Claimed]]] = field(default_factory=list)
    empty: list[tuple[Grab, bool]] = field(default_factory=list)
    nudges: list[tuple[str, list[str]]] = field(default_factory=list)
    long_nudges: list[tuple[str, list[str]]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    lent: list[tuple[Grab, str, float]] = field(default_factory=list)
    recalls: list[str] = field(default_factory=list)
    served_words: list[tuple[list[str], Served]] = field(default_factory=list)

    def _check(self) -> None:
        if self.refuses:
            raise DependencyUnavailable("nats")

    async def dispatch(self, grab: Grab, jobs: Sequence[Claimed], now: Shown) -> int:
        self._check()
        self.sent.append((grab, list(jobs)))
        return 100 * len(jobs)

    async def answer_empty(self, grab: Grab, *, draining: bool = False) -> None:
        self._check()
        self.empty.append((grab, draining))

    async def nudge(
        self,
        shard: str,
        types: Sequence[str],
        first: datetime | None = None,
        *,
        long_due: bool = False,
    ) -> None:
        self._check()
        self.nudges.append((shard, list(types)))
        if long_due:
            self.long_nudges.append((shard, list(types)))

    async def served(self, scheduler_ids: Iterable[str], served: Served) -> None:
        self._check()
        self.served_words.append((list(scheduler_ids), served))

    async def call(self, type_: str) -> None:
        self._check()
        self.calls.append(type_)

    async def lend(self, grab: Grab, at: str, seconds: float) -> None:
        self._check()
        self.lent.append((grab, at, seconds))

    async def recall(self, type_: str) -> None:
        self._check()
        self.recalls.append(type_)

    async def hint_claims(self, shard: str, worker_id: str, jobs: Sequence[Claimed]) -> None: ...

    async def hint(self, shard: str, events: Sequence[JobEvent]) -> None: ...

    async def stop(self, worker_id: str, job_id: UUID, fence: int) -> None: ...


class FakeMirror(Generic[T]):
    """What a registry mirror shows, set by hand."""

    def __init__(self) -> None:
        self.items: dict[str, T] = {}
        self.synced = True
        self._callbacks: list[Callable[[str], None]] = []

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def set(self, name: str, item: T | None) -> None:
        if item is None:
            self.items.pop(name, None)
        else:
            self.items[name] = item
        for callback in self._callbacks:
            callback(name)


class Bench:
    """A claimer with everything around it in memory."""

    def __init__(self, *names: str, rules: ClaimRules | None = None) -> None:
        self.stores = {name: FakeShard(name) for name in names}
        self.broker = FakeBroker()
        self.tasks = Tasks()
        self.clock = SystemClock()
        self.readiness = Readiness()
        self.measures = Measures(Metrics())
        dependency = self.readiness.require("shards")
        stores: dict[str, Shard] = dict(self.stores)
        self.shards = Shards(stores, self.tasks, dependency, self.measures)
        self.board = DueBoard(DueFlags(), CreditBook(60), self.broker)
        self.board.serve(names)
        limits = BatchLimits(500, 900_000)
        self.types: FakeMirror[TypeSettings] = FakeMirror()
        self.places: FakeMirror[str] = FakeMirror()
        self.bounds = Limits("me", cast(Any, self.types), cast(Any, self.places), self.clock)
        self.claimer = Claimer(
            self.board,
            self.shards,
            self.broker,
            self.tasks,
            self.clock,
            limits,
            self.measures,
            Tracing(),
            self.bounds,
            rules,
        )
        self.board.wake = self.claimer.nudge
        self.board.on_long_due = self.claimer.look_at_everything
        self.bounds.wake = self.claimer.nudge
        self._numbers = 0

    async def __aenter__(self) -> Bench:
        await self.shards.start()
        await self.readiness.wait_ready(5)
        await until(lambda: all(self.shards.gate(name).open for name in self.stores))
        await self.claimer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.stores.values():
            store.open_door.set()
        await self.claimer.stop()
        await self.tasks.stop()

    def grab(self, worker: str, credit: int, type_: str = "t") -> Grab:
        self._numbers += 1
        grab = Grab(worker, type_, credit, self._numbers, f"inbox.{worker}")
        assert self.board.book.park(grab, self.clock.monotonic())
        self.claimer.nudge()
        return grab

    async def passed(self) -> None:
        """Have the claimer look, and wait until it has."""
        self.claimer.nudge()
        await self.claimer.passes.more()

    def sent(self) -> int:
        return sum(len(jobs) for _, jobs in self.broker.sent)
