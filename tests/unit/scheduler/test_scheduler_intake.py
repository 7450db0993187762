"""What reaches a scheduler over the bus."""

from __future__ import annotations

import asyncio
import logging

import pytest

from services.mesh.bus.memory import MemoryBroker, MemoryBus
from services.mesh.bus.subjects import Subjects
from services.scheduler.adapters.broker import BusBroker, Intake
from services.scheduler.domain.credit import Grab
from services.scheduler.domain.word import Served


def _ignore(word: object) -> None: ...


async def test_a_call_that_no_worker_hears_is_no_grab(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    grabs: list[Grab] = []

    async def closing() -> None: ...

    told = (grabs.append, _ignore, _ignore, closing, grabs.append, _ignore)
    intake = Intake(bus, subjects, "s-1", *told)
    await bus.start()
    await intake.start()
    await BusBroker(bus, subjects, "s-1", 1_000_000).call("echo")
    await asyncio.sleep(0)
    await intake.stop()
    assert grabs == []
    assert caplog.messages == []


async def test_what_another_scheduler_has_served_reaches_the_one_it_is_said_to() -> None:
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    heard: dict[str, list[Served]] = {"s-1": [], "s-2": []}

    async def closing() -> None: ...

    await bus.start()
    for name, words in heard.items():
        told = (_ignore, _ignore, _ignore, closing, _ignore, words.append)
        await Intake(bus, subjects, name, *told).start()
    served = Served("echo", "s0", frozenset({7, 2**64 - 1}))
    await BusBroker(bus, subjects, "s-1", 1_000_000).served(["s-2"], served)
    await bus.publish(subjects.served_at("s-1"), b"\xff")
    await asyncio.sleep(0)
    await bus.stop()
    assert heard == {"s-1": [], "s-2": [served]}
