"""Tenures that come and go while the worker drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from services.mesh.runtime import Tasks
from services.mesh.testing.waiting import eventually
from services.worker.app.node import Node, NodeSettings
from services.worker.domain.info import WorkerInfo
from services.worker.ports import Membership, Schedulers, Standing
from tests.unit.worker.worker_world import MemoryStanding, WorkerWorld


class SlowMembership(Membership):
    """Gives an identity when the test says so."""

    def __init__(self, world: WorkerWorld) -> None:
        self.asked, self.may_enter = asyncio.Event(), asyncio.Event()
        self.given: list[MemoryStanding] = []
        self._world = world

    async def enter(self) -> Standing:
        self.asked.set()
        await self.may_enter.wait()
        self.given.append(self._world.standing())
        return self.given[-1]


class NoSchedulers(Schedulers):
    async def departures(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""


def about() -> WorkerInfo:
    raise AssertionError("nobody asks")


async def at_once() -> None:
    return None


def nobody(why: str) -> None:
    raise AssertionError(why)


async def test_a_tenure_that_begins_during_a_drain_takes_nothing() -> None:
    world = WorkerWorld({"t": 2})
    membership, tasks = SlowMembership(world), Tasks(nobody)
    node = Node(
        membership,
        NoSchedulers(),
        world.around,
        about=about,
        tasks=tasks,
        served=at_once,
        end_process=nobody,
        on_death=nobody,
        settings=NodeSettings(listen_after=0.0),
    )
    await node.start()
    await membership.asked.wait()
    await node.stop_taking()
    membership.may_enter.set()
    await eventually(lambda: bool(membership.given))
    (standing,) = membership.given
    await eventually(lambda: standing.announced == [False, True])
    assert world.source.grabs == []
    assert not world.ready.is_open
    await node.stop()
    await tasks.stop()
    assert world.source.closed
    assert world.store.leases == {}
