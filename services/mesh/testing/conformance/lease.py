"""What every adapter of the lease port must do.

Subclass the suite in a test module and give it a `world` fixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol
from uuid import uuid4

import pytest

from services.mesh.lease import (
    Deleted,
    Election,
    Keys,
    Lease,
    LeaseLost,
    LeaseState,
    LockOwner,
    Locks,
    LockTable,
    Put,
    Registry,
    Snapshot,
    WatchEvent,
)
from services.mesh.testing.waiting import PATIENCE_SECONDS, eventually


class World(Protocol):
    """One store, and everything that can be had on it."""

    keys: Keys
    registry: Registry
    table: LockTable

    async def grant(self) -> Lease: ...

    async def expire(self, lease: Lease) -> None:
        """End the lease as its server does."""
        ...

    def locks(self, lease: Lease, worker_id: str) -> Locks: ...


def jobs(count: int) -> dict[bytes, int]:
    """Fresh jobs, each with a fence."""
    return {uuid4().bytes: fence for fence in range(1, count + 1)}


async def following(events: AsyncGenerator[WatchEvent, None]) -> WatchEvent:
    """The next event, or a failed test."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await anext(events)


class LeaseConformance:
    async def test_a_granted_lease_is_alive(self, world: World) -> None:
        lease = await world.grant()
        assert lease.alive
        assert lease.state is LeaseState.HELD
        assert not lease.lost.is_set()

    async def test_closing_a_lease_deletes_its_keys_at_once(self, world: World) -> None:
        lease = await world.grant()
        await world.registry.put(world.keys.worker("w1"), b"info", lease)
        await lease.close()
        assert await world.registry.get(world.keys.worker("w1")) is None
        assert not lease.alive
        assert lease.state is LeaseState.CLOSED

    async def test_a_lease_may_be_closed_twice(self, world: World) -> None:
        lease = await world.grant()
        await lease.close()
        await lease.close()

    async def test_an_expired_lease_tells_its_owner(self, world: World) -> None:
        lease = await world.grant()
        seen: list[LeaseState] = []
        lease.on_change(seen.append)
        await world.expire(lease)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await lease.lost.wait()
        assert not lease.alive
        assert seen[-1] is LeaseState.LOST

    async def test_an_expired_lease_takes_its_keys_with_it(self, world: World) -> None:
        lease = await world.grant()
        await world.registry.put(world.keys.worker("w1"), b"info", lease)
        await world.expire(lease)
        assert await world.registry.entries(world.keys.workers) == []


class RegistryConformance:
    async def test_a_key_reads_as_it_was_written(self, world: World) -> None:
        lease = await world.grant()
        revision = await world.registry.put(world.keys.worker("w1"), b"info", lease)
        entry = await world.registry.get(world.keys.worker("w1"))
        assert entry is not None
        assert (entry.value, entry.revision) == (b"info", revision)
        assert entry.lease_id == lease.lease_id

    async def test_a_missing_key_is_none(self, world: World) -> None:
        assert await world.registry.get(world.keys.topology) is None

    async def test_entries_come_by_name_and_only_from_the_prefix(self, world: World) -> None:
        for key in (world.keys.pool("b"), world.keys.pool("a.b"), world.keys.type("a")):
            await world.registry.put(key, b"")
        names = [entry.key for entry in await world.registry.entries(world.keys.pools)]
        assert names == [world.keys.pool("a.b"), world.keys.pool("b")]

    async def test_a_key_under_a_dead_lease_is_refused(self, world: World) -> None:
        lease = await world.grant()
        await world.expire(lease)
        with pytest.raises(LeaseLost):
            await world.registry.put(world.keys.worker("w1"), b"", lease)

    async def test_replace_creates_only_what_is_absent(self, world: World) -> None:
        assert await world.registry.replace(world.keys.topology, b"1", 0) is not None
        assert await world.registry.replace(world.keys.topology, b"2", 0) is None
        entry = await world.registry.get(world.keys.topology)
        assert entry is not None
        assert entry.value == b"1"

    async def test_replace_at_the_read_revision_wins_once(self, world: World) -> None:
        first = await world.registry.put(world.keys.topology, b"1")
        assert await world.registry.replace(world.keys.topology, b"2", first) is not None
        assert await world.registry.replace(world.keys.topology, b"3", first) is None

    async def test_delete_tells_whether_there_was_something(self, world: World) -> None:
        await world.registry.put(world.keys.pool("a"), b"")
        assert await world.registry.delete(world.keys.pool("a"))
        assert not await world.registry.delete(world.keys.pool("a"))

    async def test_delete_at_an_old_revision_is_refused(self, world: World) -> None:
        old = await world.registry.put(world.keys.pool("a"), b"1")
        new = await world.registry.put(world.keys.pool("a"), b"2")
        assert not await world.registry.delete(world.keys.pool("a"), old)
        assert await world.registry.delete(world.keys.pool("a"), new)


class WatchConformance:
    async def test_a_watch_begins_with_what_there_is(self, world: World) -> None:
        await world.registry.put(world.keys.pool("a"), b"1")
        async with aclosing(world.registry.watch(world.keys.pools)) as events:
            first = await following(events)
        assert isinstance(first, Snapshot)
        assert {key: entry.value for key, entry in first.entries.items()} == {
            world.keys.pool("a"): b"1"
        }

    async def test_a_watch_follows_puts_and_deletes_in_order(self, world: World) -> None:
        key = world.keys.pool("a")
        async with aclosing(world.registry.watch(world.keys.pools)) as events:
            assert await following(events) == Snapshot({})
            await world.registry.put(key, b"1")
            await world.registry.put(key, b"2")
            await world.registry.delete(key)
            seen = [await following(events) for _ in range(3)]
        assert [type(event) for event in seen] == [Put, Put, Deleted]
        values = [event.entry.value for event in seen if isinstance(event, Put | Deleted)]
        assert values == [b"1", b"2", b"2"]
        first, second, third = (event for event in seen if isinstance(event, Put | Deleted))
        assert isinstance(third, Deleted)
        assert first.entry.revision < second.entry.revision < third.revision

    async def test_a_watch_sees_a_member_die(self, world: World) -> None:
        lease = await world.grant()
        await world.registry.put(world.keys.worker("w1"), b"info", lease)
        async with aclosing(world.registry.watch(world.keys.workers)) as events:
            await following(events)
            await world.expire(lease)
            event = await following(events)
        assert isinstance(event, Deleted)
        assert event.entry.value == b"info"

    async def test_a_watch_sees_nothing_beside_its_prefix(self, world: World) -> None:
        async with aclosing(world.registry.watch(world.keys.pools)) as events:
            await following(events)
            await world.registry.put(world.keys.type("a"), b"")
            await world.registry.put(world.keys.pool("a"), b"")
            event = await following(events)
        assert isinstance(event, Put)
        assert event.entry.key == world.keys.pool("a")


class LocksConformance:
    async def test_free_jobs_are_all_locked(self, world: World) -> None:
        locks = world.locks(await world.grant(), "w1")
        fences = jobs(300)
        result = await locks.lock(fences)
        assert sorted(result.acquired) == sorted(fences)
        assert result.held == {}
        held = await world.table.held(fences)
        assert held == {job: LockOwner("w1", fence) for job, fence in fences.items()}

    async def test_a_held_job_is_told_apart_from_the_free_ones(self, world: World) -> None:
        fences = jobs(5)
        taken = list(fences)[2]
        await world.locks(await world.grant(), "w1").lock({taken: 7})
        result = await world.locks(await world.grant(), "w2").lock(fences)
        assert result.held == {taken: LockOwner("w1", 7)}
        assert sorted(result.acquired) == sorted(set(fences) - {taken})

    async def test_one_that_is_held_among_many_keeps_back_no_other(self, world: World) -> None:
        fences = jobs(1300)
        taken = list(fences)[700]
        await world.locks(await world.grant(), "w1").lock({taken: 7})
        locks = world.locks(await world.grant(), "w2")
        result = await locks.lock(fences)
        assert result.held == {taken: LockOwner("w1", 7)}
        assert sorted(result.acquired) == sorted(set(fences) - {taken})
        assert len(await world.table.held(fences)) == 1300
        await locks.unlock(fences)
        assert await world.table.held(fences) == {taken: LockOwner("w1", 7)}

    async def test_the_own_lock_counts_as_acquired_with_the_newer_fence(self, world: World) -> None:
        locks = world.locks(await world.grant(), "w1")
        job = uuid4().bytes
        await locks.lock({job: 1})
        result = await locks.lock({job: 2})
        assert result.acquired == [job]
        assert await world.table.held([job]) == {job: LockOwner("w1", 2)}

    async def test_an_unlocked_job_is_free(self, world: World) -> None:
        fences = jobs(200)
        locks = world.locks(await world.grant(), "w1")
        await locks.lock(fences)
        await locks.unlock(fences)
        assert await world.table.held(fences) == {}

    async def test_an_unlock_that_comes_late_spares_the_newer_lock(self, world: World) -> None:
        locks = world.locks(await world.grant(), "w1")
        again, gone = jobs(2)
        await locks.lock({again: 1, gone: 1})
        await locks.lock({again: 2})
        await locks.unlock({again: 1, gone: 1})
        assert await world.table.held([again, gone]) == {again: LockOwner("w1", 2)}

    async def test_unlocking_leaves_the_locks_of_others_alone(self, world: World) -> None:
        fences = jobs(3)
        await world.locks(await world.grant(), "w1").lock(fences)
        await world.locks(await world.grant(), "w2").unlock(fences)
        assert len(await world.table.held(fences)) == 3

    async def test_unlocking_after_losing_the_lease_leaves_the_next_owner_alone(
        self, world: World
    ) -> None:
        fences = jobs(3)
        lease = await world.grant()
        locks = world.locks(lease, "w1")
        await locks.lock(fences)
        await world.expire(lease)
        await world.locks(await world.grant(), "w2").lock(fences)
        await locks.unlock(fences)
        assert {owner.worker_id for owner in (await world.table.held(fences)).values()} == {"w2"}

    async def test_nothing_is_locked_under_a_dead_lease(self, world: World) -> None:
        lease = await world.grant()
        await world.expire(lease)
        fences = jobs(2)
        with pytest.raises(LeaseLost):
            await world.locks(lease, "w1").lock(fences)
        assert await world.table.held(fences) == {}

    async def test_an_expired_lease_frees_its_locks(self, world: World) -> None:
        lease = await world.grant()
        fences = jobs(50)
        await world.locks(lease, "w1").lock(fences)
        await world.expire(lease)
        assert await world.table.held(fences) == {}

    async def test_an_empty_batch_is_fine(self, world: World) -> None:
        locks = world.locks(await world.grant(), "w1")
        assert (await locks.lock({})).acquired == []
        await locks.unlock({})
        assert await world.table.held([]) == {}


class ElectionConformance:
    async def test_one_of_two_candidates_leads(self, world: World) -> None:
        first, second = [
            Election(world.registry, await world.grant(), world.keys.scaler_leader, name)
            for name in ("s1", "s2")
        ]
        await first.start()
        await leading(first)
        await second.start()
        await elected(second, "s1")
        assert not second.is_leader
        await first.stop()
        await second.stop()

    async def test_a_resigned_leader_is_followed_at_once(self, world: World) -> None:
        first, second = [
            Election(world.registry, await world.grant(), world.keys.scaler_leader, name)
            for name in ("s1", "s2")
        ]
        await first.start()
        await leading(first)
        await second.start()
        await first.stop()
        assert not first.is_leader
        await leading(second)
        await second.stop()

    async def test_a_leader_that_lost_its_lease_is_followed(self, world: World) -> None:
        lease = await world.grant()
        first = Election(world.registry, lease, world.keys.scaler_leader, "s1")
        second = Election(world.registry, await world.grant(), world.keys.scaler_leader, "s2")
        await first.start()
        await leading(first)
        await second.start()
        await world.expire(lease)
        await leading(second)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await lease.lost.wait()
        assert not first.is_leader
        await first.stop()
        assert second.is_leader
        await second.stop()


async def leading(election: Election) -> None:
    """Return once the candidate leads."""
    await eventually(lambda: election.is_leader)


async def elected(election: Election, leader: str) -> None:
    """Return once the candidate knows who leads."""
    await eventually(lambda: election.leader == leader)
