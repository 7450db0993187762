"""One identity at work, in a world that the test plays."""

from __future__ import annotations

import asyncio

from services.mesh.testing.waiting import eventually
from tests.unit.worker.worker_world import WorkerWorld, attempt


async def test_who_shares_room_with_what_ended_asks_for_it() -> None:
    world = WorkerWorld({})
    world.executors.update(dict.fromkeys("ab", world.handlers))
    # One attached executor, with two types and room for one attempt.
    world.book.lend(dict.fromkeys("ab", 1), lambda type_: 1 - world.book.in_hand())
    tenure = await world.tenure()
    await eventually(lambda: set(world.source.grabs) == {("a", 1), ("b", 1)})
    world.broker.dispatch(attempt("a"), type_="a")
    await eventually(lambda: world.handlers.running == 1)
    world.broker.dispatch(type_="b")  # nothing: its grab is answered, and there is no room
    await turns()
    assert len(world.source.grabs) == 2
    world.handlers.go.set()
    await eventually(lambda: world.source.grabs.count(("b", 1)) == 2)
    await tenure.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
