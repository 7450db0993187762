"""A worker whose lease is gone or in doubt takes nothing, and goes on under a new identity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from localmesh.ports import PortPool
from localmesh.servers import Etcd, Nats

from services.mesh.lease.etcd import LeaseSession
from services.mesh.testing.servers import OwnServer
from services.mesh.testing.waiting import eventually
from tests.integration.worker_rig import Rig, dispatch, new_job, rigged

TYPES = ("noop", "shout", "waits")


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    around = rigged(
        nats_url=nats_url, etcd=etcd_endpoint, prefix=unique_prefix, spool=tmp_path, types=TYPES
    )
    async with around as made:
        yield await made.start()


async def revoke(rig: Rig) -> str:
    """Take the worker's lease away, as a mass revocation would."""
    worker_id = await rig.worker_id()
    entry = await rig.registry.get(rig.keys.worker(worker_id))
    assert entry is not None
    await rig.etcd.revoke(entry.lease_id, 5.0)
    return worker_id


async def new_identity(rig: Rig, former: str) -> str:
    async def registered() -> bool:
        return [i for i in await rig.worker_ids() if i != former] != []

    await eventually(registered)
    return await rig.worker_id()


async def test_a_lost_lease_leads_to_a_new_identity_that_takes_work(rig: Rig) -> None:
    await rig.scheduler.waiting("shout")
    former = await revoke(rig)
    worker_id = await new_identity(rig, former)
    await eventually(lambda: rig.scheduler.parked["shout"].grab.worker_id == worker_id)
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "a"))
    await rig.orchestrator.reported(job, "succeeded")
    await rig.process.readiness.wait_ready(10)
    assert rig.metric("leases_lost_total") == 1


async def test_an_attempt_may_commit_after_its_lease_was_lost(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job, timeout=6.0))
    await rig.orchestrator.reported(job, "started")
    former = await revoke(rig)
    worker_id = await new_identity(rig, former)
    report = await rig.orchestrator.reported(job, "failed")  # by its timeout, not by the lease
    assert report.failed.timed_out
    # Reported by the identity it was dispatched to, beside the new one.
    assert rig.orchestrator.workers == [former, worker_id]


async def test_a_dispatch_to_a_lost_identity_is_handed_back(rig: Rig) -> None:
    blocker = new_job()
    await rig.scheduler.dispatch("waits", dispatch(blocker))
    await rig.orchestrator.reported(blocker, "started")
    parked = await rig.scheduler.waiting("shout")
    await revoke(rig)
    await eventually(lambda: not rig.process.readiness.ready)
    job = new_job()
    await rig.scheduler.answer(parked, dispatch(job, "late"))
    report = await rig.orchestrator.reported(job, "handed_back")
    assert report.handed_back.reason == "lease lost"


async def test_room_that_the_former_identity_held_is_offered_by_the_new_one(rig: Rig) -> None:
    jobs = [new_job() for _ in range(3)]
    await rig.scheduler.dispatch("waits", *map(dispatch, jobs))
    for job in jobs:
        await rig.orchestrator.reported(job, "started")
    former = await revoke(rig)
    worker_id = await new_identity(rig, former)
    await eventually(lambda: rig.scheduler.parked["noop"].grab.worker_id == worker_id)
    assert "waits" not in rig.scheduler.parked
    for job in jobs:
        await rig.scheduler.cancel(former, job)
        await rig.orchestrator.reported(job, "handed_back")
    parked = await rig.scheduler.waiting("waits")
    assert parked.grab.worker_id == worker_id


# --- servers that can be frozen and killed


@pytest.fixture
def ports() -> Iterator[PortPool]:
    with PortPool() as pool:
        yield pool


@pytest.fixture
def own_etcd(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    server = Etcd("etcd", tmp_path / "etcd", port=ports.take(), peer_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


@pytest.fixture
def own_nats(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    server = Nats("nats", tmp_path / "nats", port=ports.take(), monitor_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


async def test_a_worker_in_doubt_takes_nothing_and_goes_on_when_etcd_is_back(
    own_etcd: OwnServer, nats_url: str, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=nats_url,
        etcd=own_etcd.server.url,
        prefix=unique_prefix,
        spool=tmp_path,
        types=TYPES,
        lease_seconds=2,
        lease_margin_seconds=0.5,
    )
    async with around as rig:
        await rig.start()
        running = new_job()
        await rig.scheduler.dispatch("waits", dispatch(running))
        await rig.orchestrator.reported(running, "started")
        parked = await rig.scheduler.waiting("shout")
        own_etcd.freeze()
        try:
            await eventually(lambda: not rig.process.readiness.ready)
            job = new_job()
            del rig.scheduler.parked["shout"]
            await rig.scheduler.answer(parked, dispatch(job, "a"))
            await rig.orchestrator.reported(job, "handed_back")
            # No new grab follows the answer, and what runs goes on.
            assert "shout" not in rig.scheduler.parked
            assert rig.metric("worker_in_hand", type="waits") == 1
        finally:
            own_etcd.thaw()
        await rig.process.readiness.wait_ready(20)
        await rig.scheduler.waiting("shout")


async def test_grabs_lost_with_the_broker_are_sent_again(
    own_nats: OwnServer, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=own_nats.server.url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=("shout",),
    )
    async with around as rig:
        await rig.start()
        await rig.scheduler.waiting("shout")
        rig.scheduler.parked.clear()
        own_nats.kill()
        await eventually(lambda: not rig.process.readiness.ready)
        own_nats.start()
        job = new_job()
        await rig.scheduler.dispatch("shout", dispatch(job, "a"))
        await rig.orchestrator.reported(job, "succeeded")


async def test_a_worker_whose_grab_stays_unanswered_asks_the_scheduler_that_calls(rig: Rig) -> None:
    await rig.scheduler.waiting("shout")

    async def asked_again() -> bool:
        await rig.scheduler.call("shout")
        return rig.scheduler.called_for > 0

    # Not at once: whoever has the grab may be about to answer it.
    await eventually(asked_again, 3)
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "a"))
    await rig.orchestrator.reported(job, "succeeded")


async def test_a_grab_lost_with_its_scheduler_is_sent_again(rig: Rig) -> None:
    lease = await LeaseSession.grant(rig.etcd, ttl_seconds=5)
    await rig.registry.put(rig.keys.scheduler("one"), b"", lease)
    first = await rig.scheduler.waiting("shout")
    rig.scheduler.parked.clear()
    await lease.close()
    again = await rig.scheduler.waiting("shout")
    assert again.grab.grab_no == first.grab.grab_no + 1


async def test_a_worker_waits_for_what_starts_after_it(
    own_etcd: OwnServer, own_nats: OwnServer, unique_prefix: str, tmp_path: Path
) -> None:
    around = rigged(
        nats_url=own_nats.server.url,
        etcd=own_etcd.server.url,
        prefix=unique_prefix,
        spool=tmp_path,
        types=("shout",),
    )
    async with around as rig:
        await rig.orchestrator.stop()
        own_etcd.kill()
        await rig.start(ready=False)
        await rig.process.serving()
        assert set(rig.process.readiness.missing()) >= {"lease", "orchestrator"}
        own_etcd.start()
        await rig.orchestrator.start()
        await rig.process.readiness.wait_ready(20)
        job = new_job()
        await rig.scheduler.dispatch("shout", dispatch(job, "a"))
        await rig.orchestrator.reported(job, "succeeded")
