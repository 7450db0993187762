"""A lease whose holder's loop was stuck: who saw it in doubt is told when it is back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from etcd import rpc_pb2 as pb

from services.mesh.clock import ManualClock
from services.mesh.lease import LeaseState
from services.mesh.lease.etcd import EtcdClient, LeaseSession
from services.mesh.testing.waiting import eventually

TTL, MARGIN = 5, 1.0


class Etcd:
    """Grants leases; the test answers renewals."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers: asyncio.Queue[pb.LeaseKeepAliveResponse] = asyncio.Queue()

    async def grant(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        return pb.LeaseGrantResponse(ID=7, TTL=ttl_seconds)

    async def revoke(self, lease_id: int, timeout: float) -> None:
        pass

    @asynccontextmanager
    async def keep_alive_stream(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(write=self._write, read=self.answers.get)

    async def _write(self, request: pb.LeaseKeepAliveRequest) -> None:
        self.asked.set()

    def renew(self) -> None:
        self.answers.put_nowait(pb.LeaseKeepAliveResponse(ID=7, TTL=TTL))


class World:
    def __init__(self) -> None:
        self.etcd, self.clock = Etcd(), ManualClock()
        self.told: asyncio.Queue[LeaseState] = asyncio.Queue()

    async def grant(self) -> LeaseSession:
        lease = await LeaseSession.grant(
            cast(EtcdClient, self.etcd), ttl_seconds=TTL, margin_seconds=MARGIN, clock=self.clock
        )
        lease.on_change(self.told.put_nowait)
        return lease


@pytest.fixture
def world() -> World:
    return World()


async def test_who_saw_doubt_by_the_clock_alone_is_told_that_the_lease_is_back(
    world: World,
) -> None:
    lease = await world.grant()
    world.clock.advance(1.0)
    await world.etcd.asked.wait()
    # The loop is stuck past the trust window; the timer of the doubt has had no turn since.
    world.clock.advance(TTL - MARGIN - 0.5)
    assert lease.state is LeaseState.DOUBTFUL
    world.etcd.renew()
    async with asyncio.timeout(5):
        assert await world.told.get() is LeaseState.HELD
    assert lease.alive
    await lease.close()


async def test_nobody_is_told_of_a_renewal_that_came_in_time(world: World) -> None:
    lease = await world.grant()
    before = lease.trusted_until
    world.clock.advance(1.0)
    await world.etcd.asked.wait()
    world.etcd.renew()
    await eventually(lambda: lease.trusted_until > before)
    assert world.told.empty()
    await lease.close()
    assert world.told.get_nowait() is LeaseState.CLOSED
