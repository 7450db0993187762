"""Batches form by themselves, and nobody waits for one to fill."""

import asyncio

import pytest

from services.enqueue.app.coalescing import Coalescer
from services.mesh.errors import ShardUnavailable
from services.mesh.runtime import Tasks
from services.mesh.testing.waiting import eventually


class Wire:
    """Takes batches, and answers when told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.news = asyncio.Event()

    async def has_sent(self, batch):
        async with asyncio.timeout(10):
            while batch not in self.batches:
                self.news.clear()
                await self.news.wait()

    async def send(self, items):
        self.batches.append(list(items))
        self.news.set()
        await self.gate.wait()
        return [item * 10 for item in items]


def small(_: int) -> int:
    return 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_item_is_sent_at_once():
    wire, tasks = Wire(), Tasks()
    wire.gate.set()
    assert await Coalescer(wire.send, tasks, hangs=60, size=small).submit(7) == 70
    assert wire.batches == [[7]]


async def test_items_that_come_faster_than_two_batches_take_share_one():
    wire, tasks = Wire(), Tasks()
    slow = 0.02

    async def send(items):
        wire.batches.append(list(items))
        await asyncio.sleep(slow)
        return items

    coalescer = Coalescer(send, tasks, hangs=60, size=small)
    for n in range(5):  # one after the other, so that it knows what a batch takes
        await coalescer.submit(n)
    calls = [asyncio.create_task(coalescer.submit(5))]
    await eventually(lambda: wire.batches[-1] == [5])
    calls += [asyncio.create_task(coalescer.submit(n)) for n in (6, 7)]
    await settle()
    assert wire.batches[-1] == [5], "though three more might be under way"
    await asyncio.gather(*calls)
    assert wire.batches[-1] == [6, 7]


async def test_what_arrives_during_a_batch_is_the_next_one():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small, under_way=1)
    calls = [asyncio.create_task(coalescer.submit(n)) for n in range(100)]
    await settle()
    assert [len(batch) for batch in wire.batches] == [1]
    wire.gate.set()
    assert await asyncio.gather(*calls) == [n * 10 for n in range(100)]
    assert [len(batch) for batch in wire.batches] == [1, 99]


async def test_no_batch_is_larger_than_allowed():
    wire, tasks = Wire(), Tasks()
    wire.gate.set()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small, most=30, under_way=1)
    await asyncio.gather(*(coalescer.submit(n) for n in range(100)))
    assert max(len(batch) for batch in wire.batches) == 30


async def test_no_batch_has_more_bytes_than_allowed_but_for_a_single_item():
    wire, tasks = Wire(), Tasks()
    wire.gate.set()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=int, most_bytes=100, under_way=1)
    sizes = [1, 40, 40, 40, 20, 500, 100, 1, 1]
    assert await asyncio.gather(*map(coalescer.submit, sizes)) == [10 * size for size in sizes]
    assert wire.batches == [[1], [40, 40], [40, 20], [500], [100], [1, 1]]
    assert coalescer._bytes == 0


async def test_jobs_with_large_inputs_fit_into_one_message_each_time():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=lambda _: 16_000)
    calls = [asyncio.create_task(coalescer.submit(n)) for n in range(600)]
    await settle()
    wire.gate.set()
    await asyncio.gather(*calls)
    assert max(len(batch) for batch in wire.batches) * 16_000 < 4 * 1024 * 1024


async def test_the_bytes_of_a_caller_that_went_away_count_no_more():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=int, under_way=1)
    calls = [asyncio.create_task(coalescer.submit(n)) for n in (1, 2, 3)]
    await wire.has_sent([1])
    calls[1].cancel()
    await asyncio.wait({calls[1]})
    assert coalescer._bytes == 3
    wire.gate.set()
    await asyncio.gather(calls[0], calls[2])


async def test_the_error_of_a_batch_is_the_error_of_each_of_its_items():
    async def send(items):
        raise ShardUnavailable("s0")

    coalescer = Coalescer(send, Tasks(), size=small)
    results = await asyncio.gather(*(coalescer.submit(n) for n in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ShardUnavailable] * 3


async def test_a_caller_that_goes_away_does_not_hurt_the_others():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small, under_way=1)
    calls = [asyncio.create_task(coalescer.submit(n)) for n in range(3)]
    await settle()
    calls[1].cancel()
    wire.gate.set()
    assert await calls[2] == 20
    with pytest.raises(asyncio.CancelledError):
        await calls[1]


async def test_what_was_not_sent_when_its_caller_went_away_never_is():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small, under_way=1)
    first = asyncio.create_task(coalescer.submit(0))
    dead = [asyncio.create_task(coalescer.submit(n)) for n in range(1, 5000)]
    alive = asyncio.create_task(coalescer.submit(5000))
    await wire.has_sent([0])
    for call in dead:
        call.cancel()
    await asyncio.wait(dead)
    assert len(coalescer._waiting) == 1
    wire.gate.set()
    assert await asyncio.gather(first, alive) == [0, 50_000]
    assert wire.batches == [[0], [5000]]


async def test_few_callers_do_not_wait_for_each_other():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small)
    calls = [asyncio.create_task(coalescer.submit(n)) for n in range(3)]
    await settle()
    assert wire.batches == [[0], [1], [2]]
    wire.gate.set()
    await asyncio.gather(*calls)


async def test_many_callers_travel_together_again_and_again():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small)
    wire.gate.set()

    async def caller(number: int) -> None:
        for _ in range(20):
            await coalescer.submit(number)

    await asyncio.gather(*(caller(number) for number in range(64)))
    later = [len(batch) for batch in wire.batches[len(wire.batches) // 2 :]]
    assert sum(later) / len(later) > 48


async def test_a_batch_that_takes_long_holds_up_nobody_for_ever():
    wire, tasks = Wire(), Tasks()
    coalescer = Coalescer(wire.send, tasks, hangs=60, size=small)
    wire.gate.set()
    await asyncio.gather(*(coalescer.submit(n) for n in range(200)))
    wire.gate.clear()
    stuck = asyncio.create_task(coalescer.submit(1))
    await wire.has_sent([1])
    behind = asyncio.create_task(coalescer.submit(2))
    await wire.has_sent([2])
    wire.gate.set()
    assert await asyncio.gather(stuck, behind) == [10, 20]
