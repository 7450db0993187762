"""Whoever lends: of a paused type no job is handed to a worker as it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from jobmesh.v1 import bus_pb2, job_pb2

from services.mesh.jobs.credit import Grab
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.testing.waiting import eventually
from services.mesh.wire.dispatches import grab_to_bytes
from tests.integration.orchestrator_rig import new_job
from tests.integration.parts import Stand

SECONDS = 30.0


class Lender:
    """A scheduler that does not know of pauses, and the worker whose room it lends."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._number = 0
        self.came_back = 0

    async def begin(self) -> None:
        await self._stand.bus.subscribe(self._stand.subjects.all_due, self._heard)
        await self._stand.bus.subscribe(self._stand.subjects.all_grabs, self._returned)
        await self._stand.put(new_job("echo"))
        await eventually(lambda: hasattr(self, "_at"))

    def _heard(self, message) -> None:
        self._at = bus_pb2.Nudge.FromString(message.payload).lend_at

    def _returned(self, message) -> None:
        self.came_back += 1

    async def lend(self) -> None:
        self._number += 1
        grab = Grab("w", "echo", 100, self._number, "nobody.reads.it")
        await self._stand.bus.publish(self._at, grab_to_bytes(grab, SECONDS), reply=grab.inbox)

    async def hands_out(self) -> bool:
        """Whether a job is handed out, now that there is room for it."""
        await self.lend()
        (result,) = await self._stand.put(new_job("echo"))
        return (await self._stand.get(result.job.id)).job.state == job_pb2.JOB_STATE_DISPATCHED


@pytest.fixture
async def paused(etcd_endpoint: str, unique_prefix: str) -> AsyncIterator[EtcdRegistry]:
    etcd = EtcdClient(EtcdSettings((etcd_endpoint,)))
    yield EtcdRegistry(etcd)
    await etcd.close()


async def test_room_that_was_lent_goes_back_when_a_type_is_paused(stand, paused, unique_prefix):
    lender, key = Lender(stand), Keys(f"/{unique_prefix}").paused + "echo"
    await lender.begin()
    await eventually(lender.hands_out)
    before = lender.came_back
    await paused.put(key, b"why")
    await eventually(lambda: lender.came_back > before)
    for _ in range(10):
        assert not await lender.hands_out()
    await paused.delete(key)
    await eventually(lender.hands_out)
