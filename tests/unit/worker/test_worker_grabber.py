"""The grabber: what wakes it, and where its grabs go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.mesh.clock import SystemClock
from services.worker.app.grabber import Grabber
from services.worker.domain.grabbing import GrabPlan, GrabSettings
from services.worker.ports import WorkSource


class Source(WorkSource):
    """Hears grabs."""

    def __init__(self) -> None:
        self.grabs: asyncio.Queue[int] = asyncio.Queue()
        self.at: list[str] = []

    async def listen_for_calls(self, type_: str) -> None:
        pass

    async def grab(
        self, type_: str, credit: int, grab_no: int, at: str = "", *, waits: bool = True
    ) -> None:
        self.at.append(at)
        self.grabs.put_nowait(credit)

    async def withdraw(self, type_: str, grab_no: int) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.source = Source()
        self.spare: int | None = None
        plan = GrabPlan(2, GrabSettings(), backoff=lambda refusals: 0.1)
        self.grabber = Grabber("t", plan, self.source, lambda: self.spare, SystemClock())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(made.grabber.run())
    yield made
    task.cancel()
    await asyncio.wait({task})


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_call_wakes_one_that_sleeps_on_room_that_it_was_not_told_of(world: World) -> None:
    await turns()
    world.spare = 2
    await turns()
    assert world.source.grabs.empty()
    world.grabber.called("here")
    async with asyncio.timeout(5):
        assert await world.source.grabs.get() == 2


async def test_a_call_makes_one_without_room_ask_for_nothing(world: World) -> None:
    world.spare = 0
    await turns()
    world.grabber.called("here")
    await turns()
    assert world.source.grabs.empty()


async def grabbed(world: World) -> str:
    """Where the next grab goes."""
    async with asyncio.timeout(5):
        await world.source.grabs.get()
    return world.source.at[-1]


async def test_the_grab_after_jobs_that_were_handed_out_as_they_were_stored_goes_there(
    world: World,
) -> None:
    world.spare = 2
    world.grabber.wake()
    assert await grabbed(world) == ""
    world.grabber.answered(1, "orchestrator")
    assert await grabbed(world) == "orchestrator"
    world.grabber.answered(2)
    assert await grabbed(world) == ""


async def test_it_goes_to_any_scheduler_where_that_was_in_vain(world: World) -> None:
    world.spare = 2
    world.grabber.wake()
    await grabbed(world)
    world.grabber.answered(1, "orchestrator")
    await grabbed(world)
    world.grabber.refused(2)
    assert await grabbed(world) == ""
    world.grabber.answered(3, "orchestrator")
    await grabbed(world)
    world.grabber.give_up()
    assert await grabbed(world) == ""
