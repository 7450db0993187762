"""A stream of items without end: in order, bounded, and politely ended."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.enqueue.app.gate import Gate
from services.enqueue.app.stream import (
    BATCH,
    BATCH_BYTES,
    HELD_ITEMS,
    UNDER_WAY,
    Intake,
    Parcel,
    Room,
)
from services.enqueue.domain.quotas import Quotas, Rate
from services.enqueue.servicer.streams import paced
from services.mesh.clock import ManualClock
from services.mesh.errors import InvalidField
from services.mesh.rpc.work import WorkLimit
from services.mesh.runtime import DrainSignal
from services.mesh.telemetry.metrics import Metrics
from services.mesh.testing.waiting import eventually


class Shards:
    """Stores what it is given, when it is allowed to."""

    def __init__(self, *, open_: bool = True) -> None:
        self.stored: list[int] = []
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        if open_:
            self.gate.set()

    async def store(self, first: int, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        await self.gate.wait()
        self.stored += items
        return items


async def parcels_of(sizes, read=None, end=None):
    number = 0
    for size in sizes:
        if read is not None:
            read.append(number)
        yield Parcel(list(range(number, number + size)), size)
        number += size
    if isinstance(end, Exception):
        raise end
    if end is not None:
        await end.wait()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, BATCH), max_size=30))
def test_every_item_is_acknowledged_once_and_in_order(sizes):
    async def run():
        shards, room = Shards(), Room()
        intake = Intake(shards.store, room, DrainSignal())
        acked = []
        async for first, results in intake.acks(parcels_of(sizes)):
            assert first == len(acked)
            acked += results
        assert acked == list(range(sum(sizes)))
        assert max(shards.sizes, default=0) <= BATCH
        assert room._used == 0

    asyncio.run(run())


async def test_small_messages_that_come_meanwhile_form_one_batch():
    shards, read = Shards(open_=False), []
    intake = Intake(shards.store, Room(), DrainSignal())
    taking = asyncio.create_task(_all(intake, parcels_of([1] * 100, read)))
    await eventually(lambda: len(read) == 100)
    shards.gate.set()
    assert await taking == list(range(100))
    assert len(shards.sizes) < 20


async def test_no_batch_has_more_bytes_than_one_call_may_carry_but_for_a_single_message():
    shards, read = Shards(open_=False), asyncio.Event()
    half, huge = BATCH_BYTES // 2, BATCH_BYTES + 1

    async def parcels():
        for number, size in enumerate([1] * UNDER_WAY + [half, half, 1, huge]):
            yield Parcel([number], size)
        read.set()

    taking = asyncio.create_task(_all(Intake(shards.store, Room(), DrainSignal()), parcels()))
    async with asyncio.timeout(10):
        await read.wait()
    shards.gate.set()
    assert await taking == list(range(UNDER_WAY + 4))
    assert shards.sizes == [1] * UNDER_WAY + [2, 1, 1]


async def test_nothing_more_is_read_while_the_shards_are_behind():
    shards, read = Shards(open_=False), []
    intake = Intake(shards.store, Room(), DrainSignal())
    taking = asyncio.create_task(_all(intake, parcels_of([100] * 200, read)))
    await settled()
    await settled()
    assert len(read) * 100 <= HELD_ITEMS + 100
    shards.gate.set()
    assert len(await taking) == 20_000


async def test_nothing_more_is_read_while_acknowledgements_are_not():
    shards, read = Shards(), []
    intake = Intake(shards.store, Room(), DrainSignal())
    async with aclosing(intake.acks(parcels_of([500] * 100, read))) as acks:
        await anext(acks)
        for _ in range(20):
            await settled()
        assert len(read) * 500 <= HELD_ITEMS + 500


async def test_all_streams_together_hold_no_more_than_the_room():
    shards, room, read = Shards(open_=False), Room(250), []
    streams = [
        asyncio.create_task(
            _all(Intake(shards.store, room, DrainSignal()), parcels_of([100] * 5, read))
        )
        for _ in range(3)
    ]
    await settled()
    await settled()
    assert room._used == 300
    shards.gate.set()
    assert [len(items) for items in await asyncio.gather(*streams)] == [500] * 3
    assert room._used == 0


async def test_streams_that_wait_for_their_quota_leave_the_room_to_those_of_others():
    shards, room, drain, clock = Shards(), Room(1000, 100), DrainSignal(), ManualClock()
    quotas = Quotas(None, {"slow": Rate(1.0, 1.0)})
    gate = Gate(quotas, WorkLimit(1000, 1000), clock, Metrics())

    def stream(namespace, read):
        parcels = paced(gate, namespace, parcels_of([100] * 3, read))
        return asyncio.create_task(_all(Intake(shards.store, room, drain), parcels))

    reads = [[], [], []]
    throttled = [stream("slow", read) for read in reads]
    await settled()
    async with asyncio.timeout(10):
        assert await stream("other", None) == list(range(300))
    assert all(len(read) <= 2 for read in reads), "each holds one message"
    assert len(shards.stored) <= 400
    drain.set()
    async with asyncio.timeout(10):
        acked = await asyncio.gather(*throttled)
    assert sum(map(len, acked)) == len(shards.stored) - 300, "what waited was not read"
    assert (room._used, room._items) == (0, 0)


async def test_what_was_read_is_acknowledged_before_the_error_of_a_later_message():
    intake = Intake(Shards().store, Room(), DrainSignal())
    acks = intake.acks(parcels_of([3, 4], end=InvalidField("items", "no")))
    acked = []
    while len(acked) < 7:
        acked += (await anext(acks))[1]
    with pytest.raises(InvalidField):
        await anext(acks)
    assert acked == list(range(7))


async def test_a_drain_acknowledges_what_was_read_and_ends():
    drain = DrainSignal()
    shards = Shards(open_=False)
    taking = asyncio.create_task(
        _all(Intake(shards.store, Room(), drain), parcels_of([5, 5], end=asyncio.Event()))
    )
    await settled()
    drain.set()
    shards.gate.set()
    async with asyncio.timeout(5):
        assert await taking == list(range(10))


async def test_a_stream_that_is_left_leaves_no_task_behind():
    before = asyncio.all_tasks()
    room = Room()
    intake = Intake(Shards(open_=False).store, room, DrainSignal())
    taking = asyncio.create_task(_all(intake, parcels_of([5] * 3, end=asyncio.Event())))
    await settled()
    taking.cancel()
    await asyncio.wait({taking})
    assert asyncio.all_tasks() == before
    assert room._used == 0


async def test_a_stream_that_is_cancelled_again_while_it_ends_gives_its_room_back():
    room, gate = Room(), asyncio.Event()

    async def store(first, items):
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    intake = Intake(store, room, DrainSignal())
    taking = asyncio.create_task(_all(intake, parcels_of([5] * 3, end=asyncio.Event())))
    await eventually(lambda: room._items == 15)
    cancels = 0
    while not taking.done():  # the batches go on ending
        taking.cancel()
        cancels += 1
        await settled()
    assert cancels > 1
    assert (room._used, room._items) == (0, 0)
    gate.set()
    await settled()
    assert (room._used, room._items) == (0, 0)


async def test_a_batch_that_lands_while_the_stream_ends_begins_no_other():
    begun, lands = [], asyncio.Event()
    closing = asyncio.Event()

    async def store(first, items):
        begun.append(first)
        if first == 1:
            await lands.wait()
            closing.set()  # whoever waits for it goes on before it is told that this has landed
        elif first > 1:
            await asyncio.Event().wait()
        return items

    async def parcels():
        for number in range(UNDER_WAY + 4):
            yield Parcel([number], 1, alone=True)
        await asyncio.Event().wait()

    acks = Intake(store, Room(), DrainSignal()).acks(parcels())
    await anext(acks)
    await eventually(lambda: len(begun) == 1 + UNDER_WAY)
    lands.set()
    await closing.wait()
    await acks.aclose()
    await settled()
    assert begun == list(range(1 + UNDER_WAY))


async def _all(intake, parcels):
    acked = []
    async with aclosing(intake.acks(parcels)) as acks:
        async for _, results in acks:
            acked += results
    return acked
