"""Locks that nobody waits for travel together; the others leave at once and take them along."""

import asyncio
from contextlib import asynccontextmanager

from services.worker.app import unlocker
from services.worker.app.unlocker import Unlocker


class Etcd:
    """Hears of batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.heard = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def give_back(self, batch):
        self.batches.append(batch)
        self.heard.set()
        await self.gate.wait()


@asynccontextmanager
async def working(etcd):
    one = Unlocker(etcd.give_back)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_patient_wait_for_company_and_leave_with_the_urgent():
    etcd = Etcd()
    async with working(etcd) as one:
        one.add_patient(1)
        one.add_patient(2)
        await settle()
        assert etcd.batches == []
        one.add(3)
        await settle()
        assert etcd.batches == [[1, 2, 3]]


async def test_the_patient_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(unlocker, "PATIENCE", 0.001)
    etcd = Etcd()
    async with working(etcd) as one:
        one.add_patient(1)
        await asyncio.wait_for(etcd.heard.wait(), 10)
        assert etcd.batches == [[1]]


async def test_a_full_batch_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(unlocker, "ENOUGH", 3)
    etcd = Etcd()
    async with working(etcd) as one:
        for number in range(3):
            one.add_patient(number)
        await settle()
        assert etcd.batches == [[0, 1, 2]]


async def test_who_wants_to_leave_ends_the_patience_and_waits_for_the_answer():
    etcd = Etcd()
    etcd.gate.clear()
    async with working(etcd) as one:
        one.add_patient(1)
        leaving = asyncio.create_task(one.idle())
        await settle()
        assert etcd.batches == [[1]]
        assert not leaving.done()
        etcd.gate.set()
        await asyncio.wait_for(leaving, 10)
