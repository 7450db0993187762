"""Scalers while etcd misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jobmesh.v1 import scaler_service_pb2 as pb

from services.mesh.errors import Unavailable
from services.mesh.testing.faults import FaultProxy, Link
from services.mesh.testing.waiting import eventually
from tests.integration.scaler_rig import Replica, Rig, counts, load, rigged, spec


@pytest.fixture
async def rig(etcd_endpoint: str, unique_prefix: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(etcd_endpoint, unique_prefix, tmp_path) as rig:
        yield rig


@pytest.fixture
async def link(etcd_endpoint: str) -> AsyncIterator[FaultProxy]:
    """The way to etcd, for those who should lose it."""
    async with FaultProxy(urlsplit(etcd_endpoint).port or 0) as proxy:
        yield proxy


def restore(link: FaultProxy) -> None:
    """Connections that lost bytes are of no use any more: end them, then let new ones pass."""
    link.become(Link.CUT)
    link.become(Link.PASS)


def starts(replica: Replica) -> float:
    labels = {"type": "render"}
    return replica.process.metrics.value("jobmesh_worker_starts_total", labels) or 0


async def test_leader_that_is_cut_off_stops_acting_before_another_begins(
    rig: Rig, link: FaultProxy
) -> None:
    cut_off = await rig.scaler(instance="one", etcd_endpoints=(link.address,))
    await eventually(lambda: cut_off.leads)
    other = await rig.scaler(instance="two")
    await other.create(spec("render", max_workers=1))
    both_led = False

    def other_leads() -> bool:
        nonlocal both_led
        both_led = both_led or (cut_off.leads and other.leads)
        return other.leads

    link.become(Link.HANG)
    await eventually(other_leads)
    assert not both_led
    await rig.orchestrator.say(load("render", backlog=1))
    await other.until("render", lambda pool: pool.actual == 1)
    restore(link)
    await eventually(lambda: cut_off.process.readiness.ready)
    await cut_off.scaler.reconciler.passes.more(1)
    assert (starts(cut_off), starts(other)) == (0, 1)
    assert not cut_off.leads
    seen = await cut_off.until("render", lambda pool: pool.actual == 1)
    assert counts(seen) == (1, 1, 0, 0)


async def test_scaler_without_etcd_neither_grows_nor_answers_for_others(
    rig: Rig, link: FaultProxy
) -> None:
    scaler = await rig.scaler(etcd_endpoints=(link.address,))
    await scaler.create(spec("render", max_workers=1))
    await eventually(lambda: scaler.leads)
    link.become(Link.HANG)
    await eventually(lambda: not scaler.leads)
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.scaler.reconciler.passes.more(2)
    assert rig.pids() == []
    assert not scaler.process.readiness.ready
    with pytest.raises(Unavailable):
        await scaler.stub.GetPool(pb.GetPoolRequest(type="render"), timeout=10)
    restore(link)
    await scaler.until("render", lambda pool: pool.actual == 1)
    assert scaler.process.readiness.ready
