"""Lines of puts that wait for room: first come, first served, and nothing is lost with who goes."""

from __future__ import annotations

import asyncio

import pytest

from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.app.room import LONGEST, RoomLines
from services.orchestrator.domain.lent import LentBook, Part
from services.orchestrator.domain.shortage import LONG as LONG_SHORTAGE
from services.orchestrator.domain.shortage import PAUSE
from tests.unit.orchestrator.jumping_time import LoopClock
from tests.unit.orchestrator.loan_fakes import grab

pytestmark = pytest.mark.jumping_time

LONG, SHORT = 60.0, 0.001
MOMENT = 0.03


class Line:
    def __init__(self) -> None:
        self.book = LentBook()
        self.lines = RoomLines(self.book.take, self._back, LoopClock(), Metrics("test"))

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
    large, small = await line.waiter(4, SHORT), await line.waiter(1)
    line.comes(credit=3)
    assert [await large, await small] == [None, None]
    assert not line.lines.has("t")
    assert line.lines.patience("t", 1, has_right=True) == 0.0


async def test_as_long_as_the_line_moves_who_waits_is_patient():
    rooms: list[Part] = []
    lines = RoomLines(
        lambda *_: rooms.pop() if rooms else None, rooms.append, LoopClock(), Metrics("test")
    )
    waiters = [lines.join("t", 1, 2 * MOMENT) for _ in range(3)]
    for waiter in waiters:
        await asyncio.sleep(MOMENT)
        rooms.append(Part(grab(), 1))
        lines.serve("t")
        assert await lines.turn("t", waiter) is not None
    assert lines.patience("t", 1, has_right=True) > 0.0


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


async def test_nobody_waits_for_longer_than_the_bound_however_the_line_moves():
    rooms: list[Part] = []
    lines = RoomLines(
        lambda *_: rooms.pop() if rooms else None, rooms.append, LoopClock(), Metrics("test")
    )
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    waiters = [lines.join("t", 1, 2 * MOMENT) for _ in range(100)]
    turns = [asyncio.create_task(lines.turn("t", waiter)) for waiter in waiters]
    while lines.has("t"):
        await asyncio.sleep(MOMENT)
        rooms.append(Part(grab(), 1))
        lines.serve("t")
    assert loop.time() - began < LONGEST + 5 * MOMENT
    came = [await turn is not None for turn in turns]
    assert came == sorted(came, reverse=True)
    assert any(came)


async def test_where_room_turns_out_to_take_long_those_behind_go_and_are_not_blamed(line):
    first, second = await line.waiter(2), await line.waiter(2)
    await asyncio.sleep(2.1 * LONG_SHORTAGE)
    line.comes(credit=2)
    assert [part is not None for part in (await first, await second)] == [True, False]
    await asyncio.sleep(1.1 * PAUSE)
    assert line.lines.patience("t", 1, has_right=True) > 0
