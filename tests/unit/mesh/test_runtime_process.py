from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from services.mesh.runtime import Counts, Hooks, Loop, Process, StartupError


class Part:
    """A component with every hook, that writes down what happened to it."""

    def __init__(self, name: str, diary: list[str], *, work: asyncio.Event | None = None) -> None:
        self.name = name
        self._diary, self._work = diary, work

    async def start(self) -> None:
        self._diary.append(f"start {self.name}")

    async def stop_taking(self) -> None:
        self._diary.append(f"cease {self.name}")

    async def finish(self, timeout: float) -> None:
        if self._work is not None:
            await self._work.wait()
        self._diary.append(f"finish {self.name}")

    async def stop(self) -> None:
        self._diary.append(f"stop {self.name}")


async def live(process: Process, build: Callable[[], Awaitable[None]]) -> asyncio.Task[int]:
    """The process, running and serving."""
    running = asyncio.create_task(process.run(build))
    serving = asyncio.create_task(process.serving())
    await asyncio.wait((running, serving), return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    return running


async def nothing() -> None:
    return None


async def test_components_start_in_order_and_stop_in_reverse() -> None:
    diary: list[str] = []
    process = Process("sample")
    process.add(Part("store", diary))
    process.add(Part("server", diary))
    running = await live(process, nothing)
    process.stop("the test is over")
    assert await running == 0
    assert diary == [
        *("start store", "start server"),
        *("cease store", "cease server"),
        *("finish store", "finish server"),
        *("stop server", "stop store"),
    ]


async def test_streams_are_told_after_taking_stopped_and_before_work_is_finished() -> None:
    seen: list[tuple[str, bool, bool]] = []
    process = Process("sample")

    class Watcher(Part):
        async def stop_taking(self) -> None:
            seen.append(("cease", process.readiness.alive, process.drain.is_set()))

        async def finish(self, timeout: float) -> None:
            seen.append(("finish", process.readiness.alive, process.drain.is_set()))

    process.add(Watcher("w", []))
    running = await live(process, nothing)
    process.stop("the test is over")
    await running
    assert seen == [("cease", False, False), ("finish", False, True)]


async def test_sigterm_drains_and_exits_with_0() -> None:
    process = Process("sample")
    running = await live(process, nothing)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_second_signal_does_not_wait_for_work() -> None:
    diary: list[str] = []
    process = Process("sample", drain_seconds=3600)
    process.add(Part("busy", diary, work=asyncio.Event()))
    running = await live(process, nothing)
    os.kill(os.getpid(), signal.SIGTERM)
    await process.drain.wait()
    os.kill(os.getpid(), signal.SIGINT)
    assert await running == 128 + signal.SIGINT
    assert diary[-1] == "stop busy"
    assert "finish busy" not in diary


async def test_work_that_outlasts_the_deadline_is_left_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process("sample", drain_seconds=0)
    process.add(Part("busy", [], work=asyncio.Event()))
    running = await live(process, nothing)
    process.stop("the test is over")
    assert await running == 0
    left = [r for r in caplog.records if getattr(r, "action", "") == "drain_incomplete"]
    assert [getattr(record, "step", "") for record in left] == ["finish busy"]


async def test_death_of_a_task_drains_the_process_with_exit_code_1() -> None:
    process = Process("sample")
    running = await live(process, nothing)

    async def fail() -> None:
        raise OSError("away")

    process.tasks.spawn(fail(), "keeper")
    assert await running == 1


async def test_failed_start_stops_what_was_started(caplog: pytest.LogCaptureFixture) -> None:
    diary: list[str] = []
    process = Process("sample")

    async def refuse() -> None:
        raise StartupError("cannot listen on 127.0.0.1:1")

    process.add(Part("store", diary))
    process.add(Hooks("server", start=refuse))
    process.add(Part("never", diary))
    assert await process.run(nothing) == 1
    assert diary == ["start store", "cease store", "finish store", "stop store"]
    (told,) = [r for r in caplog.records if getattr(r, "action", "") == "start_failed"]
    assert told.exc_info is None
    assert "cannot listen" in told.getMessage()


async def test_defect_in_the_composition_root_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def build() -> None:
        raise KeyError("oops")

    assert await Process("sample").run(build) == 1
    (told,) = [r for r in caplog.records if getattr(r, "action", "") == "start_failed"]
    assert told.exc_info is not None


async def test_stop_during_a_long_start_cuts_it_short() -> None:
    begun = asyncio.Event()

    async def never_ready() -> None:
        begun.set()
        await asyncio.Event().wait()

    process = Process("sample")
    process.add(Hooks("slow", start=never_ready))
    running = asyncio.create_task(process.run(nothing))
    await begun.wait()
    process.stop("changed our mind")
    assert await running == 0


async def test_component_that_fails_to_stop_does_not_keep_others_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    diary: list[str] = []
    process = Process("sample")

    async def fail() -> None:
        raise OSError("away")

    process.add(Part("store", diary))
    process.add(Hooks("bus", stop=fail))
    running = await live(process, nothing)
    with caplog.at_level(logging.ERROR):
        process.stop("the test is over")
        assert await running == 0
    assert diary[-1] == "stop store"
    assert any(getattr(r, "component", "") == "bus" for r in caplog.records)


async def test_passes_of_added_loops_are_measured() -> None:
    class Sweeper(Loop):
        async def run_once(self) -> Counts:
            return {"swept": 3}

    process = Process("sample")
    sweeper = process.add(Sweeper("sweeper", 3600))
    running = await live(process, nothing)
    await sweeper.passes.reached(1)
    process.stop("the test is over")
    await running
    labels = {"loop": "sweeper", "item": "swept"}
    assert process.metrics.value("jobmesh_loop_items_total", labels) == 3
    labels = {"loop": "sweeper", "outcome": "ok"}
    assert process.metrics.value("jobmesh_loop_pass_seconds_count", labels) == 1


async def test_drained_process_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    process = Process("sample")
    process.add(Part("store", []))
    running = await live(process, nothing)
    process.tasks.spawn(asyncio.Event().wait(), "waiter")
    process.stop("the test is over")
    await running
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_dependencies_are_measured_as_they_come_and_go() -> None:
    process = Process("sample")
    nats = process.readiness.require("nats")
    labels = {"dependency": "nats"}
    assert process.metrics.value("jobmesh_dependency_up", labels) == 0
    nats.up()
    assert process.metrics.value("jobmesh_dependency_up", labels) == 1
