from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.mesh.runtime import DrainSignal, Readiness, Tally


async def numbers(upto: int, then: asyncio.Event | None = None) -> AsyncIterator[int]:
    for number in range(upto):
        yield number
    if then is not None:
        await then.wait()


async def test_cut_passes_everything_when_no_drain_comes() -> None:
    drain = DrainSignal()
    assert [item async for item in drain.cut(numbers(3))] == [0, 1, 2]


async def test_cut_ends_a_waiting_stream_on_drain() -> None:
    drain, seen = DrainSignal(), Tally()

    async def follow() -> list[int]:
        items = []
        async for item in drain.cut(numbers(2, then=asyncio.Event())):
            items.append(item)
            seen.add()
        return items

    following = asyncio.create_task(follow())
    await seen.reached(2)
    drain.set()
    assert await following == [0, 1]


async def test_cut_hands_on_the_error_of_the_stream() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise OSError("away")

    drain = DrainSignal()
    with pytest.raises(OSError, match="away"):
        _ = [item async for item in drain.cut(broken())]


async def test_first_is_the_result_or_none_if_the_drain_wins() -> None:
    drain = DrainSignal()
    assert await drain.first(asyncio.sleep(0, "done")) == "done"
    drain.set()
    assert await drain.first(asyncio.Event().wait()) is None


async def test_sleep_tells_whether_the_drain_cut_it_short() -> None:
    drain = DrainSignal()
    assert await drain.sleep(0.001) is False
    drain.set()
    assert await drain.sleep(3600) is True


async def test_waiting_on_a_drain_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    drain = DrainSignal()
    await drain.first(asyncio.sleep(0))
    _ = [item async for item in drain.cut(numbers(3))]
    drain.set()
    _ = [item async for item in drain.cut(numbers(3, then=asyncio.Event()))]
    assert asyncio.all_tasks() == before


def test_process_is_ready_only_while_everything_required_is_up() -> None:
    readiness = Readiness()
    assert readiness.ready
    postgres, nats = readiness.require("postgres"), readiness.require("nats")
    assert not readiness.ready
    postgres.up()
    nats.up()
    assert readiness.ready
    nats.down("connection refused")
    assert not readiness.ready
    assert readiness.missing() == {"nats": "connection refused"}
    assert readiness.alive


def test_requiring_a_dependency_twice_gives_the_same_one() -> None:
    readiness = Readiness()
    assert readiness.require("etcd") is readiness.require("etcd")


def test_drained_process_is_neither_alive_nor_ready() -> None:
    readiness = Readiness()
    readiness.drain()
    assert (readiness.alive, readiness.ready) == (False, False)


def test_listeners_hear_changes_only() -> None:
    readiness = Readiness()
    states: list[bool] = []
    dependency = readiness.require("s3")
    readiness.listen(lambda: states.append(readiness.ready))
    dependency.up()
    dependency.up()
    dependency.down()
    dependency.down()
    assert states == [False, True, False]


async def test_wait_ready_returns_when_the_last_dependency_comes_up() -> None:
    readiness = Readiness()
    dependency = readiness.require("etcd")
    waiting = asyncio.create_task(readiness.wait_ready(timeout=5))
    await asyncio.sleep(0)
    dependency.up()
    await waiting
    dependency.down()
    with pytest.raises(TimeoutError):
        await readiness.wait_ready(timeout=0.001)


async def test_tally_that_is_not_reached_times_out() -> None:
    tally = Tally()
    with pytest.raises(TimeoutError):
        await tally.reached(1, timeout=0.001)
    tally.add()
    await tally.reached(1)
