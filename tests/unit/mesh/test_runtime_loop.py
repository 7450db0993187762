from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from services.mesh.runtime import Backoff, Counts, Loop, Tally

HOURS = 3600.0


class Probe(Loop):
    """A loop that does what the test says and counts how often it began."""

    def __init__(
        self,
        work: Callable[[], Counts] | None = None,
        *,
        interval: float = HOURS,
        backoff: Backoff | None = None,
        grace: float = 3.0,
    ) -> None:
        super().__init__("probe", interval, backoff=backoff, grace=grace, rand=lambda: 1.0)
        self.begun = Tally()
        self.gate = asyncio.Event()
        self.gate.set()
        self._work = work or (dict)

    async def run_once(self) -> Counts:
        self.begun.add()
        await self.gate.wait()
        return self._work()


@asynccontextmanager
async def running(loop: Probe) -> AsyncIterator[Probe]:
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop()


async def test_first_pass_waits_for_no_tick() -> None:
    async with running(Probe()) as loop:
        await loop.passes.reached(1)


async def test_loop_passes_again_on_each_tick() -> None:
    async with running(Probe(interval=0.001)) as loop:
        await loop.passes.reached(5)


async def test_nudge_brings_the_next_pass_forward() -> None:
    async with running(Probe()) as loop:
        await loop.passes.reached(1)
        loop.nudge()
        await loop.passes.reached(2)


async def test_nudges_during_a_pass_make_one_further_pass() -> None:
    loop = Probe()
    loop.gate.clear()
    async with running(loop):
        await loop.begun.reached(1)
        for _ in range(5):
            loop.nudge()
        loop.gate.set()
        await loop.passes.reached(2)
        await asyncio.sleep(0)
        assert loop.passes.count == 2


async def test_failing_pass_is_tried_again_after_a_backoff() -> None:
    def work() -> Counts:
        if loop.begun.count < 4:
            raise OSError("away")
        return {}

    loop = Probe(work, backoff=Backoff(first=0.001, ceiling=0.001, least=0.001))
    async with running(loop):
        await loop.passes.reached(1)
        assert loop.begun.count == 4
        assert loop.failures == 0


async def test_a_loop_that_failed_for_an_hour_is_back_within_two_seconds() -> None:
    def work() -> Counts:
        raise OSError("away")

    loop = Probe(work)
    loop.failures = 1000
    assert -2.0 <= await loop._pass() < 0


async def test_nudges_do_not_shorten_the_backoff() -> None:
    def work() -> Counts:
        raise OSError("away")

    loop = Probe(work, backoff=Backoff(first=HOURS, ceiling=HOURS))
    async with running(loop):
        await loop.begun.reached(1)
        for _ in range(100):
            loop.nudge()
            await asyncio.sleep(0)
        assert loop.begun.count == 1


async def test_traceback_is_logged_once_per_streak_of_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work() -> Counts:
        raise OSError("away")

    loop = Probe(work, backoff=Backoff(first=0.001, ceiling=0.001, least=0.001))
    with caplog.at_level(logging.WARNING):
        async with running(loop):
            await loop.begun.reached(4)
    failures = [r for r in caplog.records if getattr(r, "action", "") == "loop_failed"]
    assert len(failures) >= 3
    assert [bool(record.exc_info) for record in failures[:3]] == [True, False, False]


async def test_stop_lets_the_pass_under_way_end() -> None:
    loop = Probe()
    loop.gate.clear()
    await loop.start()
    await loop.begun.reached(1)
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    loop.gate.set()
    await stopping
    assert loop.passes.count == 1


async def test_stop_cancels_a_pass_that_outlasts_the_grace() -> None:
    loop = Probe(grace=0.01)
    loop.gate.clear()
    await loop.start()
    await loop.begun.reached(1)
    await loop.stop()
    assert loop.passes.count == 0


async def test_stop_may_come_twice_and_before_start() -> None:
    loop = Probe()
    await loop.stop()
    await loop.stop()
    await loop.start()
    assert loop.begun.count == 0
    started = Probe()
    await started.start()
    await started.stop()
    await started.stop()


async def test_loops_start_and_stop_at_any_moment_without_leaving_tasks() -> None:
    before = asyncio.all_tasks()
    for turn in range(200):
        loop = Probe(interval=0)
        await loop.start()
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        await loop.stop()
    assert asyncio.all_tasks() == before


async def test_passes_and_failures_are_reported_to_the_observer() -> None:
    seen: list[tuple[str, Mapping[str, int] | None]] = []

    class Observer:
        def passed(self, loop: str, seconds: float, counts: Mapping[str, int]) -> None:
            seen.append((loop, counts))

        def failed(self, loop: str, seconds: float) -> None:
            seen.append((loop, None))

    def work() -> Counts:
        if loop.begun.count == 1:
            raise OSError("away")
        return {"swept": 2}

    loop = Probe(work, backoff=Backoff(first=0.001, ceiling=0.001, least=0.001))
    loop.observe(Observer())
    async with running(loop):
        await loop.passes.reached(1)
    assert seen == [("probe", None), ("probe", {"swept": 2})]


def test_backoff_grows_to_its_ceiling_and_never_below_its_floor() -> None:
    backoff = Backoff(first=1, factor=2, ceiling=5, least=0.5)
    assert [backoff.delay(n, lambda: 1.0) for n in (1, 2, 3, 4, 10_000)] == [1, 2, 4, 5, 5]
    assert backoff.delay(3, lambda: 0.0) == 0.5
