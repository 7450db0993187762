"""A scheduler's own key: there under its lease, and gone with it."""

import asyncio

from services.mesh.lease.keys import Keys
from services.mesh.lease.memory import MemoryRegistry, MemoryStore
from services.mesh.lease.port import Lease
from services.mesh.runtime import Tasks
from services.mesh.runtime.readiness import Readiness
from services.scheduler.app.members import Membership


class SlowAnswers(MemoryRegistry):
    """Writes at once, and answers when it is let."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.written, self.answer = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        revision = await super().put(key, value, lease)
        self.written.set()
        await self.answer.wait()
        return revision


def membership(store: MemoryStore, registry: MemoryRegistry, tasks: Tasks) -> Membership:
    async def grant() -> Lease:
        return store.grant()

    dependency = Readiness().require("etcd")
    return Membership("s1", ["shard"], registry, Keys("/t"), grant, tasks, dependency)


async def test_who_stops_is_gone():
    store, tasks = MemoryStore(), Tasks()
    registry = SlowAnswers(store)
    registry.answer.set()
    member = membership(store, registry, tasks)
    await member.start()
    await registry.written.wait()
    assert list(store.entries) == ["/t/schedulers/s1"]
    await member.stop()
    assert not store.entries
    await tasks.stop()


async def test_who_stops_before_it_knows_that_it_is_registered_is_gone_too():
    store, tasks = MemoryStore(), Tasks()
    registry = SlowAnswers(store)
    member = membership(store, registry, tasks)
    await member.start()
    await registry.written.wait()
    assert store.entries
    await member.stop()
    assert not store.entries
    await tasks.stop()


async def test_who_stops_before_it_has_started_ends_at_once():
    store, tasks = MemoryStore(), Tasks()
    await membership(store, SlowAnswers(store), tasks).stop()
    assert not store.entries
