"""The etcd adapter of the lease port does what the port promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.mesh.lease import Keys, Lease
from services.mesh.lease.etcd import (
    EtcdClient,
    EtcdLockTable,
    EtcdPlaces,
    EtcdRegistry,
    EtcdSettings,
    JobLocks,
    LeaseSession,
)
from services.mesh.testing.conformance.lease import (
    ElectionConformance,
    LeaseConformance,
    LocksConformance,
    RegistryConformance,
    WatchConformance,
)
from services.mesh.testing.conformance.places import PlacesConformance


class EtcdWorld:
    def __init__(self, endpoint: str, prefix: str) -> None:
        self.client = EtcdClient(EtcdSettings((endpoint,)))
        self.keys = Keys(f"/{prefix}")
        self.registry = EtcdRegistry(self.client, page_size=2)
        self.table = EtcdLockTable(self.client, self.keys)
        self._leases: list[LeaseSession] = []
        self._locks: list[JobLocks] = []
        self._places: list[EtcdPlaces] = []

    async def grant(self) -> LeaseSession:
        lease = await LeaseSession.grant(self.client)
        self._leases.append(lease)
        return lease

    async def expire(self, lease: Lease) -> None:
        await self.client.revoke(lease.lease_id)

    def locks(self, lease: Lease, worker_id: str) -> JobLocks:
        locks = JobLocks(self.client, self.keys, lease, worker_id)
        self._locks.append(locks)
        return locks

    def places(self, lease: Lease) -> EtcdPlaces:
        places = EtcdPlaces(self.client, self.keys, lease, max_txn_ops=8)
        self._places.append(places)
        return places

    async def close(self) -> None:
        for locks in self._locks:
            await locks.close()
        for places in self._places:
            await places.close()
        for lease in self._leases:
            await lease.close()
        await self.client.close()


@pytest.fixture
async def world(etcd_endpoint: str, unique_prefix: str) -> AsyncIterator[EtcdWorld]:
    world = EtcdWorld(etcd_endpoint, unique_prefix)
    yield world
    await world.close()


class TestEtcdLease(LeaseConformance):
    pass


class TestEtcdPlaces(PlacesConformance):
    pass


class TestEtcdRegistry(RegistryConformance):
    pass


class TestEtcdWatch(WatchConformance):
    pass


class TestEtcdLocks(LocksConformance):
    pass


class TestEtcdElection(ElectionConformance):
    pass
