"""How many go at once, whose go next, and that nobody keeps the others out."""

import asyncio

import pytest

from services.enqueue.app.turnstile import FEW, Turnstile


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Yard:
    """Calls that pass the turnstile, and stay inside until they are told to go."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self.inside: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, name: str, lane: str, jobs: int) -> None:
        self._gates[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._pass(name, lane, jobs))

    async def _pass(self, name: str, lane: str, jobs: int) -> None:
        async with self._turnstile.passing(lane, jobs):
            self.inside.append(name)
            await self._gates[name].wait()

    async def finish(self, name: str) -> None:
        self._gates[name].set()
        await asyncio.wait_for(self._tasks[name], 10)
        await settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await settle()


async def test_what_fits_passes_at_once_and_the_rest_in_order():
    turnstile = Turnstile(most_beside=0, most=10)
    yard = Yard(turnstile)
    for name, jobs in {"a": 6, "b": 4, "c": 5, "d": 1}.items():
        yard.send(name, "blue", jobs)
    await settle()
    assert yard.inside == ["a", "b"]
    assert turnstile.waiting == 6
    await yard.finish("b")
    assert yard.inside == ["a", "b"]  # d would fit, and does not overtake c
    await yard.finish("a")
    assert yard.inside == ["a", "b", "c", "d"]
    assert turnstile.waiting == 0


async def test_a_call_that_is_larger_than_allowed_passes_alone():
    yard = Yard(Turnstile(most_beside=0, most=10))
    yard.send("huge", "blue", 50)
    yard.send("next", "blue", 1)
    await settle()
    assert yard.inside == ["huge"]
    await yard.finish("huge")
    assert yard.inside == ["huge", "next"]


async def test_lanes_take_turns_however_long_one_of_them_is():
    yard = Yard(Turnstile(most_beside=0, most=1))
    yard.send("first", "loud", 1)
    for number in range(5):
        yard.send(f"loud {number}", "loud", 1)
    await settle()
    yard.send("quiet", "quiet", 1)
    await settle()
    await yard.finish("first")
    await yard.finish("loud 0")
    assert yard.inside == ["first", "loud 0", "quiet"]


async def test_who_goes_away_while_waiting_takes_no_room():
    yard = Yard(Turnstile(most_beside=0, most=1))
    for name in "abc":
        yard.send(name, "blue", 1)
    await settle()
    await yard.cancel("b")
    await yard.finish("a")
    assert yard.inside == ["a", "c"]


async def test_who_goes_away_lets_those_behind_it_pass_who_fit():
    turnstile = Turnstile(most_beside=0, most=10, late=3600)
    yard = Yard(turnstile)
    for name, lane, jobs in (("a", "blue", 6), ("large", "blue", 9), ("b", "blue", 1)):
        yard.send(name, lane, jobs)
    yard.send("c", "red", 1)
    await settle()
    assert yard.inside == ["a"]
    await yard.cancel("large")
    assert yard.inside == ["a", "b", "c"]
    yard.send("d", "blue", 2)  # nobody is in the line any more
    await settle()
    assert yard.inside == ["a", "b", "c", "d"]
    for name in "abcd":
        await yard.finish(name)
    assert (turnstile._inside, turnstile._lanes) == (0, {})


async def test_a_lane_whose_last_one_went_away_keeps_no_newcomer_out():
    turnstile = Turnstile(most_beside=0, most=10, late=3600)
    yard = Yard(turnstile)
    yard.send("a", "blue", 6)
    yard.send("large", "red", 9)
    await settle()
    await yard.cancel("large")
    yard.send("b", "blue", 1)
    await settle()
    assert yard.inside == ["a", "b"]


async def test_who_goes_away_at_its_very_turn_gives_its_room_on():
    turnstile = Turnstile(most_beside=0, most=1)
    yard = Yard(turnstile)
    async with turnstile.passing("blue", 1):
        yard.send("b", "blue", 1)
        yard.send("c", "blue", 1)
        await settle()
    # Now it is the turn of b, which has not noticed yet.
    await yard.cancel("b")
    assert yard.inside == ["c"]


async def test_what_takes_long_keeps_nobody_out():
    turnstile = Turnstile(most_beside=0, most=1, late=0.001)
    async with turnstile.passing("blue", 1), asyncio.timeout(10), turnstile.passing("blue", 1):
        pass


async def test_the_room_of_what_took_long_is_given_on_once(monkeypatch):
    turnstile = Turnstile(most_beside=0, most=1, late=0.001)
    async with turnstile.passing("blue", 1), asyncio.timeout(10), turnstile.passing("blue", 1):
        pass
    monkeypatch.setattr(turnstile._late, "_seconds", 3600)
    yard = Yard(turnstile)
    yard.send("a", "blue", 1)
    yard.send("b", "blue", 1)
    await settle()
    assert yard.inside == ["a"]
    await yard.finish("a")
    assert yard.inside == ["a", "b"]


async def test_a_few_jobs_of_another_lane_need_not_wait_for_a_large_batch():
    yard = Yard(Turnstile(most=FEW + 1, most_beside=FEW))
    yard.send("large", "blue", FEW + 1)
    yard.send("next", "blue", FEW + 1)
    await settle()
    yard.send("few", "red", FEW - 1)
    yard.send("more", "green", 2)
    yard.send("one", "green", 1)
    await settle()
    assert yard.inside == ["large", "few"], (
        "there is room for no more, nor past who waits in a lane"
    )
    await yard.finish("few")
    assert yard.inside == ["large", "few"], "their room is not that of those who wait in turn"
    await yard.finish("large")
    assert yard.inside == ["large", "few", "next"]


async def test_few_jobs_do_not_pass_those_of_their_own_lane():
    yard = Yard(Turnstile(most=FEW + 1, most_beside=FEW))
    yard.send("large", "blue", FEW + 1)
    yard.send("next", "blue", FEW + 1)
    yard.send("one", "blue", 1)
    await settle()
    assert yard.inside == ["large"]
