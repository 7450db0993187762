"""What reaches a scheduler over the bus."""

from __future__ import annotations

import asyncio
import logging

import pytest

from services.mesh.bus.memory import MemoryBroker, MemoryBus
from services.mesh.bus.subjects import Subjects
from services.scheduler.adapters.broker import BusBroker, Intake
from services.scheduler.domain.credit import Grab


async def test_a_call_that_no_worker_hears_is_no_grab(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    grabs: list[Grab] = []

    async def closing() -> None: ...

    intake = Intake(
        bus, subjects, "s-1", grabs.append, lambda _: None, lambda _: None, closing, grabs.append
    )
    await bus.start()
    await intake.start()
    await BusBroker(bus, subjects, "s-1", 1_000_000).call("echo")
    await asyncio.sleep(0)
    await intake.stop()
    assert grabs == []
    assert caplog.messages == []
