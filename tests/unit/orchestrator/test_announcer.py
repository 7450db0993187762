"""When what was committed is told."""

from __future__ import annotations

import asyncio
from typing import Any

from services.mesh.bus import Subjects
from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.adapters.announcer import BusAnnouncer


class LaterBus:
    """Sends as the driver does: when another task gets its turn."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def publish(self, subject: str, payload: bytes, **_: Any) -> None:
        asyncio.get_running_loop().call_soon(self.sent.append, subject)


async def test_a_nudge_is_on_its_way_before_the_answer_is_made():
    bus = LaterBus()
    announcer = BusAnnouncer(bus, Subjects("jm"), Metrics(), lambda: None)  # type: ignore[arg-type]
    await announcer.due("s0", ["echo"])
    assert bus.sent == ["jm.due.echo"]
