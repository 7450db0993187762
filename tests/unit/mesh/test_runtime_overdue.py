"""One timer for many: each is told of once it is late, and none that ended before."""

from __future__ import annotations

import asyncio

from services.mesh.runtime import Overdue, Tally


async def test_what_takes_longer_than_it_may_is_told_once_and_in_order() -> None:
    late: list[str] = []
    told = Tally()

    def tell(name: str) -> None:
        late.append(name)
        told.add()

    overdue: Overdue[str] = Overdue(0.01, tell)
    overdue.begin("first")
    await asyncio.sleep(0.002)
    overdue.begin("second")
    overdue.begin("quick")
    overdue.end("quick")
    await told.reached(2)
    overdue.begin("third")  # the timer had come to its end
    await told.reached(3)
    assert late == ["first", "second", "third"]


async def test_whatever_begins_there_is_one_timer() -> None:
    overdue: Overdue[int] = Overdue(60.0, lambda _: None)
    timers = set()
    for number in range(100):
        overdue.begin(number)
        overdue.end(number)
        timers.add(overdue._timer)
    assert len(timers) == 1


async def test_what_is_late_may_be_ended_all_the_same() -> None:
    told = Tally()
    overdue: Overdue[str] = Overdue(0.001, lambda _: told.add())
    overdue.begin("one")
    await told.reached(1)
    overdue.end("one")
    overdue.end("one")
    assert told.count == 1
