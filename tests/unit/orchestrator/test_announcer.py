"""When what was committed is told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from jobmesh.v1 import bus_pb2

from services.mesh.bus import Subjects
from services.mesh.errors import PayloadTooLarge
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.adapters.announcer import BusAnnouncer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


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


class SmallBus:
    """Takes messages up to the broker's own limit."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def publish(self, subject: str, payload: bytes, **_: Any) -> None:
        if len(payload) > 1024**2:
            raise PayloadTooLarge(len(payload), 1024**2, "the bus message")
        self.told += [int.from_bytes(key) for key in read_keys(payload)]


def read_keys(payload: bytes) -> list[bytes]:
    ids = bus_pb2.EventBatch.FromString(payload).job_ids
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]


async def test_hints_of_long_failures_are_as_small_as_the_broker_wants_them():
    bus, failure = SmallBus(), Failure("E", "m" * 8_192, "t" * 16_384)
    announcer = BusAnnouncer(bus, Subjects("jm"), Metrics(), lambda: None)  # type: ignore[arg-type]
    said = (JobState.FAILED, Cause.FAILED, NOW, 1, 1, "w", None, failure, None, "n", "t")
    await announcer.committed("s0", [JobEvent(UUID(int=n), 4, *said) for n in range(300)])
    assert bus.told == list(range(300))
