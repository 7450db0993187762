"""The time bounds of a running attempt."""

from __future__ import annotations

import asyncio

from services.worker.app.limits import Limits
from services.worker.domain.attempt import Stop


async def test_who_extends_its_time_after_its_end_is_not_stopped_for_it() -> None:
    stops: list[Stop] = []
    limits = Limits(stops.append, run=60, silence=None, total_left=None)
    limits.end()
    limits.extend(0)
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_at(loop.time() + 0.01, passed.set_result, None)
    await passed
    assert stops == []
