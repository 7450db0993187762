"""Lines of puts that wait for room: first come, first served, and nothing is lost with who goes."""

from __future__ import annotations

import asyncio

import pytest

from services.orchestrator.app.room import RoomLines
from services.orchestrator.domain.lent import LentBook, Part
from tests.unit.orchestrator.loan_fakes import grab

LONG, SHORT = 60.0, 0.001


class Line:
    def __init__(self) -> None:
        self.book = LentBook()
        self.lines = RoomLines(self.book.take, self._back)

    def _back(self, part: Part) -> None:
        self.book.settle(part, 0)
        self.lines.serve("t")

    async def waiter(self, jobs: int, seconds: float = LONG) -> asyncio.Task[Part | None]:
        task = asyncio.create_task(self.lines.turn("t", self.lines.join("t", jobs, seconds)))
        await asyncio.sleep(0)
        return task

    def comes(self, credit: int, number: int = 1) -> None:
        self.book.put(grab(credit=credit, number=number))
        self.lines.serve("t")


@pytest.fixture
async def line() -> Line:
    return Line()


async def test_room_goes_to_those_who_came_first(line):
    first, second, third = [await line.waiter(2) for _ in range(3)]
    line.comes(credit=4)
    assert [await first, await second] == [Part(grab(credit=4), 2)] * 2
    assert not third.done()
    assert line.lines.has("t")


async def test_nobody_overtakes_who_needs_more(line):
    large, small = await line.waiter(4), await line.waiter(1)
    line.comes(credit=3)
    await asyncio.sleep(0)
    assert not small.done()
    line.comes(credit=5, number=2)
    assert [part.room for part in (await large, await small) if part] == [4, 1]
    assert not line.lines.has("t")


async def test_if_the_line_stands_still_for_too_long_all_of_it_go(line):
    late: list[str] = []
    line.lines.on_late = late.append
    large, small = await line.waiter(4, SHORT), await line.waiter(1)
    line.comes(credit=3)
    assert [await large, await small] == [None, None]
    assert late == ["t"]
    assert not line.lines.has("t")


async def test_who_has_a_turn_says_how_long_the_line_stood_still_and_the_others_wait_on(line):
    turns: list[float] = []
    line.lines.on_turn = lambda type_, seconds: turns.append(seconds)
    waiting = [await line.waiter(2, LONG) for _ in range(3)]
    line.comes(credit=4)
    line.lines.rearm("t", SHORT)
    assert [part is not None for part in [await one for one in waiting]] == [True, True, False]
    assert turns[0] > 0.0
    assert turns[1] == 0.0


async def test_those_who_wait_are_dismissed(line):
    waiting = [await line.waiter(1) for _ in range(2)]
    line.lines.dismiss("t")
    assert [await one for one in waiting] == [None, None]
    assert not line.lines.has("t")


async def test_who_is_cancelled_leaves_the_line(line):
    gone, second = await line.waiter(4), await line.waiter(1)
    line.comes(credit=1)
    gone.cancel()
    assert await second is not None


async def test_who_is_cancelled_as_its_turn_comes_gives_the_room_back(line):
    gone, second = await line.waiter(2), await line.waiter(2)
    line.comes(credit=2)
    gone.cancel()
    assert await second == Part(grab(credit=2), 2)
    with pytest.raises(asyncio.CancelledError):
        await gone
