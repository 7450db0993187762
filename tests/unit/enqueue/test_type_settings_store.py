"""Settings of types are written over nothing that the writer has not seen."""

from __future__ import annotations

import pytest

from services.enqueue.app.type_settings import TRIES, TypeSettingsStore
from services.mesh.errors import EtagMismatch
from services.mesh.lease import Entry, Keys
from services.mesh.lease.memory import MemoryRegistry, MemoryStore

KEYS = Keys()
KEY = KEYS.type_settings + "x"


class Busy(MemoryRegistry):
    """Somebody else writes between a read and the write that follows it, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(MemoryStore())
        self.times = times

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        if self.times:
            await self.put(key, b"theirs %d" % self.times)
            self.times -= 1
        return found


def on_top(stands: Entry | None) -> bytes:
    return b"ours on " + (b"nothing" if stands is None else stands.value)


@pytest.mark.parametrize("times", [0, 1, TRIES - 1])
async def test_a_change_is_made_on_top_of_what_came_between(times: int) -> None:
    registry = Busy(times)
    made = await TypeSettingsStore(registry, KEYS).set("x", on_top, "")
    assert made.value == (b"ours on theirs 1" if times else b"ours on nothing")
    assert await registry.get(KEY) == made


async def test_one_that_never_gets_its_turn_is_refused() -> None:
    with pytest.raises(EtagMismatch):
        await TypeSettingsStore(Busy(TRIES), KEYS).set("x", on_top, "")


async def test_with_an_etag_nothing_may_come_between() -> None:
    registry = Busy(0)
    store = TypeSettingsStore(registry, KEYS)
    with pytest.raises(EtagMismatch):
        await store.set("x", on_top, "0")
    first = await store.set("x", on_top, "")
    registry.times = 1
    with pytest.raises(EtagMismatch):
        await store.set("x", on_top, str(first.revision))
    found = await registry.get(KEY)
    assert found is not None
    assert found.value == b"theirs 1"
    assert (await store.set("x", on_top, str(found.revision))).value == b"ours on theirs 1"
