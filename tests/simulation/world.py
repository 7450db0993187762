"""One seed: processes, clients, a nemesis; a phase of faults, a phase of healing, a verdict."""

from __future__ import annotations

import asyncio
import json
import logging
import random as global_random
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from zlib import crc32

from services.mesh.errors import MeshError
from services.mesh.jobs.model import NewJob, Payload, request_hash_of
from services.mesh.jobs.retry import Backoff, RetryPolicy
from services.mesh.jobs.states import TERMINAL
from services.orchestrator.app.storing import Stored
from services.orchestrator.app.submission import Draft
from tests.simulation.judge import Call, History, judge
from tests.simulation.loop import StuckError, VirtualLoop, on_host
from tests.simulation.network import Broker, Etcd, LoopClock, Network, Weather, now
from tests.simulation.processes import (
    TYPES,
    OrchestratorProcess,
    Process,
    SchedulerProcess,
    WorkerProcess,
)
from tests.simulation.shard import ModelShard
from tests.simulation.streams import Pipe

FAULT_SECONDS = 10.0
#: Healed, everything must have ended by then.
GRACE_SECONDS = 60.0
CALL_SECONDS = 4.0
#: The part of the seeds in which one namespace crowds a type.
RUSHES = 0.3


@dataclass(slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    problems: list[str] = field(default_factory=list)
    jobs: int = 0
    kills: int = 0
    freezes: int = 0
    cuts: int = 0
    zombies: int = 0
    handed: int = 0
    """Jobs that were in a worker's hands as they were stored."""
    steps: int = 0
    seconds: float = 0.0
    story: list[str] = field(default_factory=list)


class World:
    """A mesh of simulated processes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.outcome = Outcome(seed)
        self.network = Network(Random(self.random.getrandbits(64)))
        self.broker = Broker(self.network, Random(self.random.getrandbits(64)))
        self.etcd = Etcd()
        clock = LoopClock()
        self.shards = [
            ModelShard(name, clock.now, Random(self.random.getrandbits(64)))
            for name in ("s0", "s1")
        ]
        self.ledger: list[tuple[Any, ...]] = []
        self.history = History()
        self.pipes: list[Pipe] = []
        self.processes: dict[str, Process] = {}
        self._births = 0

    def log(self, text: str) -> None:
        self.outcome.story.append(f"{now():8.3f} {text}")

    # --- processes

    def begin(self, name: str) -> None:
        """Start the process of a name, as a new one."""
        kinds: dict[str, type[Process]] = {
            "o": OrchestratorProcess,
            "s": SchedulerProcess,
            "w": WorkerProcess,
        }
        self._births += 1
        process = kinds[name[0]](self, f"{name}-{self._births}")
        self.processes[name] = process
        process.begin()

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing of it runs any more; others see its connections go."""
        process.host.dead = True
        process.bus.vanish()
        for pipe in self.pipes:
            if process.host.name in pipe.ends:
                pipe.close()

    def any_orchestrator(self) -> OrchestratorProcess | None:
        found = [
            process
            for process in self.processes.values()
            if isinstance(process, OrchestratorProcess) and not process.host.dead
        ]
        return self.random.choice(found) if found else None

    # --- the run

    async def live(self) -> None:
        for name in ("o1", "o2", "s1", "s2", "w1", "w2", "w3"):
            self.begin(name)
        await asyncio.sleep(0.5)
        clients = [asyncio.create_task(self._client(n), name=f"client-{n}") for n in range(3)]
        clients.append(asyncio.create_task(self._rush(), name="rush"))
        await self._rage()
        self._heal()
        await asyncio.gather(*clients)
        await self._settle()

    async def _rage(self) -> None:
        """Faults one after the other, some at the same time."""
        draw = self.random.uniform
        while now() < FAULT_SECONDS:
            self._weather()
            name = self.random.choice(sorted(self.processes))
            kind = self.random.choice(
                ("kill", "kill", "freeze", "zombie", "zombie", "cut", "cut", "calm")
            )
            getattr(self, f"_{kind}")(name)
            await asyncio.sleep(draw(0.05, 1.5))

    def _weather(self) -> None:
        bad = self.random.random() < 0.6
        draw = self.random.uniform
        self.network.weather = (
            Weather(draw(0, 0.1), draw(0, 0.1), draw(0, 0.3), draw(0, 0.5), draw(0.005, 0.4))
            if bad
            else Weather()
        )

    def _calm(self, name: str) -> None:
        self.network.weather = Weather()

    def _kill(self, name: str) -> None:
        process = self.processes[name]
        if process.host.dead:
            return
        self.outcome.kills += 1
        self.log(f"kill {name}")
        self.kill(process)
        loop = asyncio.get_running_loop()
        loop.call_later(self.random.uniform(0.05, 3.0), self._restart, name)

    def _restart(self, name: str) -> None:
        if self.processes[name].host.dead:
            self.log(f"restart {name}")
            self.begin(name)

    def _freeze(self, name: str) -> None:
        seconds = self.random.uniform(0.2, 6.0)
        self.outcome.freezes += 1
        self.log(f"freeze {name} for {seconds:.2f} s")
        self.processes[name].host.frozen_until = now() + seconds

    def _zombie(self, name: str) -> None:
        """Freeze a worker that has jobs in hand, for longer than its lease."""
        busy = [
            key
            for key, process in sorted(self.processes.items())
            if isinstance(process, WorkerProcess)
            and not process.host.dead
            and process.book is not None
            and process.book.in_hand()
        ]
        if busy:
            name = self.random.choice(busy)
            seconds = self.random.uniform(2.5, 6.0)
            self.outcome.freezes += 1
            self.log(f"freeze {name} with jobs in hand for {seconds:.2f} s")
            self.processes[name].host.frozen_until = now() + seconds

    def _cut(self, name: str) -> None:
        others = ["s0", "s1", "etcd", "nats"]
        others += [one.host.name for key, one in self.processes.items() if key[0] == "o"]
        other, seconds = self.random.choice(others), self.random.uniform(0.2, 5.0)
        self.outcome.cuts += 1
        self.log(f"cut {name} from {other} for {seconds:.2f} s")
        self.network.cut(self.processes[name].host.name, other, now() + seconds)

    def _heal(self) -> None:
        self.log("heal")
        self.network.heal()
        for name, process in list(self.processes.items()):
            process.host.frozen_until = 0.0
            if process.host.dead:
                self.begin(name)

    async def _settle(self) -> None:
        end = now() + GRACE_SECONDS
        while any(
            row.state not in TERMINAL for shard in self.shards for row in shard.rows.values()
        ):
            if now() > end:
                return
            for name in [n for n, p in self.processes.items() if p.host.dead]:
                self.begin(name)  # died of its own, as a process may
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.0)  # late reports of zombies

    # --- clients

    async def _client(self, number: int) -> None:
        random = Random(self.random.getrandbits(64))
        for turn in range(random.randint(3, 7)):
            await asyncio.sleep(random.uniform(0.0, 2.5))
            job = _order(random, f"c{number}-{turn}")
            acked = await self._submit(job, random)
            if acked and job["cancel"]:
                await asyncio.sleep(random.uniform(0.0, 2.0))
                await self._cancel(acked, job["namespace"])

    async def _rush(self) -> None:
        """In some seeds: more jobs of one type than can run, nearly all of one namespace."""
        random = Random(f"rush {self.outcome.seed}")
        if random.random() < RUSHES:
            await asyncio.sleep(random.uniform(0.0, 8.0))
            calm = {"type": random.choice(TYPES), "key": None, "delay": 0.0, "expire": None}
            orders = [_order(random, f"rush-{n}") | calm for n in range(random.randint(10, 30))]
            for number, job in enumerate(orders):
                job["namespace"] = "n" if number % 6 else "z"
            await asyncio.gather(*(self._submit(job, random) for job in orders))

    async def _submit(self, job: dict[str, Any], random: Random) -> Any:
        tries = 40 if job["key"] else 1
        for _ in range(tries):
            call = Call(job, now())
            self.history.calls.append(call)
            answer = await self._ask(lambda o: o.submission.put([_draft(job)]))
            call.end = now()
            if isinstance(answer, list) and isinstance(answer[0], Stored):
                call.outcome, call.job_id = "ok", answer[0].result.job_id
                return call.job_id
            error = answer[0] if isinstance(answer, list) else answer
            call.outcome = "fail" if _certain(error) else "unknown"
            await asyncio.sleep(random.uniform(0.2, 1.0))
        return None

    async def _cancel(self, job_id: Any, namespace: str) -> None:
        for _ in range(10):
            answer = await self._ask(lambda o: o.lookup.cancel([job_id], namespace, ""))
            if isinstance(answer, list) and not isinstance(answer[0], MeshError):
                self.history.cancels[job_id] = answer[0]
                return
            self.history.tried.add(job_id)
            await asyncio.sleep(0.5)

    async def _ask(self, question: Any) -> Any:
        """A call to any Orchestrator; None if nobody knows what came of it."""
        replica = self.any_orchestrator()
        if replica is None or not hasattr(replica, "lookup"):
            return None
        await self.network.hop()
        work = on_host(replica.host, _guarded(question, replica), "call")
        done, _ = await asyncio.wait({work}, timeout=CALL_SECONDS)
        await self.network.hop()
        if not done or self.network.chance(self.network.weather.lost_after):
            return None
        return work.result()


async def _guarded(question: Any, replica: OrchestratorProcess) -> Any:
    try:
        return await question(replica)
    except MeshError as error:
        return error


def _certain(error: Any) -> bool:
    return isinstance(error, MeshError) and error.reason in (
        "SHARD_UNAVAILABLE",
        "NO_HEALTHY_SHARD",
    )


def _order(random: Random, ref: str) -> dict[str, Any]:
    kind = random.choice(("plain", "plain", "long", "long", "flaky", "keyed", "later", "expiring"))
    fails = random.randint(1, 2) if kind == "flaky" else 0
    return {
        "ref": ref,
        "namespace": "mno"[crc32(ref.encode()) % 3],
        "type": random.choice(TYPES),
        "seconds": random.uniform(1, 4) if kind == "long" else random.choice((0.0, 0.05, 0.3)),
        "fails": fails,
        "attempts": fails + 2,
        "key": ref if kind == "keyed" else None,
        "delay": random.uniform(0.1, 3.0) if kind == "later" else 0.0,
        "expire": random.uniform(0.5, 3.0) if kind == "expiring" else None,
        "cancel": random.random() < 0.25,
    }


def _draft(job: dict[str, Any]) -> Draft:
    said = json.dumps({"seconds": job["seconds"], "fails": job["fails"]}).encode()
    expire = LoopClock().now() + timedelta(seconds=job["expire"]) if job["expire"] else None

    def build(job_id: Any) -> NewJob:
        new = NewJob(
            id=job_id,
            namespace=job["namespace"],
            type=job["type"],
            input=Payload.inline(said, "application/json"),
            delay=timedelta(seconds=job["delay"]) if job["delay"] else None,
            expire_time=expire,
            retry=RetryPolicy(Backoff.FIXED, job["attempts"], initial_delay=timedelta(seconds=0.2)),
            labels={"ref": job["ref"]},
            idempotency_key=job["key"],
        )
        if job["key"]:
            new.request_hash = request_hash_of(new)
        return new

    key = (job["namespace"], job["key"]) if job["key"] else None
    return Draft(namespace=job["namespace"], key=key, type=job["type"], build=build)


def simulate(seed: int, *, quiet: bool = True) -> Outcome:
    """One seed, from nothing to a verdict."""
    logging.disable(logging.CRITICAL if quiet else logging.NOTSET)
    global_random.seed(seed)
    WorkerProcess.identities = 0
    loop = VirtualLoop(Random(seed ^ 0x5EED))
    world = World(seed)
    outcome = world.outcome
    try:
        loop.run(world.live())
    except StuckError as error:
        outcome.problems.append(f"I25 {error}")
    outcome.problems += judge(world.shards, world.ledger, world.history)
    outcome.problems += [_told(problem) for problem in loop.problems]
    outcome.jobs = sum(len(shard.rows) for shard in world.shards)
    if not world.ledger:
        outcome.problems.append("I30 nothing ever ran: this has tested nothing")
    outcome.zombies = world.history.zombies
    outcome.handed = sum(shard.handed for shard in world.shards)
    outcome.steps, outcome.seconds = loop.steps, loop.time()
    return outcome


def _told(problem: dict[str, Any]) -> str:
    return f"I28 {problem.get('message')}: {problem.get('exception')!r}"
