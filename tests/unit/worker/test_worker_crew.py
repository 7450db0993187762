"""Attempts that share a task, and those that need one for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.mesh.clock import ManualClock, SystemClock
from services.worker.app.crew import TURN_SECONDS, Crew
from services.worker.app.run import Run

MARK: ContextVar[str] = ContextVar("mark", default="none")

Body = Callable[[], Awaitable[None]]


def run_of(body: Body, type_: str = "t") -> Run:
    return cast(Run, SimpleNamespace(attempt=SimpleNamespace(type=type_), body=body, task=None))


async def live(run: Any) -> None:
    await run.body()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def crew() -> Crew:
    return Crew(live, SystemClock())


async def test_those_that_do_not_wait_share_a_task(crew: Crew) -> None:
    tasks: list[object] = []

    async def quick() -> None:
        tasks.append(asyncio.current_task())

    for _ in range(5):
        crew.launch(run_of(quick))
    assert tasks == []  # whoever launches them is not held up
    await turns()
    assert len(tasks) == 5
    assert len(set(tasks)) == 1


async def test_one_that_waits_keeps_its_task_and_holds_nobody_up(crew: Crew) -> None:
    gate = asyncio.Event()
    ended: list[str] = []

    async def waits() -> None:
        await gate.wait()
        ended.append("waits")

    async def quick() -> None:
        ended.append("quick")

    first, second = run_of(waits, "w"), run_of(quick, "q")
    crew.launch(first)
    crew.launch(second)
    await turns()
    assert ended == ["quick"]
    assert first.task is not None
    assert first.task is not second.task
    gate.set()
    await first.task
    assert ended == ["quick", "waits"]


async def test_those_that_wait_all_begin_in_one_turn(crew: Crew) -> None:
    begun: list[int] = []

    async def waits() -> None:
        begun.append(1)
        await asyncio.sleep(600)

    runs = [run_of(waits) for _ in range(50)]
    for run in runs:
        crew.launch(run)
    await turns()
    assert len(begun) == 50
    for run in runs:
        assert run.task is not None
        run.task.cancel()
    await asyncio.wait([run.task for run in runs if run.task is not None])


async def test_a_cancellation_reaches_the_one_that_waits(crew: Crew) -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append(MARK.get())
            await asyncio.sleep(0)
            seen.append("cleared")

    async def marks() -> None:
        MARK.set("mine")
        await waits()

    run = run_of(marks)
    crew.launch(run)
    await turns()
    assert run.task is not None
    run.task.cancel()
    await run.task
    assert seen == ["mine", "cleared"]


async def test_what_a_handler_sets_no_other_sees(crew: Crew) -> None:
    seen: list[str] = []

    async def sets() -> None:
        seen.append(MARK.get())
        MARK.set("someone else's")
        crew.launch(run_of(looks))  # as a turn does when an attempt has ended

    async def looks() -> None:
        seen.append(MARK.get())
        await asyncio.sleep(0)
        seen.append(MARK.get())

    crew.launch(run_of(sets))
    crew.launch(run_of(looks))
    await turns(6)
    assert seen == ["none"] * 5


async def test_a_handler_that_cancels_its_task_harms_no_other(crew: Crew) -> None:
    ended: list[str] = []

    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def raises() -> None:
        raise asyncio.CancelledError

    async def waits() -> None:
        await asyncio.sleep(0)
        ended.append("waited")

    for body in (cancels, waits, raises, waits):
        crew.launch(run_of(body))
    await turns(6)
    assert ended == ["waited", "waited"]


async def test_the_loop_has_its_turn_while_many_run() -> None:
    clock = ManualClock()
    crew = Crew(live, clock)
    seen: list[str] = []

    async def busy() -> None:
        clock.advance(TURN_SECONDS)
        seen.append("busy")

    for _ in range(3):
        crew.launch(run_of(busy))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(seen.append, "heartbeat")
    await turns(6)
    assert seen.index("heartbeat") < 3
    assert seen.count("busy") == 3


async def test_nothing_begins_once_it_is_closed(crew: Crew) -> None:
    begun: list[int] = []

    async def quick() -> None:
        begun.append(1)

    crew.launch(run_of(quick))
    crew.close()
    await turns()
    assert begun == []
