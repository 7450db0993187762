"""What every adapter of the places of limits must do.

Subclass the suite in a test module and give it a `world` fixture.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from services.mesh.lease import Keys, Lease, LeaseLost, Limit, Places, PlaceWish, Registry


class PlacesWorld(Protocol):
    """One store, and places on it."""

    keys: Keys
    registry: Registry

    async def grant(self) -> Lease: ...

    async def expire(self, lease: Lease) -> None: ...

    def places(self, lease: Lease) -> Places: ...


def wishes(prefix: str, count: int, *limits: Limit) -> list[PlaceWish]:
    return [PlaceWish(f"{prefix}-{number}", limits) for number in range(count)]


async def held(world: PlacesWorld, name: str) -> int:
    return len(await world.registry.entries(f"{world.keys.limits}{name}/"))


class PlacesConformance:
    async def test_a_limit_has_as_many_places_as_it_says(self, world: PlacesWorld) -> None:
        places = world.places(await world.grant())
        result = await places.take(wishes("a", 5, Limit("t/all", 3)))
        assert (len(result.taken), set(result.full.values())) == (3, {"t/all"})
        assert await held(world, "t/all") == 3
        assert not (await places.take(wishes("b", 1, Limit("t/all", 3)))).taken

    async def test_a_place_given_back_can_be_taken(self, world: PlacesWorld) -> None:
        places = world.places(await world.grant())
        (mine,) = (await places.take(wishes("a", 1, Limit("t/all", 1)))).taken.values()
        await places.give_back(mine)
        await places.give_back(mine)
        assert (await places.take(wishes("b", 1, Limit("t/all", 1)))).taken
        # That of another owner is left alone.
        await places.give_back(mine)
        assert await held(world, "t/all") == 1

    async def test_all_limits_of_an_attempt_or_none(self, world: PlacesWorld) -> None:
        places = world.places(await world.grant())
        key = Limit("t/0f", 1)
        await places.take(wishes("a", 1, key))
        result = await places.take(wishes("b", 1, Limit("t/all", 9), key))
        assert result.full == {"b-0": "t/0f"}
        assert await held(world, "t/all") == 0

    async def test_places_end_with_the_lease(self, world: PlacesWorld) -> None:
        lease = await world.grant()
        await world.places(lease).take(wishes("a", 2, Limit("t/all", 2)))
        await world.expire(lease)
        other = world.places(await world.grant())
        assert len((await other.take(wishes("b", 2, Limit("t/all", 2)))).taken) == 2

    async def test_what_an_owner_has_already_is_not_taken_twice(self, world: PlacesWorld) -> None:
        places = world.places(await world.grant())
        first = await places.take(wishes("a", 1, Limit("t/all", 3)))
        assert (await places.take(wishes("a", 1, Limit("t/all", 3)))).taken == first.taken
        assert await held(world, "t/all") == 1

    async def test_holders_above_a_lowered_limit_count(self, world: PlacesWorld) -> None:
        places = world.places(await world.grant())
        taken = (await places.take(wishes("a", 4, Limit("t/all", 4)))).taken
        for number, (mine,) in enumerate(taken.values(), 1):
            assert not (await places.take(wishes(f"b{number}", 1, Limit("t/all", 1)))).taken
            await places.give_back([mine])
        assert (await places.take(wishes("c", 1, Limit("t/all", 1)))).taken

    async def test_racing_workers_never_take_more_than_there_are(self, world: PlacesWorld) -> None:
        workers = [world.places(await world.grant()) for _ in range(4)]
        limit = Limit("t/all", 6)
        results = await asyncio.gather(
            *(places.take(wishes(f"w{n}", 5, limit)) for n, places in enumerate(workers))
        )
        taken = [place.key for r in results for mine in r.taken.values() for place in mine]
        assert len(taken) == len(set(taken)) == await held(world, "t/all")
        assert 0 < len(taken) <= 6

    async def test_racing_under_a_lowered_limit_never_takes_more(self, world: PlacesWorld) -> None:
        old = world.places(await world.grant())
        before = (await old.take(wishes("a", 5, Limit("t/all", 5)))).taken
        workers = [world.places(await world.grant()) for _ in range(4)]
        kept = [mine for mine in before.values() if not mine[0].key.endswith("5")]
        for mine in kept:
            await old.give_back(mine)
        # One is held, above the new bound: of three there is room for two more.
        await asyncio.gather(
            *(p.take(wishes(f"w{n}", 2, Limit("t/all", 3))) for n, p in enumerate(workers))
        )
        assert 1 < await held(world, "t/all") <= 3

    async def test_nothing_is_taken_without_a_lease(self, world: PlacesWorld) -> None:
        lease = await world.grant()
        places = world.places(lease)
        await lease.close()
        with pytest.raises(LeaseLost):
            await places.take(wishes("a", 1, Limit("t/all", 1)))
