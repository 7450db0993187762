"""Leases and locks on a cluster of three etcd members, while members die."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from localmesh.ports import PortPool
from localmesh.servers import Etcd

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease import Keys, LeaseState
from services.mesh.lease.etcd import EtcdClient, EtcdSettings, JobLocks, LeaseSession
from services.mesh.testing.conformance.lease import jobs
from services.mesh.testing.servers import OwnServer
from services.mesh.testing.waiting import eventually

MEMBERS = ("one", "two", "three")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[OwnServer]]:
    with PortPool() as ports:
        peers = {name: ports.take() for name in MEMBERS}
        members = [
            Etcd(name, tmp_path / name, port=ports.take(), peer_port=port, peers=peers)
            for name, port in peers.items()
        ]
        owned = OwnServer.start_together(members, tmp_path)
        yield owned
        for own in owned:
            own.stop()


@pytest.fixture
async def client(cluster: list[OwnServer]) -> AsyncIterator[EtcdClient]:
    endpoints = tuple(own.server.url for own in cluster)
    client = EtcdClient(EtcdSettings(endpoints, timeout_seconds=2.0))
    yield client
    await client.close()


async def lock_some(locks: JobLocks) -> bool:
    fences = jobs(10)
    try:
        result = await locks.lock(fences)
        await locks.unlock(fences)
    except DependencyUnavailable:
        return False
    return len(result.acquired) == 10


async def test_a_lease_survives_the_death_of_each_member_in_turn(
    cluster: list[OwnServer], client: EtcdClient, unique_prefix: str
) -> None:
    assert (await client.status()).version.startswith("3.")
    lease = await LeaseSession.grant(client, ttl_seconds=5, margin_seconds=1.0)
    locks = JobLocks(client, Keys(f"/{unique_prefix}"), lease, "w1")
    # One of the three is the leader, so a leader dies on the way.
    for member in cluster:
        member.kill()
        began = time.monotonic()
        await eventually(lambda: lock_some(locks))
        assert time.monotonic() - began < 8
        member.start()
    assert not lease.lost.is_set()
    await eventually(lambda: lease.alive)
    await locks.close()
    await lease.close()


async def test_without_a_quorum_nothing_is_locked_and_with_it_the_lease_is_back(
    cluster: list[OwnServer], client: EtcdClient, unique_prefix: str
) -> None:
    lease = await LeaseSession.grant(client, ttl_seconds=5, margin_seconds=1.0)
    locks = JobLocks(client, Keys(f"/{unique_prefix}"), lease, "w1")
    for member in cluster[:2]:
        member.kill()
    await eventually(lambda: lease.state is LeaseState.DOUBTFUL)
    with pytest.raises(DependencyUnavailable):
        await locks.lock(jobs(1))
    # Either one alone has no quorum to be healthy in: both have to come up together.
    cluster[:2] = OwnServer.start_together([own.server for own in cluster[:2]], cluster[0].home)
    await eventually(lambda: lease.alive)
    assert await lock_some(locks)
    await locks.close()
    await lease.close()
