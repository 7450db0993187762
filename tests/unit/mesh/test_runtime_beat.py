"""Timers of one process meet; threads of libraries have slack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from services.mesh.runtime import Counts, Loop, until_beat
from services.mesh.runtime.beat import PHASE
from services.mesh.runtime.slack import LIBRARY_SLACK, inherited_slack
from tests.simulation.loop import VirtualLoop

T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return VirtualLoop(Random(1)).run(work)  # type: ignore[abstract]


class Ticking(Loop):
    """Notes when it passes."""

    def __init__(self, interval: float) -> None:
        super().__init__("ticking", interval)
        self.times: list[float] = []

    async def run_once(self) -> Counts:
        self.times.append(round(asyncio.get_running_loop().time(), 3))
        return {}


async def _ticks(*loops: Ticking, apart: float, seconds: float) -> None:
    for loop in loops:
        await loop.start()
        await asyncio.sleep(apart)
    await asyncio.sleep(seconds)
    for loop in loops:
        await loop.stop()


def test_loops_that_rest_for_as_long_wake_the_process_once() -> None:
    one, other, slower = Ticking(2.0), Ticking(2.0), Ticking(4.0)
    _run(_ticks(one, other, slower, apart=0.7, seconds=20))
    assert one.times[5:9] == other.times[5:9]
    assert {time for time in slower.times[2:] if time < one.times[-1]} <= set(one.times)


@pytest.mark.parametrize("late", [0.0, 0.3, 1.79, 1.81, 1.999, 7.5])
def test_a_rest_is_a_tenth_longer_than_asked_for_at_most(late: float) -> None:
    async def rest() -> float:
        until_beat(2.0)
        await asyncio.sleep(late)
        return until_beat(2.0)

    assert 0.2 <= _run(rest()) <= 2.2


def test_whoever_rests_on_the_beat_keeps_its_interval() -> None:
    ticking = Ticking(2.0)
    _run(_ticks(ticking, apart=0, seconds=20))
    gaps = {round(b - a, 2) for a, b in zip(ticking.times, ticking.times[1:], strict=False)}
    assert gaps == {2.0}


def test_processes_do_not_meet() -> None:
    async def rest() -> tuple[float, float]:
        own = until_beat(2.0)
        PHASE.set(0.5)
        return own, until_beat(2.0)

    own, others = _run(rest())
    assert own - others == pytest.approx(0.5)


def _own_slack() -> int:
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


def test_only_threads_that_begin_meanwhile_have_slack() -> None:
    before, seen = _own_slack(), list[int]()
    with inherited_slack():
        thread = threading.Thread(target=lambda: seen.append(_own_slack()))
        thread.start()
    thread.join()
    assert seen == [LIBRARY_SLACK * 1e9]
    assert _own_slack() == before < 1e6
