"""Who gets which connection, who waits, and when there are more or fewer of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.store import pool as pools
from services.mesh.store.pool import Pool
from services.mesh.store.session import Session
from services.mesh.store.settings import StoreSettings


class FakeSession:
    """A connection without a server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.expires = float("inf")
        self.at_rest = True
        self.answer_pending = False
        self.dead = False
        self.closed = False
        self.cancelled = asyncio.Event()
        self.connection = self

    def hung_up(self) -> bool:
        return self.dead

    def close(self) -> None:
        self.closed = True

    async def cancel_safe(self, timeout: float) -> None:
        await self.cancelled.wait()


class Shard:
    """Counts connections, and may refuse them or make them wait."""

    def __init__(self) -> None:
        self.made: list[FakeSession] = []
        self.tries = 0
        self.away = False
        self.door = asyncio.Event()
        self.door.set()
        self.kept_waiting = 1
        """The first try that waits until the door is open."""

    async def connect(self) -> Session:
        self.tries += 1
        away = self.away
        if self.tries >= self.kept_waiting:
            await self.door.wait()
        if away:
            raise ShardUnavailable("s0")
        self.made.append(FakeSession(len(self.made)))
        return cast(Session, self.made[-1])

    @property
    def open(self) -> list[int]:
        return [session.number for session in self.made if not session.closed]


@pytest.fixture
async def shard(monkeypatch) -> Shard:
    monkeypatch.setattr(pools, "_AGAIN_SECONDS", 0)
    return Shard()


@pytest.fixture
async def pool_of(shard):
    made: list[Pool] = []

    def make(**settings: Any) -> Pool:
        values = {"max_connections": 3, "acquire_timeout": 30.0} | settings
        made.append(Pool("s0", shard.connect, StoreSettings(**values)))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


PoolOf = Callable[..., Pool]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def number(session: Session) -> int:
    return cast(FakeSession, session).number


async def test_the_least_number_is_connected_before_anybody_asks(shard: Shard, pool_of: PoolOf):
    pool_of(min_connections=2)
    await settle()
    assert shard.open == [0, 1]


async def test_the_one_used_last_is_taken_first(shard: Shard, pool_of: PoolOf):
    pool = pool_of(min_connections=3)
    await settle()
    first, second = await pool.take(), await pool.take()
    pool.give_back(second)
    pool.give_back(first)
    assert await pool.take() is first


async def test_it_grows_for_those_who_wait_and_no_further(shard: Shard, pool_of: PoolOf):
    pool = pool_of()
    taken = [await pool.take() for _ in range(3)]
    fourth = asyncio.create_task(pool.take(), name="fourth")
    await settle()
    assert (shard.tries, fourth.done()) == (3, False)
    pool.give_back(taken[1])
    assert await fourth is taken[1]


async def test_who_came_first_is_served_first(pool_of: PoolOf):
    pool = pool_of(max_connections=1)
    session = await pool.take()
    calls = [asyncio.create_task(pool.take(), name=f"call {i}") for i in range(3)]
    for call in calls:
        await settle()
        pool.give_back(session)
        assert await call is session


async def test_nobody_waits_longer_than_the_settings_say(pool_of: PoolOf):
    pool = pool_of(max_connections=1, acquire_timeout=0.01)
    session = await pool.take()
    with pytest.raises(ShardUnavailable):
        await pool.take()
    pool.give_back(session)
    assert await pool.take() is session


async def test_no_more_wait_than_the_settings_say(pool_of: PoolOf):
    pool = pool_of(max_connections=1, max_waiting=1)
    session = await pool.take()
    waiting = asyncio.create_task(pool.take(), name="waiting")
    await settle()
    with pytest.raises(ShardUnavailable):
        await pool.take()
    pool.give_back(session)
    assert await waiting is session


async def test_a_connection_given_to_somebody_who_just_left_is_not_lost(pool_of: PoolOf):
    pool = pool_of(max_connections=1)
    session = await pool.take()
    leaving = asyncio.create_task(pool.take(), name="leaving")
    await settle()
    pool.give_back(session)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await pool.take() is session


async def test_the_dead_are_replaced_before_anybody_uses_them(shard: Shard, pool_of: PoolOf):
    pool = pool_of(min_connections=2)
    await settle()
    for session in shard.made:
        session.dead = True
    assert number(await pool.take()) == 2
    await settle()
    assert shard.open == [2, 3]


async def test_waits_end_when_the_shard_refuses(shard: Shard, pool_of: PoolOf):
    shard.away = True
    pool = pool_of()
    with pytest.raises(ShardUnavailable):
        await pool.take()
    shard.away = False
    assert number(await pool.take()) == 0


async def test_waits_go_on_while_a_connection_is_left(shard: Shard, pool_of: PoolOf):
    pool = pool_of()
    session = await pool.take()
    shard.away = True
    waiting = asyncio.create_task(pool.take(), name="waiting")
    await settle()
    assert shard.tries == 3
    pool.give_back(session)
    assert await waiting is session


async def test_who_came_after_the_last_try_began_is_worth_another(shard: Shard, pool_of: PoolOf):
    shard.away = True
    shard.door.clear()
    shard.kept_waiting = 2
    pool = pool_of(min_connections=0)
    early = asyncio.create_task(pool.take(), name="early")
    await settle()
    assert shard.tries == 2  # the last one for who is here now
    shard.away = False
    late = asyncio.create_task(pool.take(), name="late")
    await settle()
    shard.door.set()
    ends = await asyncio.gather(early, late, return_exceptions=True)
    assert [type(end) for end in ends] == [ShardUnavailable, FakeSession]


async def test_waits_end_when_they_are_told_to(shard: Shard, pool_of: PoolOf):
    shard.door.clear()
    pool = pool_of()
    calls = [asyncio.create_task(pool.take(), name=f"call {i}") for i in range(3)]
    await settle()
    pool.end_waits()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [ShardUnavailable] * 3


async def test_one_left_in_a_transaction_is_closed(shard: Shard, pool_of: PoolOf):
    pool = pool_of(max_connections=1)
    session = cast(FakeSession, await pool.take())
    session.at_rest = False
    pool.give_back(cast(Session, session))
    assert session.closed
    assert number(await pool.take()) == 1


async def test_one_with_an_answer_to_come_keeps_its_place_until_it_was_cancelled(
    shard: Shard, pool_of: PoolOf
):
    pool = pool_of(max_connections=1)
    session = cast(FakeSession, await pool.take())
    session.at_rest, session.answer_pending = False, True
    pool.give_back(cast(Session, session))
    waiting = asyncio.create_task(pool.take(), name="waiting")
    await settle()
    assert (session.closed, shard.tries) == (False, 1)
    session.cancelled.set()
    assert number(await waiting) == 1
    assert session.closed


async def test_one_that_is_old_is_replaced_when_it_comes_back(shard: Shard, pool_of: PoolOf):
    pool = pool_of()
    session = cast(FakeSession, await pool.take())
    assert session.expires < float("inf")
    session.expires = 0.0
    pool.give_back(cast(Session, session))
    await settle()
    assert shard.open == [1]


async def test_what_nobody_needs_is_closed_down_to_the_least_number(
    shard: Shard, pool_of: PoolOf, monkeypatch
):
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.02)
    pool = pool_of()
    taken = [await pool.take() for _ in range(3)]
    for session in taken:
        pool.give_back(session)
    for _ in range(8):
        busy = await pool.take()
        await asyncio.sleep(0.01)
        pool.give_back(busy)
    # The one in use was the last one given back; it stays.
    assert shard.open == [2]
    await asyncio.sleep(0.05)
    assert await pool.take() is taken[2]


async def test_closed_it_serves_nobody_and_keeps_nothing(shard: Shard, pool_of: PoolOf):
    pool = pool_of(min_connections=2, max_connections=2)
    used, other = await pool.take(), await pool.take()
    pool.give_back(other)
    waiting = [asyncio.create_task(pool.take(), name=f"call {i}") for i in range(2)]
    await settle()
    await pool.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert ends[0] is other
    assert isinstance(ends[1], ShardUnavailable)
    for session in (used, other):
        pool.give_back(session)
    assert shard.open == []
    with pytest.raises(ShardUnavailable):
        await pool.take()


async def test_closed_it_waits_for_no_cancellation(shard: Shard, pool_of: PoolOf):
    pool = pool_of()
    session = await pool.take()
    shard.made[0].at_rest, shard.made[0].answer_pending = False, True
    pool.give_back(session)  # its cancelling has not even begun
    await pool.close()
    assert shard.open == []
