"""Puts, workers and schedulers at random: no room is lost, nobody has too much or is forgotten."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from tests.unit.orchestrator.loan_desk import NOW, Shard, jobs
from tests.unit.orchestrator.loan_fakes import FakeHands, loans_over

pytestmark = pytest.mark.jumping_time

LASTS = 0.05
PUTS = 300
SEEDS = int(os.environ.get("LOAN_SEEDS", "30"))
#: After the last word, in seconds; rights have lapsed by then.
SETTLE = 0.3


class Worker:
    """Hears and says everything a moment late, in order, and runs jobs for a moment."""

    def __init__(self, world: World, name: str, capacity: int) -> None:
        self._world, self.name, self.capacity = world, name, capacity
        self.in_hand = self._number = self.overfull = 0
        self.waits = self._stays = False
        self._inbox: deque[tuple[int, int, bool, bool]] = deque()

    def send(self, number: int, count: int, *, more: bool, stay: bool) -> None:
        self._inbox.append((number, count, more, stay))
        if len(self._inbox) == 1:
            self._world.soon(0.003, self._hear)

    def _hear(self) -> None:
        number, count, more, stay = self._inbox[0]
        self.in_hand += count
        self.overfull += self.in_hand > self.capacity
        if count:
            self._world.soon(0.02, lambda: self._end(count))
        if number == self._number and not more:
            self.waits, self._stays = False, stay
        self._inbox.popleft()
        if self._inbox:
            self._world.soon(0.003, self._hear)
        self.grab()

    def _end(self, count: int) -> None:
        self.in_hand -= count
        self.grab()

    def grab(self) -> None:
        if self.waits or self.in_hand >= self.capacity or self._world.is_over:
            return
        self._number, self.waits = self._number + 1, True
        sent = Grab(self.name, "t", self.capacity - self.in_hand, self._number, self.name)
        stays = self._stays
        self._world.soon(0.002, lambda: self._world.grabbed(sent, stays=stays))


class World(FakeHands):
    """The Orchestrator's hands reach workers and one scheduler, which mostly lends."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random, self.is_over = Random(seed), False
        shards: Any = Shard()
        self.loans = loans_over(shards, self)
        sizes = (3, 10, 40, 100)
        self.workers = {
            name: Worker(self, name, self._random.choice(sizes)) for name in ("w1", "w2", "w3")
        }

    def soon(self, most: float, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._random.random() * most, call)

    def grabbed(self, grab: Grab, *, stays: bool) -> None:
        if stays:
            self.loans.grabbed(grab, 0)
        else:
            self._schedule(grab)

    def _schedule(self, grab: Grab) -> None:
        if self.is_over or self._random.random() < 0.7:
            self.loans.grabbed(grab, LASTS)
        else:
            claimed = self._random.randint(0, grab.credit)
            self.workers[grab.worker_id].send(grab.number, claimed, more=False, stay=False)

    async def dispatch(
        self, grab: Grab, jobs: Sequence[Claimed], *, stay: bool, more: bool = False
    ) -> None:
        if self._random.random() < 0.03:
            raise DependencyUnavailable("nats", "gone")
        self.workers[grab.worker_id].send(grab.number, len(jobs), more=more, stay=stay)
        await asyncio.sleep(self._random.choice([0, 0.002]))

    async def answer_empty(self, grab: Grab, *, stay: bool = False) -> None:
        self.workers[grab.worker_id].send(grab.number, 0, more=False, stay=stay)

    async def pass_on(self, grab: Grab, to: str = "", *, back: bool = False) -> None:
        self.soon(0.004, lambda: self._schedule(grab))

    async def put(self) -> None:
        wanted = jobs(self._random.choice([1, 1, 2, 5, 20, 50, 60]))
        part = await self.loans.room(wanted)
        if part is None:
            await asyncio.sleep(0.001)
            self.loans.nudged({"t"})
            return
        try:
            await asyncio.sleep(self._random.random() * 0.004)
        except BaseException:
            self.loans.give_back(part)
            raise
        stored = wanted[: self._random.choice([0, len(wanted), len(wanted)])]
        made = PutOutcome.CREATED, wanted[0].id, JobState.DISPATCHED, 2, NOW, NOW, True, True
        await self.loans.deliver(
            part, "s0", stored, PutAnswer([PutResult(*made)] * len(stored), [])
        )

    async def load(self) -> None:
        puts: list[asyncio.Task[None]] = []
        for _ in range(PUTS):
            puts.append(asyncio.create_task(self.put()))
            chance = self._random.random()
            if chance < 0.6:
                await asyncio.sleep(self._random.random() * 0.004)
            if chance < 0.1:
                for put in puts[-4:]:
                    put.cancel()
            if 0.1 < chance < 0.12:
                self.loans.recalled("t", "scheduler")
            if 0.12 < chance < 0.13:
                self.loans.barred("t")
        ended = await asyncio.gather(*puts, return_exceptions=True)
        wrong = [
            one
            for one in ended
            if isinstance(one, BaseException) and not isinstance(one, asyncio.CancelledError)
        ]
        assert not wrong


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_room_is_lost_and_nobody_has_more_than_it_has_room_for(seed):
    world, errors = World(seed), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for worker in world.workers.values():
        worker.grab()
    await world.load()
    world.loans.recalled("t", "scheduler")
    world.is_over = True
    await asyncio.sleep(SETTLE)
    assert not errors
    assert not world.loans._lines._lines
    here = world.loans._book._lent.get("t", {})
    assert [lent.out for lent in here.values()] == [0] * len(here)
    for name, worker in world.workers.items():
        assert not worker.overfull
        assert not worker.in_hand
        assert not worker.waits or name in here, f"{name} waits for an answer that nobody can give"
