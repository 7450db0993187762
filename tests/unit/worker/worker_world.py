"""A worker's tenures with small stand-ins around them: a store in memory, a broker and an
Orchestrator that the test plays, handlers that end when they are told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from services.mesh.clock import Clock, SystemClock
from services.mesh.lease import Keys
from services.mesh.lease.memory import MemoryLease, MemoryLocks, MemoryPlaces, MemoryStore
from services.worker.app.courier import Courier
from services.worker.app.grabber import Board
from services.worker.app.runner import Runner, RunSettings
from services.worker.app.tenure import Surroundings, Tenure
from services.worker.app.turns import Turns
from services.worker.domain.attempt import Attempt, Batch
from services.worker.domain.book import AttemptBook
from services.worker.domain.ending import Answer, HandedBack, Report, Verdict
from services.worker.domain.grabbing import GrabSettings
from services.worker.ports import (
    RETURNED_NOTHING,
    Broker,
    Dependencies,
    Executor,
    Inbox,
    Observer,
    Orchestrators,
    ReportStream,
    Returned,
    WorkSource,
)

KEYS = Keys("/mesh")


class Nothing:
    """Takes everything, says nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None


class Source(WorkSource):
    def __init__(self) -> None:
        #: Type and credit of what was asked for, in order.
        self.grabs: list[tuple[str, int]] = []
        self.grab_no: dict[str, int] = {}
        self.closed = False

    async def listen_for_calls(self, type_: str) -> None:
        pass

    async def grab(
        self, type_: str, credit: int, grab_no: int, at: str = "", *, waits: bool = True
    ) -> None:
        self.grabs.append((type_, credit))
        self.grab_no[type_] = grab_no

    async def withdraw(self, type_: str, grab_no: int) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class PlayedBroker(Broker):
    def __init__(self) -> None:
        self.source = Source()
        self.inbox: Inbox | None = None

    async def join(self, worker_id: str, inbox: Inbox) -> WorkSource:
        self.inbox = inbox
        return self.source

    def dispatch(self, *attempts: Attempt, type_: str) -> None:
        assert self.inbox is not None
        grab_no = self.source.grab_no.get(type_, 0)
        self.inbox.received(Batch(type_, grab_no, list(attempts)))


class PlayedOrchestrator(Orchestrators):
    """Commits what it is told, while it is there."""

    def __init__(self) -> None:
        self.told: list[Report] = []
        self.answers_now = asyncio.Event()
        self.answers_now.set()

    @asynccontextmanager
    async def open(self, worker_id: str) -> AsyncIterator[ReportStream]:
        yield _Stream(self)

    def endings(self) -> list[object]:
        return [report.what for report in self.told if report.is_ending]


class _Stream(ReportStream):
    def __init__(self, orchestrator: PlayedOrchestrator) -> None:
        self._orchestrator = orchestrator
        self._answers: asyncio.Queue[Sequence[Answer]] = asyncio.Queue()

    async def send(self, reports: Sequence[Report]) -> None:
        self._orchestrator.told.extend(reports)
        about = [(report.attempt.key, report.attempt.fence) for report in reports]
        self._answers.put_nowait([Answer(Verdict.COMMITTED, about)])

    async def answers(self) -> AsyncIterator[Sequence[Answer]]:
        while True:
            answer = await self._answers.get()
            await self._orchestrator.answers_now.wait()
            yield answer


class Handlers(Executor):
    """They end when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0

    def wants_file(self, type_: str) -> bool:
        return False

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | HandedBack:
        observer.started()
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return RETURNED_NOTHING


class MemoryStanding:
    """One identity in the store."""

    def __init__(self, store: MemoryStore, worker_id: str) -> None:
        self.worker_id = worker_id
        self.lease: MemoryLease = store.grant()
        self.locks: Any = MemoryLocks(store, KEYS, self.lease, worker_id)
        self.places: Any = MemoryPlaces(store, KEYS, self.lease)
        self.trusted_until = 0.0
        self.announced: list[bool] = []
        #: What happens while the lease is revoked.
        self.on_leave: Callable[[], None] = lambda: None

    async def announce(self, *, draining: bool = False) -> None:
        self.announced.append(draining)

    async def leave(self) -> None:
        await self.lease.close()
        self.on_leave()


class Ready(Dependencies):
    """Remembers what the worker said of itself last."""

    def __init__(self) -> None:
        self.is_open = False

    def lease(self, up: bool, why: str = "") -> None:
        pass

    def orchestrator(self, up: bool, why: str = "") -> None:
        pass

    def intake(self, up: bool, why: str = "") -> None:
        self.is_open = up


class WorkerWorld:
    """What all tenures of a worker share."""

    def __init__(
        self,
        capacity: dict[str, int],
        *,
        max_unsettled: int = 100,
        ahead: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        instruments: Any = Nothing()
        self.store, self.broker = MemoryStore(), PlayedBroker()
        self.orchestrator, self.handlers, self.ready = PlayedOrchestrator(), Handlers(), Ready()
        self.book = AttemptBook(capacity, max_unsettled)
        executors: dict[str, Executor] = {}
        courier = Courier(instruments, Path(), clock)
        runner = Runner(executors, {}, courier, instruments, clock, RunSettings())
        self.executors = executors
        executors.update(dict.fromkeys(capacity, self.handlers))
        self.around = Surroundings(
            book=self.book,
            board=Board(),
            runner=runner,
            turns=Turns(runner, self.book.may_run, clock),
            broker=self.broker,
            orchestrators=self.orchestrator,
            instruments=instruments,
            dependencies=self.ready,
            clock=clock,
            grabbing=GrabSettings(ahead=ahead),
        )
        self._identities = 0

    @property
    def source(self) -> Source:
        return self.broker.source

    def standing(self) -> MemoryStanding:
        self._identities += 1
        return MemoryStanding(self.store, f"w-{self._identities}")

    async def tenure(self, standing: MemoryStanding | None = None) -> Tenure:
        made = Tenure(standing or self.standing(), self.around, on_death=_died)
        await made.begin()
        return made


def attempt(type_: str, fence: int = 1) -> Attempt:
    return Attempt(uuid4().bytes, fence, type_, "default", 1)


def _died(task: str) -> None:
    raise AssertionError(f"task {task} died")
