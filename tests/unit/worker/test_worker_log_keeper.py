"""The logs of running attempts are kept, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from services.mesh.jobs.logs import LogLine
from services.mesh.testing.waiting import eventually
from services.worker.app.log_keeper import LogKeeper
from services.worker.domain.attempt import Attempt
from services.worker.domain.logbook import LogBook

SOON = 0.01


def attempt() -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 1, "t", "default", 1)


def book(*texts: str) -> LogBook:
    log = LogBook(1024 * 1024)
    for text in texts:
        log.add(text, 0)
    return log


class Store:
    """Remembers what was written; `open` lets it go on."""

    def __init__(self) -> None:
        self.writes: list[tuple[Attempt, list[str]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.most = self._now = 0

    async def keep(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        self.writes.append((attempt, [line.text for line in lines]))
        self._now += 1
        self.most = max(self.most, self._now)
        await self.open.wait()
        self._now -= 1


async def test_lines_that_come_meanwhile_are_one_write_and_later_ones_another() -> None:
    store, one, log = Store(), attempt(), book("first")
    keeper = LogKeeper(store.keep, SOON)
    keeper.spoke(one, log)
    log.add("second", 0)
    keeper.spoke(one, log)
    await eventually(lambda: store.writes == [(one, ["first", "second"])])
    log.add("third", 0)
    keeper.spoke(one, log)
    await eventually(lambda: store.writes[1:] == [(one, ["first", "second", "third"])])
    assert keeper.ended(one)
    assert not keeper.ended(one)


async def test_an_attempt_that_ends_before_costs_nothing() -> None:
    store, short, long = Store(), attempt(), attempt()
    keeper = LogKeeper(store.keep, SOON)
    keeper.spoke(short, book("over soon"))
    assert not keeper.ended(short)
    keeper.spoke(long, book("still here"))
    await eventually(lambda: store.writes == [(long, ["still here"])])


async def test_a_long_log_is_written_the_less_often() -> None:
    store, long, log, short = Store(), attempt(), book("x" * 8000), attempt()
    for _ in range(100):
        log.add("x" * 8000, 0)
    keeper = LogKeeper(store.keep, SOON)
    keeper.spoke(long, log)
    await eventually(lambda: len(store.writes) == 1)
    log.add("more", 0)
    keeper.spoke(long, log)
    keeper.spoke(short, book("few"))
    await eventually(lambda: len(store.writes) == 2)
    assert store.writes[1][0] is short
    keeper.close()


async def test_one_write_at_a_time_is_under_way() -> None:
    store = Store()
    store.open.clear()
    keeper = LogKeeper(store.keep, SOON)
    several = [attempt() for _ in range(3)]
    for one in several:
        keeper.spoke(one, book("a line"))
    await eventually(lambda: len(store.writes) == 1)
    store.open.set()
    await eventually(lambda: len(store.writes) == 3)
    assert store.most == 1


async def test_it_can_be_turned_off() -> None:
    store, one = Store(), attempt()
    keeper = LogKeeper(store.keep, 0.0)
    keeper.spoke(one, book("a line"))
    await asyncio.sleep(0)
    assert not keeper.ended(one)
    assert store.writes == []
