"""Leases, locks, watches and elections while etcd misbehaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from localmesh.ports import PortPool
from localmesh.processes import Command
from localmesh.servers import Etcd

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease import Deleted, Election, Keys, LeaseLost, LeaseState, LockOwner, Put
from services.mesh.lease.etcd import (
    Compactor,
    EtcdClient,
    EtcdLockTable,
    EtcdRegistry,
    EtcdSettings,
    JobLocks,
    LeaseSession,
)
from services.mesh.testing.conformance.lease import following, jobs, leading
from services.mesh.testing.faults import FaultProxy, Link
from services.mesh.testing.servers import OwnServer
from services.mesh.testing.waiting import eventually

TTL = 2
MARGIN = 0.5


@pytest.fixture
def ports() -> Iterator[PortPool]:
    with PortPool() as pool:
        yield pool


@pytest.fixture
def etcd(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    """An etcd that this test may hurt."""
    server = Etcd("etcd", tmp_path / "etcd", port=ports.take(), peer_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


def settings(*endpoints: str, timeout: float = 1.0) -> EtcdSettings:
    return EtcdSettings(endpoints, timeout_seconds=timeout)


@pytest.fixture
async def client(etcd: OwnServer) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(settings(etcd.server.url))
    yield client
    await client.close()


@pytest.fixture
async def lease(client: EtcdClient) -> AsyncIterator[LeaseSession]:
    lease = await LeaseSession.grant(client, ttl_seconds=TTL, margin_seconds=MARGIN)
    yield lease
    await lease.close()


@pytest.fixture
def keys(unique_prefix: str) -> Keys:
    return Keys(f"/{unique_prefix}")


async def states(lease: LeaseSession, *wanted: LeaseState) -> None:
    await eventually(lambda: lease.state in wanted)


# --- the lease ---


async def test_a_lease_outlives_its_ttl_many_times(client: EtcdClient, lease: LeaseSession) -> None:
    await renewed(lease, beyond=2 * TTL)
    assert await client.time_to_live(lease.lease_id) > 0


async def test_a_short_freeze_of_etcd_costs_no_lease(
    etcd: OwnServer, client: EtcdClient, lease: LeaseSession
) -> None:
    seen: list[LeaseState] = []
    lease.on_change(seen.append)
    etcd.freeze()
    await _passing(0.6 * TTL)
    etcd.thaw()
    await renewed(lease, beyond=0.6 * TTL)
    assert LeaseState.LOST not in seen
    assert await client.time_to_live(lease.lease_id) > 0


async def test_a_holder_stops_believing_before_the_frozen_etcd_could_expire_the_lease(
    etcd: OwnServer, lease: LeaseSession
) -> None:
    etcd.freeze()
    frozen = time.monotonic()
    await states(lease, LeaseState.DOUBTFUL)
    assert time.monotonic() - frozen < TTL - MARGIN + 0.3
    assert not lease.alive
    assert not lease.lost.is_set()


async def test_a_freeze_beyond_the_ttl_ends_the_lease_for_good(
    etcd: OwnServer, lease: LeaseSession
) -> None:
    etcd.freeze()
    await _passing(TTL + 1.0)
    etcd.thaw()
    async with asyncio.timeout(10):
        await lease.lost.wait()
    assert lease.state is LeaseState.LOST


async def test_a_lease_survives_the_restart_of_etcd(
    etcd: OwnServer, client: EtcdClient, lease: LeaseSession, keys: Keys
) -> None:
    registry = EtcdRegistry(client)
    await registry.put(keys.worker("w1"), b"info", lease)
    for _ in range(3):
        etcd.kill()
        etcd.start()
        await renewed(lease, beyond=0.1)
    assert not lease.lost.is_set()
    assert await registry.get(keys.worker("w1")) is not None


async def test_a_lease_comes_back_after_an_outage_longer_than_its_window(
    etcd: OwnServer, client: EtcdClient, lease: LeaseSession
) -> None:
    etcd.kill()
    await states(lease, LeaseState.DOUBTFUL)
    # etcd gives every lease its full TTL when it comes up, as it cannot know who renewed meanwhile.
    etcd.start()
    await states(lease, LeaseState.HELD)
    assert await client.time_to_live(lease.lease_id) > 0


async def test_a_holder_that_was_itself_stuck_knows_at_once(lease: LeaseSession) -> None:
    time.sleep(TTL + 1.0)  # noqa: ASYNC251 - the stuck event loop is what is tested
    assert not lease.alive
    async with asyncio.timeout(10):
        await lease.lost.wait()


async def test_busy_threads_do_not_starve_the_renewals(lease: LeaseSession) -> None:
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        await renewed(lease, beyond=2 * TTL)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def test_no_lease_is_granted_while_etcd_is_away(etcd: OwnServer, client: EtcdClient) -> None:
    etcd.kill()
    with pytest.raises(DependencyUnavailable) as raised:
        await LeaseSession.grant(client, ttl_seconds=TTL, margin_seconds=MARGIN)
    assert raised.value.metadata == {"dependency": "etcd"}


async def test_closing_a_lease_while_etcd_is_away_does_not_hang(
    etcd: OwnServer, client: EtcdClient
) -> None:
    lease = await LeaseSession.grant(client, ttl_seconds=TTL, margin_seconds=MARGIN)
    etcd.freeze()
    async with asyncio.timeout(5):
        await lease.close()


# --- several endpoints ---


async def test_a_call_goes_to_the_member_that_answers(etcd: OwnServer, ports: PortPool) -> None:
    nobody = f"127.0.0.1:{ports.take()}"
    for _ in range(4):  # the order is random
        client = EtcdClient(settings(nobody, etcd.server.url))
        assert (await client.range(b"x")).header.revision > 0
        await client.close()


async def test_a_lease_moves_on_when_its_member_hangs(etcd: OwnServer) -> None:
    port = int(etcd.server.url.rpartition(":")[2])
    async with FaultProxy(port) as one, FaultProxy(port) as two:
        client = EtcdClient(settings(one.address, two.address))
        lease = await LeaseSession.grant(client, ttl_seconds=5, margin_seconds=1.0)
        seen: list[LeaseState] = []
        lease.on_change(seen.append)
        for hanging, other in ((one, two), (two, one)):
            other.become(Link.CUT)  # what was swallowed is lost: only a new connection can work
            other.become(Link.PASS)
            hanging.become(Link.HANG)
            await renewed(lease, beyond=2.0)
        assert seen == []
        one.become(Link.PASS)
        await lease.close()
        await client.close()


async def renewed(lease: LeaseSession, *, beyond: float) -> None:
    """Return once the lease is alive and trusted for that much longer than now."""
    before = lease.trusted_until
    await eventually(lambda: lease.alive and lease.trusted_until > before + beyond)


# --- locks ---


async def test_a_lock_whose_answer_was_lost_is_recognised_as_ours(
    etcd: OwnServer, client: EtcdClient, keys: Keys
) -> None:
    port = int(etcd.server.url.rpartition(":")[2])
    async with FaultProxy(port) as proxy:
        cut_off = EtcdClient(settings(proxy.address))
        lease = await LeaseSession.grant(cut_off, ttl_seconds=10, margin_seconds=1.0)
        locks = JobLocks(cut_off, keys, lease, "w1")
        table = EtcdLockTable(client, keys)
        fences = jobs(3)
        proxy.become(Link.DROP_REPLIES)
        with pytest.raises(DependencyUnavailable):
            await locks.lock(fences)
        assert len(await table.held(fences)) == 3
        proxy.become(Link.CUT)  # what was swallowed is lost: only a new connection can work
        proxy.become(Link.PASS)
        await eventually(lambda: _answers(cut_off))
        result = await locks.lock(fences)
        assert sorted(result.acquired) == sorted(fences)
        assert result.held == {}
        await lease.close()
        await cut_off.close()


async def test_an_unlock_that_failed_is_repeated_until_it_is_done(
    etcd: OwnServer, client: EtcdClient, keys: Keys
) -> None:
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    locks = JobLocks(client, keys, lease, "w1")
    table = EtcdLockTable(client, keys)
    fences = jobs(200)
    await locks.lock(fences)
    etcd.kill()
    await locks.unlock(fences)
    etcd.start()

    async def all_free() -> bool:
        return not await table.held(fences)

    await eventually(all_free)
    await locks.close()
    await lease.close()


async def test_an_unlock_that_is_repeated_spares_a_newer_lock(
    etcd: OwnServer, client: EtcdClient, keys: Keys
) -> None:
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    locks = JobLocks(client, keys, lease, "w1")
    first, second = jobs(2)
    await locks.lock({first: 1, second: 1})
    etcd.kill()
    await locks.unlock({first: 1, second: 1})
    etcd.start()
    await eventually(lambda: _answers(client))
    await locks.lock({first: 2})
    table = EtcdLockTable(client, keys)

    async def second_is_free() -> bool:
        return second not in await table.held([second])

    await eventually(second_is_free)
    assert await table.held([first]) == {first: LockOwner("w1", 2)}
    await locks.close()
    await lease.close()


async def test_nothing_is_locked_while_the_lease_is_in_doubt(
    etcd: OwnServer, client: EtcdClient, lease: LeaseSession, keys: Keys
) -> None:
    etcd.freeze()
    await states(lease, LeaseState.DOUBTFUL)
    with pytest.raises(LeaseLost):
        await JobLocks(client, keys, lease, "w1").lock(jobs(1))


class SmallEtcd(Etcd):
    """An etcd with room for 16 MiB."""

    def command(self) -> Command:
        plain = super().command()
        return replace(plain, argv=[*plain.argv, "--quota-backend-bytes", str(16 * 1024 * 1024)])


async def test_a_full_etcd_refuses_locks_aloud_and_still_lets_a_worker_leave(
    tmp_path: Path, ports: PortPool, keys: Keys
) -> None:
    server = SmallEtcd("small", tmp_path / "small", port=ports.take(), peer_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    client = EtcdClient(settings(server.url, timeout=3.0))
    lease = await LeaseSession.grant(client, ttl_seconds=10, margin_seconds=1.0)
    locks = JobLocks(client, keys, lease, "w1")
    fences = jobs(3)
    await locks.lock(fences)

    async def full() -> bool:
        try:
            await client.put(f"{keys.prefix}/ballast".encode(), b"x" * 1024 * 1024)
        except DependencyUnavailable:
            return True
        return False

    await eventually(full)
    with pytest.raises(DependencyUnavailable, match="space"):
        await locks.lock(jobs(1))
    # This etcd refuses even transactions that only delete; what is owed then ends with the lease.
    await locks.unlock(fences)
    assert lease.alive
    await locks.close()
    await lease.close()
    assert await EtcdRegistry(client).entries(keys.locks) == []
    await client.close()
    own.stop()


# --- watches ---


async def test_a_watch_misses_no_deletion_over_a_compaction(
    etcd: OwnServer, client: EtcdClient, keys: Keys
) -> None:
    registry = EtcdRegistry(client)
    for name in ("kept", "gone", "changed"):
        await registry.put(keys.worker(name), b"1")
    port = int(etcd.server.url.rpartition(":")[2])
    async with FaultProxy(port) as proxy:
        cut_off = EtcdClient(settings(proxy.address))
        async with aclosing(EtcdRegistry(cut_off).watch(keys.workers)) as events:
            await following(events)
            proxy.become(Link.CUT)
            await registry.delete(keys.worker("gone"))
            await registry.put(keys.worker("changed"), b"2")
            last = await registry.put(keys.worker("new"), b"1")
            await client.compact(last)
            proxy.become(Link.PASS)
            seen = [await following(events) for _ in range(3)]
        await cut_off.close()
    changes = {
        (type(event), event.entry.key.rpartition("/")[2], event.entry.value)
        for event in seen
        if isinstance(event, Put | Deleted)
    }
    assert changes == {(Deleted, "gone", b"1"), (Put, "changed", b"2"), (Put, "new", b"1")}


async def test_a_slow_reader_of_a_watch_misses_no_deletion(client: EtcdClient, keys: Keys) -> None:
    registry = EtcdRegistry(client)
    async with aclosing(registry.watch(keys.workers)) as events:
        await following(events)
        await registry.put(keys.worker("w1"), b"1")
        assert isinstance(await following(events), Put)
        last = 0
        for number in range(200):
            last = await registry.put(keys.worker("w2"), b"x" * 10_000 + str(number).encode())
        await registry.delete(keys.worker("w1"))
        await client.compact(last)
        await registry.delete(keys.worker("w2"))
        alive = {keys.worker("w1")}
        while alive:
            event = await following(events)
            assert isinstance(event, Put | Deleted)
            (alive.add if isinstance(event, Put) else alive.discard)(event.entry.key)


async def test_a_watch_survives_an_etcd_rebuilt_from_nothing(
    etcd: OwnServer, client: EtcdClient, keys: Keys, tmp_path: Path
) -> None:
    registry = EtcdRegistry(client)
    for number in range(20):  # so that the new etcd's revisions are lower
        await registry.put(keys.worker(str(number)), b"")
    async with aclosing(registry.watch(keys.workers)) as events:
        await following(events)
        etcd.kill()
        (tmp_path / "etcd" / "member").rename(tmp_path / "old")
        etcd.start()
        gone = [await following(events) for _ in range(20)]
        assert all(isinstance(event, Deleted) for event in gone)
        await registry.put(keys.worker("new"), b"")
        assert isinstance(await following(events), Put)


# --- leadership ---


async def test_a_leader_that_is_cut_off_stops_leading_before_the_next_one_starts(
    etcd: OwnServer, client: EtcdClient, keys: Keys
) -> None:
    port = int(etcd.server.url.rpartition(":")[2])
    async with FaultProxy(port) as proxy:
        cut_off = EtcdClient(settings(proxy.address))
        old_lease = await LeaseSession.grant(cut_off, ttl_seconds=TTL, margin_seconds=MARGIN)
        new_lease = await LeaseSession.grant(client, ttl_seconds=TTL, margin_seconds=MARGIN)
        old = Election(EtcdRegistry(cut_off), old_lease, keys.scaler_leader, "old")
        new = Election(EtcdRegistry(client), new_lease, keys.scaler_leader, "new")
        both_led: list[bool] = []
        new.on_change(lambda leading: both_led.append(leading and old.is_leader))
        await old.start()
        await leading(old)
        await new.start()
        proxy.become(Link.HANG)
        await leading(new)
        assert both_led == [False]
        assert not old.is_leader
        await new.stop()
        await new_lease.close()
        await old.stop()
        await old_lease.close()
        await cut_off.close()


# --- compaction ---


async def test_the_compactor_forgets_what_is_older_than_a_round(
    client: EtcdClient, keys: Keys
) -> None:
    registry = EtcdRegistry(client)
    compactor = Compactor(client, min_revisions=10)
    assert await compactor.run_once() == {}
    old = await registry.put(keys.topology, b"")
    for _ in range(20):
        await registry.put(keys.topology, b"")
    assert await compactor.run_once() == {}
    assert (await compactor.run_once())["revisions"] >= 20
    with pytest.raises(DependencyUnavailable, match="compacted"):
        await client.range(b"x", revision=old)


async def test_the_compactor_leaves_an_idle_mesh_alone(client: EtcdClient) -> None:
    compactor = Compactor(client, min_revisions=10)
    for _ in range(4):
        assert await compactor.run_once() == {}


async def _passing(seconds: float) -> None:
    """Let real time pass, where the passing of time is what is tested."""
    await asyncio.sleep(seconds)


async def _answers(client: EtcdClient) -> bool:
    try:
        await client.range(b"x")
    except DependencyUnavailable:
        return False
    return True
