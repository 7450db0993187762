"""Planning leaves time for the transaction it is done in, and for the process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any, cast

from services.mesh.store import firing
from services.mesh.store.firing import Firing, Runs
from tests.unit.mesh.test_jobs_planning import MINUTELY, NOON, due


async def test_what_cannot_be_planned_in_time_is_left_to_the_next_transaction(monkeypatch):
    loop, passed = asyncio.get_running_loop(), [0.0]
    monkeypatch.setattr(loop, "time", lambda: passed[0])

    class Slow(Firing):
        def _step(self, *given: Any) -> Any:
            passed[0] += 0.1
            return super()._step(*given)

    store = Slow(cast(Any, None), cast(Any, {}), Random(1))
    schedule = due(MINUTELY)
    turns: list[float] = []
    loop.call_soon(lambda: turns.append(passed[0]))
    runs = {schedule.id: Runs()}
    steps = await store._planned([schedule] * 10, runs, NOON, timedelta(0))
    assert len(steps) * 0.1 <= firing.PLANNING_SECONDS + 0.1
    assert 1 <= len(steps) < 10
    assert turns, "others had a turn in between"
