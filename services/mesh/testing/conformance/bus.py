"""What every adapter of the bus must do.

Subclass the suite in a test module and give it the fixtures `bus` and `peer` (two ends of one
broker) and `subjects`.
"""

from __future__ import annotations

import asyncio

import pytest

from services.mesh.bus import SCHEDULERS, Bus, Message, Subjects
from services.mesh.testing.waiting import PATIENCE_SECONDS, eventually


class Collected:
    """A callback that keeps what it was given."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()

    def __call__(self, message: Message) -> None:
        self._arrived.put_nowait(message)

    async def next(self) -> Message:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._arrived.get()

    @property
    def count(self) -> int:
        return self._arrived.qsize()


class BusConformance:
    async def test_a_message_reaches_every_subscriber(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        first, second = Collected(), Collected()
        await bus.subscribe(subjects.all_due, first)
        await peer.subscribe(subjects.due("a"), second)
        await peer.publish(subjects.due("a"), b"now")
        for collected in (first, second):
            message = await collected.next()
            assert (message.subject, message.payload) == (subjects.due("a"), b"now")
            assert message.reply == ""

    async def test_a_group_shares_its_messages(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        first, second = Collected(), Collected()
        await bus.subscribe(subjects.all_grabs, first, queue=SCHEDULERS)
        await peer.subscribe(subjects.all_grabs, second, queue=SCHEDULERS)
        for number in range(50):
            await peer.publish(subjects.grab("a"), str(number).encode())
        await eventually(lambda: first.count + second.count == 50)

    async def test_a_type_with_dots_stays_in_one_piece(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        grabs = Collected()
        await bus.subscribe(subjects.all_grabs, grabs)
        await peer.publish(subjects.grab("video.render.4k"), b"")
        assert subjects.tail((await grabs.next()).subject) == "video.render.4k"

    async def test_headers_travel_with_the_message(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        due = Collected()
        await bus.subscribe(subjects.all_due, due)
        await peer.publish(subjects.due("a"), b"x", headers={"traceparent": "00-ab-cd-01"})
        message = await due.next()
        assert message.headers["traceparent"] == "00-ab-cd-01"
        assert not message.no_responders

    async def test_messages_of_one_sender_arrive_in_order(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        hints = Collected()
        await bus.subscribe(subjects.all_hints, hints)
        for number in range(500):
            await peer.publish(subjects.hint("s0"), str(number).encode())
        assert [int((await hints.next()).payload) for _ in range(500)] == list(range(500))

    async def test_an_answer_comes_to_the_inbox_with_its_token(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        answers: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        inbox = await bus.open_inbox(lambda token, message: answers.put_nowait((token, message)))

        async def answer(message: Message) -> None:
            await peer.publish(message.reply, b"work for " + message.payload)

        await peer.subscribe(subjects.all_grabs, answer, queue=SCHEDULERS)
        for type_ in ("a", "b.c"):
            await bus.publish(subjects.grab(type_), type_.encode(), reply=inbox.address(type_))
        async with asyncio.timeout(PATIENCE_SECONDS):
            got = dict([await answers.get() for _ in range(2)])
        assert {token: message.payload for token, message in got.items()} == {
            "a": b"work for a",
            "b.c": b"work for b.c",
        }

    async def test_a_request_nobody_listens_to_is_answered_so(
        self, bus: Bus, subjects: Subjects
    ) -> None:
        answers: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        inbox = await bus.open_inbox(lambda token, message: answers.put_nowait((token, message)))
        await bus.publish(subjects.grab("a"), b"", reply=inbox.address("a"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            token, message = await answers.get()
        assert token == "a"
        assert message.no_responders

    @pytest.mark.parametrize("pattern", ["", "a..b", "a b", "a.>.b", "a.b>", ".a", "a*"])
    async def test_nobody_subscribes_to_a_malformed_subject(self, bus: Bus, pattern: str) -> None:
        with pytest.raises(ValueError, match="no subject"):
            await bus.subscribe(pattern, Collected())

    async def test_a_star_stands_for_one_part(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        seen = Collected()
        await bus.subscribe(f"{subjects.prefix}.*.a", seen)
        await peer.publish(subjects.due("a.b"), b"two parts")
        await peer.publish(subjects.grab("a"), b"one part")
        assert (await seen.next()).payload == b"one part"

    async def test_after_unsubscribing_nothing_arrives(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        gone, stays = Collected(), Collected()
        subscription = await bus.subscribe(subjects.all_due, gone)
        await bus.subscribe(subjects.all_due, stays)
        await subscription.unsubscribe()
        await subscription.unsubscribe()
        await bus.publish(subjects.due("a"), b"")
        await stays.next()
        assert gone.count == 0

    async def test_what_was_sent_before_a_drain_arrives_and_nothing_after_it(
        self, bus: Bus, subjects: Subjects
    ) -> None:
        slow, quick, gate = Collected(), Collected(), asyncio.Event()

        async def take(message: Message) -> None:
            await gate.wait()
            slow(message)

        subscription = await bus.subscribe(subjects.all_due, take)
        await bus.subscribe(subjects.all_due, quick)
        for _ in range(100):
            await bus.publish(subjects.due("a"), b"")
        for _ in range(100):
            await quick.next()
        draining = asyncio.create_task(subscription.drain())
        await asyncio.sleep(0)
        gate.set()
        await draining
        assert slow.count == 100
        await subscription.drain()
        await bus.publish(subjects.due("a"), b"")
        await quick.next()
        assert slow.count == 100

    async def test_a_callback_that_raises_does_not_end_the_subscription(
        self, bus: Bus, peer: Bus, subjects: Subjects
    ) -> None:
        after = Collected()

        def fragile(message: Message) -> None:
            if message.payload == b"bad":
                raise RuntimeError("malformed")
            after(message)

        await bus.subscribe(subjects.all_due, fragile)
        await peer.publish(subjects.due("a"), b"bad")
        await peer.publish(subjects.due("a"), b"good")
        assert (await after.next()).payload == b"good"
