"""The in-memory adapter of the bus does what the bus promises; subjects are well formed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.mesh.bus import Subjects
from services.mesh.bus.memory import MemoryBroker, MemoryBus
from services.mesh.errors import DependencyUnavailable
from services.mesh.testing.conformance.bus import BusConformance


@pytest.fixture
def subjects() -> Subjects:
    return Subjects()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def bus(broker: MemoryBroker) -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(broker)
    yield bus
    await bus.stop()


@pytest.fixture
async def peer(broker: MemoryBroker) -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(broker)
    yield bus
    await bus.stop()


class TestMemoryBus(BusConformance):
    async def test_publishing_without_a_connection_raises(
        self, bus: MemoryBus, broker: MemoryBroker
    ) -> None:
        broker.connected = False
        with pytest.raises(DependencyUnavailable):
            await bus.publish("jm.due.a", b"")


@pytest.mark.parametrize("name", ["", "a b", "a.", ".a", "a..b", "a.*", ">", "a\r\nPUB x 0"])
def test_a_name_that_would_change_the_subject_is_refused(name: str) -> None:
    subjects = Subjects()
    for build in (subjects.due, subjects.grab, subjects.hint, subjects.cancel, Subjects):
        with pytest.raises(ValueError, match="subject"):
            build(name)


def test_subjects_lie_under_the_prefix() -> None:
    subjects = Subjects("mesh.one")
    assert subjects.due("a") == "mesh.one.due.a"
    assert subjects.tail(subjects.hint("s0")) == "s0"
    assert subjects.cancel("host-7") == "mesh.one.cancel.host-7"
