"""The services' own code on simulated ports."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.mesh.bus import Subjects
from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.keys import Keys
from services.mesh.runtime import Readiness, Tasks
from services.mesh.telemetry.tracing import Tracing
from services.orchestrator.adapters.announcer import BusAnnouncer
from services.orchestrator.adapters.hands import BusHands, LoanDesk
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.reports import Reports
from services.orchestrator.app.shards import Prober
from services.orchestrator.app.shards import Shards as OrchestratorShards
from services.orchestrator.app.submission import Submission
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.servicer import ReportStream
from services.scheduler.adapters.broker import BusBroker, Intake
from services.scheduler.adapters.registry import RegisteredWorkers
from services.scheduler.app.keeping import KeepingRules
from services.scheduler.app.scheduler import Identity, Life, Outside, Rules, Scheduler
from services.scheduler.app.slots import SlotRules
from services.scheduler.domain.lending import LoanRules
from services.worker.adapters.broker import BusBroker as WorkerBroker
from services.worker.app.courier import Courier
from services.worker.app.grabber import Board
from services.worker.app.node import Node, NodeSettings
from services.worker.app.runner import Runner, RunSettings
from services.worker.app.tenure import Surroundings
from services.worker.app.turns import Turns
from services.worker.domain.attempt import Attempt
from services.worker.domain.book import AttemptBook
from services.worker.domain.ending import Failed, HandedBack, failure
from services.worker.domain.grabbing import GrabSettings
from services.worker.domain.info import WorkerInfo
from services.worker.ports import Observer, Returned
from tests.simulation.loop import Host, on_host
from tests.simulation.network import Bus, Locks, LoopClock, Registry, ShardClient, SimLease, now
from tests.simulation.streams import Orchestrators, Pipe

if TYPE_CHECKING:
    from tests.simulation.world import World

KEYS, SUBJECTS = Keys("/jobmesh"), Subjects("jm")
TYPES = ("a", "b")
RULES = Rules(
    park=1.5,
    loans=LoanRules(lasts=1.2, contested=0.1),
    keeping=KeepingRules(tick=0.5, rescue=2.0, slot=SlotRules(width=1.0, dispatch=2.0)),
)


class Nothing:
    """Stands for metrics and instruments: takes everything, says nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class Process:
    """What all simulated processes have. A task that dies brings its process down, as in real."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.host = world, Host(name)
        self.random = Random(world.random.getrandbits(64))
        self.clock = LoopClock()
        self.bus = Bus(self.host, world.broker, world.network)
        self.registry = Registry(name, world.etcd, world.network)
        self.readiness = Readiness()
        self.tasks = Tasks(self._died)
        self.metrics: Any = Nothing()

    def _died(self, task: str) -> None:
        self.world.log(f"{self.host.name}: task {task} died")
        self.world.kill(self)

    def stores(self) -> dict[str, Any]:
        network, name = self.world.network, self.host.name
        return {m.name: ShardClient(name, m, network) for m in self.world.shards}

    def begin(self) -> None:
        starting = on_host(self.host, self.start(), f"start {self.host.name}")
        starting.add_done_callback(self._started)

    def _started(self, starting: asyncio.Task[None]) -> None:
        if not starting.cancelled() and (error := starting.exception()) is not None:
            self.world.outcome.problems.append(f"I28 {starting.get_name()}: {error!r}")

    async def start(self) -> None:
        raise NotImplementedError


class OrchestratorProcess(Process):
    """Placing, reports, cancels, probes, topology."""

    async def start(self) -> None:
        stores = self.stores()
        self.shards = OrchestratorShards(stores, self.clock, self.readiness.require("shards"))
        self.topology = TopologyKeeper(
            self.registry, KEYS, list(stores), self.tasks, self.readiness.require("topology")
        )
        announcer = BusAnnouncer(self.bus, SUBJECTS, self.metrics, lambda: None)
        self.reports = Reports(
            self.shards, self.topology, announcer, self.tasks, self.metrics, self.clock
        )
        no_parents: Any = Nothing()
        self.loans, desk = self._loans(announcer)
        self.submission = Submission(
            self.shards, self.topology, announcer, self.clock, self.random, no_parents, self.loans
        )
        self.lookup = Lookup(self.shards, self.topology, announcer)
        for store in stores.values():
            await Prober(self.shards, store, self.clock, 0.9).start()
        await self.topology.start()
        await self.reports.start()
        await desk.start()

    def _loans(self, announcer: BusAnnouncer) -> tuple[Loans, LoanDesk]:
        hands = BusHands(self.bus, SUBJECTS, self.host.name)
        around = (self.tasks, self.clock, self.metrics, Tracing())
        loans = Loans(hands, self.shards, *around)
        desk = LoanDesk(self.bus, SUBJECTS, hands, loans)
        announcer.lend_at, announcer.on_nudged = (lambda: desk.lend_at), loans.nudged
        return loans, desk

    async def serve(self, pipe: Pipe) -> None:
        """One worker's stream, as the servicer handles it."""
        if not hasattr(self, "reports"):
            pipe.close()
            return
        stream = ReportStream(self.reports, Tracing())
        reader = asyncio.create_task(stream.read(pipe.requests()), name="reader")
        try:
            async for response in stream.responses():
                await pipe.answer(response)
        except DependencyUnavailable:
            pass
        finally:
            pipe.close()
            reader.cancel()
            with suppress(asyncio.CancelledError, DependencyUnavailable):
                await reader


class SchedulerProcess(Process):
    """All of a scheduler."""

    async def start(self) -> None:
        world, name = self.world, self.host.name

        async def grant() -> SimLease:
            return await SimLease.grant(name, world.etcd, world.network)

        broker = BusBroker(self.bus, SUBJECTS, name, 900_000)
        locks = Locks(name, world.etcd, world.network, KEYS)
        workers = RegisteredWorkers(self.registry, KEYS)
        nothing: Any = SimpleNamespace(items={}, synced=True, on_change=lambda listener: None)
        outside = Outside(
            self.stores(), broker, self.registry, KEYS, locks, workers, grant, nothing, nothing
        )
        life = Life(self.tasks, self.clock, self.readiness, self.metrics, Tracing())
        scheduler = Scheduler(Identity(name), RULES, outside, life)
        for component in scheduler.components():
            await component.start()
        parking = scheduler.parking
        ended, served = scheduler.parents_ended, scheduler.claimer.served
        told = (scheduler.grabbed, scheduler.heard, ended, parking.close, parking.withdrawn, served)
        intake = Intake(self.bus, SUBJECTS, name, *told)
        await intake.start()


class Standing:
    """One identity of a worker."""

    def __init__(self, process: WorkerProcess, lease: SimLease, number: int) -> None:
        self._process = process
        self.worker_id = f"w-{process.host.name}-{number}"
        self.lease = lease
        world = process.world
        self.locks = Locks(
            process.host.name, world.etcd, world.network, KEYS, lease, self.worker_id
        )
        #: No job here has limits.
        self.places: Any = NoPlaces()

    @property
    def trusted_until(self) -> float:
        return self.lease.trusted_until

    async def announce(self, *, draining: bool = False) -> None:
        await self._process.registry.put(KEYS.worker(self.worker_id), b"", self.lease)

    async def leave(self) -> None:
        await self.lease.close()


class NoPlaces:
    """The places of limits, where nobody asks for any."""

    async def take(self, wishes: Any) -> Any:
        raise AssertionError("no job has limits")

    async def give_back(self, places: Any) -> None: ...

    async def release(self, places: Any) -> None: ...

    async def close(self) -> None: ...


class WorkerProcess(Process):
    """All of a worker but its executors and objects."""

    identities = 0
    book: AttemptBook | None = None

    async def start(self) -> None:
        self.book = AttemptBook(dict.fromkeys(TYPES, 4), 100)
        executors = dict.fromkeys(TYPES, SimExecutor(self.world, self.host))
        courier = Courier(Nothing(), Path("."), self.clock)  # type: ignore[arg-type]
        instruments: Any = Instruments()
        settings = RunSettings(abandon_after=1.0)
        runner = Runner(executors, {}, courier, instruments, self.clock, settings)  # type: ignore[arg-type]
        around = Surroundings(
            book=self.book,
            board=Board(),
            runner=runner,
            turns=Turns(runner, self.book.may_run, self.clock),
            broker=WorkerBroker(self.bus, SUBJECTS),
            orchestrators=Orchestrators(self.world, self.host.name),
            instruments=instruments,
            dependencies=Nothing(),  # type: ignore[arg-type]
            clock=self.clock,
            grabbing=GrabSettings(patience=4.0, linger=0.002, ahead=0.05),
        )
        node = Node(
            self,
            self,  # type: ignore[arg-type]
            around,
            about=_nobody,
            tasks=self.tasks,
            served=_at_once,
            end_process=lambda why: None,
            on_death=self._died,
            settings=NodeSettings(lost_grace=0.5),
        )
        await node.start()

    async def enter(self) -> Standing:
        lease = await SimLease.grant(self.host.name, self.world.etcd, self.world.network)
        WorkerProcess.identities += 1
        return Standing(self, lease, WorkerProcess.identities)

    async def departures(self) -> Any:
        async for event in self.registry.watch(KEYS.schedulers):
            if type(event).__name__ == "Deleted":
                yield event.entry.key.removeprefix(KEYS.schedulers)


class Instruments(Nothing):
    """Traces nothing."""

    def run_begins(self, attempt: Attempt) -> None:
        return None


def _nobody() -> WorkerInfo:
    raise AssertionError("nobody asks")


async def _at_once() -> None:
    return None


class SimExecutor:
    """Handlers: the input says how long they take and how often they fail."""

    def __init__(self, world: World, host: Host) -> None:
        self._world, self._host = world, host

    def wants_file(self, type_: str) -> bool:
        return False

    async def run(
        self, attempt: Attempt, source: Any, observer: Observer
    ) -> Returned | Failed | HandedBack:
        order = json.loads(source)
        me = (str(attempt.job_id), attempt.fence, attempt.number)
        observer.started()
        self._world.ledger.append(("S", *me, now(), ""))
        outcome = "stop"
        try:
            await asyncio.sleep(order["seconds"])
            outcome = "fail" if attempt.number <= order["fails"] else "done"
        finally:
            self._world.ledger.append(("E", *me, now(), outcome))
        if outcome == "fail":
            return Failed(failure("Told", f"attempt {attempt.number} was told to fail"))
        return Returned(json.dumps({"job": me[0], "fence": me[1]}).encode(), "application/json")


def since_epoch(moment: datetime) -> float:
    from tests.simulation.network import EPOCH

    return (moment - EPOCH).total_seconds()
