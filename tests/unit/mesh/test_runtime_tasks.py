from __future__ import annotations

import asyncio
import logging

import pytest

from services.mesh.errors import Draining
from services.mesh.runtime import Tasks, deadline, together


async def fail() -> None:
    raise OSError("away")


async def test_death_of_a_vital_task_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    dead: list[str] = []
    tasks = Tasks(dead.append)
    task = tasks.spawn(fail(), "keeper")
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert dead == ["keeper"]
    assert tasks.names() == []
    await tasks.stop()
    assert any(getattr(record, "task", "") == "keeper" for record in caplog.records)


async def test_failure_of_a_task_that_is_not_vital_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead: list[str] = []
    tasks = Tasks(dead.append)
    with caplog.at_level(logging.ERROR):
        await asyncio.wait({tasks.spawn(fail(), "errand", vital=False)})
        await asyncio.sleep(0)
    assert dead == []
    assert len(caplog.records) == 1


async def test_task_that_ends_well_is_no_death() -> None:
    dead: list[str] = []
    tasks = Tasks(dead.append)
    assert await tasks.spawn(asyncio.sleep(0, "done"), "errand") == "done"
    await tasks.stop()
    assert dead == []


async def test_stop_cancels_all_and_waits_for_them() -> None:
    ended: list[str] = []

    async def slow_to_end(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    tasks = Tasks()
    for name in ("a", "b"):
        tasks.spawn(slow_to_end(name), name)
    await asyncio.sleep(0)
    assert tasks.names() == ["a", "b"]
    await tasks.stop()
    await tasks.stop()
    assert sorted(ended) == ["a", "b"]


async def test_nothing_is_started_after_stop() -> None:
    tasks = Tasks()
    await tasks.stop()
    with pytest.raises(Draining):
        tasks.spawn(fail(), "late")


async def test_spawned_task_leaves_the_deadline_of_its_caller_behind() -> None:
    async def look() -> float | None:
        return deadline.remaining()

    tasks = Tasks()
    deadline.start(5.0)
    assert await tasks.spawn(look(), "look") is None
    assert deadline.remaining() is not None
    await tasks.stop()


async def test_deadline_is_narrowed_and_never_widened() -> None:
    deadline.start(None)
    assert deadline.bounded(7.0) == 7.0
    with deadline.within(5.0):
        assert 4.0 < (deadline.remaining() or 0) <= 5.0
        with deadline.within(60.0):
            assert deadline.bounded(100.0) <= 5.0
    assert deadline.remaining() is None


async def test_deadline_in_the_past_leaves_zero_seconds() -> None:
    deadline.start(-1.0)
    assert deadline.remaining() == 0.0


async def _whose() -> asyncio.Task[None] | None:
    return asyncio.current_task()


async def test_what_is_alone_needs_no_task() -> None:
    assert await together() == []
    assert await together(_whose()) == [asyncio.current_task()]
    assert len({*await together(_whose(), _whose()), asyncio.current_task()}) == 3


async def test_the_error_of_one_is_the_error_of_all() -> None:
    for work in ([fail()], [fail(), _whose()]):
        with pytest.raises(OSError, match="away"):
            await together(*work)
