"""The in-memory adapter of the lease port does what the port promises."""

from __future__ import annotations

import pytest

from services.mesh.lease import Keys, Lease
from services.mesh.lease.memory import (
    MemoryLease,
    MemoryLocks,
    MemoryPlaces,
    MemoryRegistry,
    MemoryStore,
)
from services.mesh.testing.conformance.lease import (
    ElectionConformance,
    LeaseConformance,
    LocksConformance,
    RegistryConformance,
    WatchConformance,
)
from services.mesh.testing.conformance.places import PlacesConformance


class MemoryWorld:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.keys = Keys()
        self.registry = MemoryRegistry(self.store)
        self.table = MemoryLocks(self.store, self.keys)

    async def grant(self) -> MemoryLease:
        return self.store.grant()

    async def expire(self, lease: Lease) -> None:
        assert isinstance(lease, MemoryLease)
        lease.expire()

    def locks(self, lease: Lease, worker_id: str) -> MemoryLocks:
        return MemoryLocks(self.store, self.keys, lease, worker_id)

    def places(self, lease: Lease) -> MemoryPlaces:
        return MemoryPlaces(self.store, self.keys, lease)


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestMemoryLease(LeaseConformance):
    pass


class TestMemoryRegistry(RegistryConformance):
    pass


class TestMemoryWatch(WatchConformance):
    pass


class TestMemoryLocks(LocksConformance):
    pass


class TestMemoryPlaces(PlacesConformance):
    pass


class TestMemoryElection(ElectionConformance):
    async def test_a_leader_in_doubt_does_not_lead(self, world: MemoryWorld) -> None:
        from services.mesh.lease import Election
        from services.mesh.testing.conformance.lease import leading

        lease = await world.grant()
        election = Election(world.registry, lease, world.keys.scaler_leader, "s1")
        told: list[bool] = []
        election.on_change(told.append)
        await election.start()
        await leading(election)
        lease.doubt()
        assert not election.is_leader
        lease.doubt(False)
        assert election.is_leader
        await election.stop()
        assert told == [True, False, True, False]
