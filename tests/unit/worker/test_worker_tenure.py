"""One identity at work, in a world that the test plays."""

from __future__ import annotations

import asyncio

import pytest

from services.mesh.clock import ManualClock
from services.mesh.lease import LeaseLost, LockResult
from services.mesh.testing.waiting import eventually
from services.worker.domain.ending import HandedBack
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


async def test_what_is_dispatched_while_it_settles_is_waited_for() -> None:
    world = WorkerWorld({"t": 2})
    standing = world.standing()
    unlocking, may_unlock = asyncio.Event(), asyncio.Event()
    unlock = standing.locks.unlock

    async def slow_unlock(fences: dict[bytes, int]) -> None:
        unlocking.set()
        await may_unlock.wait()
        await unlock(fences)

    standing.locks.unlock = slow_unlock
    tenure = await world.tenure(standing)
    world.handlers.go.set()
    world.broker.dispatch(attempt("t"), type_="t")
    await unlocking.wait()
    standing.lease.expire()
    tenure.retire()
    settled = asyncio.create_task(tenure.settled())
    await turns()
    world.orchestrator.answers_now.clear()
    world.broker.dispatch(attempt("t"), type_="t")  # too late: it is handed back
    may_unlock.set()
    await eventually(lambda: len(world.orchestrator.endings()) == 2)
    await turns()
    assert not settled.done()
    world.orchestrator.answers_now.set()
    async with asyncio.timeout(5):
        await settled
    assert world.book.unsettled == 0
    await tenure.close()


async def test_what_comes_too_late_to_be_reported_takes_up_no_room() -> None:
    world = WorkerWorld({"t": 1}, max_unsettled=1)
    world.orchestrator.answers_now.clear()
    standing = world.standing()
    tenure = await world.tenure(standing)
    late = [attempt("t"), attempt("t")]
    standing.on_leave = lambda: world.broker.dispatch(*late, type_="t")
    await tenure.close()
    assert (world.book.in_hand(), world.book.unsettled) == (0, 0)
    assert world.book.room("t") == 1


async def test_nothing_is_asked_ahead_for_while_too_much_is_unsettled() -> None:
    clock = ManualClock()
    world = WorkerWorld({"t": 5}, max_unsettled=5, ahead=10.0, clock=clock)
    world.orchestrator.answers_now.clear()
    tenure = await world.tenure()
    await eventually(lambda: world.source.grabs == [("t", 5)])
    world.broker.dispatch(*(attempt("t") for _ in range(5)), type_="t")
    await eventually(lambda: world.handlers.running == 5)
    clock.advance(1.0)  # at five in a second, there will be room for many in ten
    world.handlers.go.set()
    await eventually(lambda: len(world.orchestrator.endings()) == 5)
    await turns()
    assert len(world.source.grabs) == 1
    world.orchestrator.answers_now.set()
    await eventually(lambda: len(world.source.grabs) == 2)
    assert world.source.grabs[1][1] > 5
    await tenure.close()


@pytest.mark.parametrize("known", [True, False])
async def test_while_only_etcd_knows_of_a_lost_lease_jobs_are_handed_back_for_later(
    known: bool,
) -> None:
    world = WorkerWorld({"t": 1})
    standing = world.standing()

    async def lock(fences: dict[bytes, int]) -> LockResult:
        if known:
            standing.lease.doubt()
        raise LeaseLost(standing.lease.lease_id, "etcd does not know it")

    standing.locks.lock = lock
    tenure = await world.tenure(standing)
    world.broker.dispatch(attempt("t"), type_="t")
    await eventually(lambda: len(world.orchestrator.endings()) == 1)
    (ending,) = world.orchestrator.endings()
    # Due at once, they would be sent to the very worker that still asks for work.
    assert ending == HandedBack("lease lost", 0.0 if known else 1.0)
    await tenure.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
