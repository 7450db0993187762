"""Keys that etcd takes once more after they were given back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from uuid import UUID

import pytest

from services.mesh.jobs.limits import Limit
from services.mesh.lease import Keys
from services.mesh.lease.etcd import (
    EtcdClient,
    EtcdLockTable,
    EtcdPlaces,
    EtcdSettings,
    JobLocks,
    LeaseSession,
)
from services.mesh.lease.etcd.leftovers import Leftovers
from services.mesh.lease.etcd.lock_requests import LockRequests
from services.mesh.lease.port import PlaceWish
from services.mesh.testing.conformance.lease import jobs
from services.mesh.testing.waiting import eventually


@pytest.fixture
async def client(etcd_endpoint: str) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(EtcdSettings((etcd_endpoint,)))
    yield client
    await client.close()


@pytest.fixture
def keys(unique_prefix: str) -> Keys:
    return Keys(f"/{unique_prefix}")


async def test_a_lock_that_comes_after_it_was_given_back_is_removed(
    client: EtcdClient, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.mesh.lease.etcd.leftovers.LOOK_SECONDS", 0.05)
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    locks = JobLocks(client, keys, lease, "w1")
    table = EtcdLockTable(client, keys)
    fences = jobs(3)
    late, *others = fences
    await locks.lock(fences)
    await locks.unlock({late: fences[late]})
    # The first try of the lock, from a member that stood still meanwhile.
    await client.txn(LockRequests(keys.locks, "w1", lease.lease_id).take_all(named(keys, [late])))
    assert set(await table.held(fences)) == set(fences)

    async def only_others() -> bool:
        return set(await table.held(fences)) == set(others)

    await eventually(only_others)
    await locks.lock({late: 7})
    assert (await table.held([late]))[late].fence == 7
    await locks.close()
    await lease.close()


async def test_a_lock_that_is_unknown_in_one_look_only_is_left_alone(
    client: EtcdClient, keys: Keys
) -> None:
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    known: set[bytes] = set()
    leftovers = Leftovers(client, lease, keys.locks, lambda: known)
    take = LockRequests(keys.locks, "w1", lease.lease_id).take_all(named(keys, jobs(1)))
    await client.put(b"/elsewhere", b"", lease_id=lease.lease_id)
    await client.txn(take)
    (name,) = await locks_of(client, lease)
    assert await leftovers.look() == 0, "it may be on its way to be known"
    known.add(name)
    assert await leftovers.look() == 0
    known.clear()
    assert await leftovers.look() == 0, "known meanwhile: from the beginning"
    await client.put(name, b"taken again", lease_id=lease.lease_id)
    assert await leftovers.look() == 0, "changed meanwhile"
    assert await leftovers.look() == 1
    assert await locks_of(client, lease) == []
    assert await client.keys_of(lease.lease_id) == [b"/elsewhere"]
    await lease.close()


async def test_a_place_that_comes_after_it_was_given_back_is_removed(
    client: EtcdClient, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.mesh.lease.etcd.leftovers.LOOK_SECONDS", 0.05)
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    places = EtcdPlaces(client, keys, lease)
    wish = PlaceWish("job 1", (Limit("type/t", 2),))
    kept = (await places.take([PlaceWish("job 0", wish.limits)])).taken["job 0"]
    (late,) = (await places.take([wish])).taken["job 1"]
    await places.give_back([late])
    await client.put(late.key.encode(), late.owner.encode(), lease_id=lease.lease_id)

    async def only_the_other() -> bool:
        return await client.keys_of(lease.lease_id) == [place.key.encode() for place in kept]

    await eventually(only_the_other)
    await places.close()
    await lease.close()


async def locks_of(client: EtcdClient, lease: LeaseSession) -> list[bytes]:
    return [name for name in await client.keys_of(lease.lease_id) if b"/locks/" in name]


def named(keys: Keys, some: Iterable[bytes]) -> list[tuple[bytes, int]]:
    return [(keys.lock(UUID(bytes=job)).encode(), 1) for job in some]
