"""A lock that is given back and wanted again: the two must not overtake each other in etcd."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.locks import JobLocks
from services.mesh.lease.keys import Keys
from services.mesh.lease.port import Lease


class SlowEtcd:
    """Answers deletes when told to; every transaction succeeds."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.gate = asyncio.Event()

    async def txn(self, request, *, repeatable):
        kind = request.success[0].WhichOneof("request").removeprefix("request_")
        self.seen.append(kind)
        if kind == "delete_range":
            await self.gate.wait()
        return SimpleNamespace(succeeded=True)


def locks_of(etcd: SlowEtcd) -> JobLocks:
    lease = cast(Lease, SimpleNamespace(alive=True, lease_id=1))
    return JobLocks(cast(EtcdClient, etcd), Keys("/mesh"), lease, "w1")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_wants_a_lock_again_waits_until_its_giving_back_is_over():
    etcd, job, other = SlowEtcd(), uuid4(), uuid4()
    locks = locks_of(etcd)
    await locks.lock({job: 1})
    unlocking = asyncio.create_task(locks.unlock({job: 1}))
    await settle()
    again = asyncio.create_task(locks.lock({job: 2}))
    await settle()
    assert etcd.seen == ["put", "delete_range"]
    assert (await locks.lock({other: 1})).acquired == [other]  # which waits for nothing
    etcd.gate.set()
    await unlocking
    assert (await again).acquired == [job]
    assert etcd.seen == ["put", "delete_range", "put", "put"]


async def test_a_late_unlock_does_not_reach_a_lock_that_was_taken_again():
    etcd, job = SlowEtcd(), uuid4()
    locks = locks_of(etcd)
    await locks.lock({job: 1})
    await locks.lock({job: 2})
    await locks.unlock({job: 1})
    assert etcd.seen == ["put", "put"]
