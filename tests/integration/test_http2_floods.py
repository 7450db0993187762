"""Peers that cost more than they give, and peers that go away: little is held, and not for long."""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2 import receiving, sending, upkeep
from services.mesh.rpc.http2.messages import framed
from services.mesh.rpc.http2.stream import Stream
from services.mesh.rpc.http2.upkeep import Patience
from tests.integration.http2_desk import Served, served
from tests.integration.http2_peer import Peer, call_headers

MIB = 2**20
Flood = Callable[[Peer, int], None]


def again(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> Flood:
    """The same frame each time; stream 1 is a call under way."""
    return lambda peer, number: peer.send(kind, flags, stream, payload)


def open_and(spoil: Callable[[Peer, int], None]) -> Flood:
    def flood(peer: Peer, number: int) -> None:
        stream = 2 * number + 3
        peer.open(stream, "/t/Deaf")
        spoil(peer, stream)

    return flood


FLOODS: dict[str, Flood] = {
    "pings": again(h2.PING, payload=bytes(8)),
    "settings": again(h2.SETTINGS),
    "priorities": again(h2.PRIORITY, 0, 1, bytes(5)),
    "empty data": again(h2.DATA, 0, 1),
    "unknown frames": again(0x42),
    "goodbyes": again(h2.GOAWAY, payload=bytes(8)),
    "resets": open_and(lambda peer, stream: peer.reset(stream)),
    "calls that we have to reset": open_and(lambda peer, stream: peer.grant(stream, 2**31 - 1)),
    "calls without a path": lambda peer, number: peer.send(
        h2.HEADERS, h2.END_HEADERS, 2 * number + 3, b"\x83"
    ),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_that_only_cost_is_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_IDLE_TALK", 100)
    async with served() as s:
        neighbour = await s.peer()
        peer = await s.peer()
        peer.open(1, "/t/Deaf")
        for number in range(150):
            FLOODS[name](peer, number)
        peer.send(h2.PING, 0, 0, b"the last")
        seen = await gone_or_asked(peer)
        code = int.from_bytes(seen[3][4:8], "big") if seen[0] == h2.GOAWAY else None
        assert code == h2.ENHANCE_YOUR_CALM
        await peer.over()
        await peer.close()
        neighbour.ask(1, "/t/Echo", b"hello")
        assert (await neighbour.answer(1)).messages == [b"hello"]
        await s.at_rest(*s.serving.connections)


async def gone_or_asked(peer: Peer) -> h2.Frame:
    """The goodbye, or the answer to the last ping: everything was taken."""
    while (found := await peer.next()) is not None:
        if found[0] == h2.GOAWAY or found[3] == b"the last":
            return found
    raise AssertionError("hung up without a word")


async def test_a_little_of_everything_now_and_then_is_no_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "_IDLE_TALK", 100)
    async with served() as s:
        peer = await s.peer()
        for _ in range(3):
            for _ in range(90):
                peer.send(h2.PING, 0, 0, bytes(8))
            await peer.settled()
            upkeep.Upkeep(s.serving).look_at(s.connection, s.serving.loop.time())
        peer.ask(1, "/t/Echo", b"hello")
        assert (await peer.answer(1)).messages == [b"hello"]


@pytest.mark.parametrize("path", ["/t/Hold", "/t/Deaf"])
async def test_calls_opened_and_reset_at_once_never_run_more_than_they_may(path: str) -> None:
    async with served(most_streams=10) as s:
        peer = await s.peer()
        for stream in range(1, 2001, 2):
            peer.ask(stream, path, b"hello")
            peer.reset(stream)
        await peer.settled()
        assert s.desk.most <= 10
        assert s.desk.begun.count < 1000
        await s.at_rest(s.connection)
        refused = {each.reset for each in peer.answers.values()}
        assert refused <= {h2.REFUSED_STREAM}
        peer.ask(2001, "/t/Echo", b"goes on")
        assert (await peer.answer(2001)).messages == [b"goes on"]


async def test_a_handler_that_does_not_end_keeps_its_place() -> None:
    async def stubborn(request: bytes, context: Any) -> bytes:
        while not s.desk.release.is_set():
            try:
                await s.desk.release.wait()
            except asyncio.CancelledError:
                continue
        return request

    async with served(most_streams=5) as s:
        s.desk.serve("/t/Stubborn", stubborn)
        peer = await s.peer()
        for stream in range(1, 101, 2):
            peer.ask(stream, "/t/Stubborn", b"")
            await peer.settled()
            peer.reset(stream)
        await peer.settled()
        assert s.desk.begun.count == s.desk.running == len(s.connection.streams) == 5
        s.desk.release.set()
        await s.at_rest(s.connection)


async def test_calls_beyond_the_most_are_refused_and_later_ones_are_not() -> None:
    async with served(most_streams=3) as s:
        peer = await s.peer()
        for stream in (1, 3, 5, 7, 9):
            peer.ask(stream, "/t/Hold", b"held")
        for stream in (7, 9):
            assert (await peer.answer(stream)).reset == h2.REFUSED_STREAM
        s.desk.release.set()
        for stream in (1, 3, 5):
            assert (await peer.answer(stream)).messages == [b"held"]
        await s.at_rest(s.connection)
        peer.ask(11, "/t/Hold", b"held")
        assert (await peer.answer(11)).messages == [b"held"]


# --- much work for few bytes


async def waiting(s: Served, peer: Peer, count: int, said: bytes) -> None:
    """So many answers that have no room at all."""
    for stream in range(1, 2 * count, 2):
        peer.ask(stream, "/t/Size", said)
    await s.desk.ended.reached(count)
    await peer.settled()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    calls = [0]
    original = getattr(owner, name)

    def counting(*args: Any) -> Any:
        calls[0] += 1
        return original(*args)

    monkeypatch.setattr(owner, name, counting)
    return calls


async def test_one_frame_of_settings_does_not_change_all_windows_thousands_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        await waiting(s, peer, 50, b"10")
        calls = count_calls(monkeypatch, Stream, "widen")
        entries = b"".join(b"\0\4\0\0\0" + bytes([each % 2]) for each in range(2000))
        peer.send(h2.SETTINGS, 0, 0, entries)
        peer.send(h2.PING, 0, 0, b"the last")
        await gone_or_asked(peer)
        assert calls[0] <= 1000


async def test_settings_that_change_no_window_do_not_look_at_any_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        await waiting(s, peer, 50, b"10")
        calls = count_calls(monkeypatch, sending.Sender, "pump")
        for _ in range(100):
            peer.send(h2.SETTINGS)
            peer.settings(max_frame_size=h2.DEFAULT_FRAME)
        await peer.settled()
        assert calls[0] == 0


async def test_settings_that_change_windows_cost_as_much_as_there_are_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "_IDLE_TALK", 1000)
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        await waiting(s, peer, 50, b"10")
        for number in range(100):
            peer.settings(initial_window_size=number % 2)
        peer.send(h2.PING, 0, 0, b"the last")
        assert (await gone_or_asked(peer))[0] == h2.GOAWAY


async def test_a_window_that_grows_is_not_offered_to_streams_without_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        await waiting(s, peer, 50, b"10")
        calls = count_calls(monkeypatch, sending.Sender, "pump")
        for _ in range(200):
            peer.grant(0, 1)
        peer.send(h2.PING, 0, 0, b"the last")
        await gone_or_asked(peer)
        assert calls[0] <= 1000


async def test_a_byte_of_a_large_answer_costs_no_more_than_one_of_a_small_one() -> None:
    async def cost(said: bytes) -> float:
        async with served() as s:
            peer = await s.peer(initial_window_size=0)
            await waiting(s, peer, 1, said)
            began = time.process_time()
            for _ in range(500):
                peer.grant(1, 1)
            await peer.settled()
            return time.process_time() - began

    small = await cost(b"10000")
    assert await cost(b"%d" % (8 * MIB)) < 10 * small


SMALL_BOMB = zlib.compress(bytes(200_000))


@pytest.mark.parametrize(
    ("message", "count", "most"),
    [(framed(b""), 3000, 300), (b"\1" + framed(SMALL_BOMB)[1:], 50, 2)],
)
async def test_many_requests_at_once_leave_others_their_turns(
    message: bytes, count: int, most: int
) -> None:
    turn = 0
    reads: Counter[int] = Counter()

    def tick() -> None:
        nonlocal turn
        turn += 1
        if not s.desk.ended.count:
            s.serving.loop.call_soon(tick)

    async def read(requests: Any, context: Any) -> bytes:
        async for _ in requests:
            reads[turn] += 1
        return b""

    async with served() as s:
        s.desk.serve("/t/Read", read, requests=True)
        peer = await s.peer()
        peer.open(1, "/t/Read", ("grpc-encoding", "deflate"))
        await s.desk.begun.reached(1)
        tick()
        peer.data(1, message * count, end=True)
        await peer.answer(1)
        assert reads.total() == count
        assert max(reads.values()) <= most


async def test_headers_that_say_nothing_at_length_are_not_read_to_their_end() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.send(h2.HEADERS, h2.END_HEADERS, 1, b"\x20" * 200_000)  # each one clears the table
        peer.send(h2.PING, 0, 0, b"the last")
        assert (await gone_or_asked(peer))[0] == h2.GOAWAY


# --- peers that go away


ALL_KINDS = ["/t/Hold", "/t/Hold2", "/t/Deaf", "/t/Join"]


async def holding(s: Served, peer: Peer) -> None:
    """One handler of each kind is at work."""

    async def pour(request: bytes, context: Any) -> None:
        while True:
            await context.write(bytes(1000))

    s.desk.serve("/t/Hold2", pour, responses=True)
    for stream, path in zip((1, 3, 5, 7), ALL_KINDS, strict=True):
        peer.open(stream, path, ("grpc-timeout", "1H"))
        peer.say(stream, b"hello", end=stream < 5)
    await s.desk.begun.reached(4)
    await peer.settled()
    assert len(s.serving.deadlines._calls) == 4


async def test_a_reset_cancels_the_handler_and_leaves_nothing() -> None:
    async with served() as s:
        peer = await s.peer()
        await holding(s, peer)
        for stream in (1, 3, 5, 7):
            peer.reset(stream)
        await s.desk.cancelled.reached(4)
        await s.at_rest(s.connection)
        peer.grant(1, 100)
        peer.grant(0, h2.DEFAULT_WINDOW)  # which one of them had used up
        peer.say(5, b"late", end=True)
        peer.ask(9, "/t/Echo", b"goes on")
        assert (await peer.answer(9)).messages == [b"goes on"]


async def test_a_reset_is_not_lost_on_a_handler_whose_timeout_is_just_over() -> None:
    limits: asyncio.Queue[asyncio.Timeout] = asyncio.Queue()

    async def poll(request: bytes, context: Any) -> bytes:
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    limits.put_nowait(limit)
                    await s.desk.release.wait()
        return b"nothing came"

    async with served() as s:
        s.desk.serve("/t/Poll", poll)
        peer = await s.peer()
        peer.ask(1, "/t/Poll", b"")
        (await limits.get()).reschedule(s.serving.loop.time())
        # In the same turn of the loop, before the handler hears of its timeout.
        s.serving.loop.call_soon(s.connection.data_received, h2.reset(1, h2.CANCEL))
        await s.desk.cancelled.reached(1)
        await s.at_rest(s.connection)


@pytest.mark.parametrize("how", ["vanish", "shut", "close"])
async def test_a_peer_that_goes_away_takes_its_calls_with_it(how: str) -> None:
    async with served() as s:
        neighbour = await s.peer()
        (undisturbed,) = s.serving.connections
        peer = await s.peer()
        (connection,) = s.serving.connections - {undisturbed}
        await holding(s, peer)
        if how == "close":
            await peer.close()
        else:
            getattr(peer, how)()
        await s.desk.cancelled.reached(4)
        await s.at_rest(connection)
        assert s.serving.connections == {undisturbed}
        neighbour.ask(1, "/t/Echo", b"hello")
        assert (await neighbour.answer(1)).messages == [b"hello"]


async def test_a_connection_may_be_lost_after_any_byte() -> None:
    async with served() as s:
        blocks = Peer.__new__(Peer)
        blocks.__init__(None, None)  # type: ignore[misc, arg-type]
        said = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 3})
        for stream, path in ((1, "/t/Echo"), (3, "/t/Chat"), (5, "/t/Hold")):
            block = blocks.block(call_headers(path, ("grpc-timeout", "1H")))
            said += h2.frame(h2.HEADERS, 0, stream, block[:9])
            said += h2.frame(h2.CONTINUATION, h2.END_HEADERS, stream, block[9:])
            said += h2.frame(h2.DATA, h2.END_STREAM, stream, framed(b"hello"))
        for size in range(len(said)):
            peer = await Peer.connect(s.port)
            peer.raw(said[:size])
            if size % 2 and size >= len(h2.PREFACE):
                await peer.until(h2.SETTINGS)
            peer.vanish()
        await s.left_alone()
        assert s.desk.cancelled.count > 0


async def test_strangers_that_say_nothing_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LOOK_SECONDS", 0.02)
    async with served(patience=Patience(greeting=0.1)) as s:
        greeted = await s.peer()
        mute, slow = await s.stranger(), await s.stranger()
        slow.raw(h2.PREFACE[:-1])
        for each in (mute, slow):
            await each.over()
        greeted.ask(1, "/t/Echo", b"hello")
        assert (await greeted.answer(1)).messages == [b"hello"]


async def test_who_asks_and_never_reads_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_MOST_UNSENT", 0)
    async with served() as s:
        peer = await s.peer()
        (connection,) = s.serving.connections
        while not connection.sender.unsent_bytes:
            for _ in range(4000):
                peer.send(h2.PING, 0, 0, bytes(8))
            await asyncio.sleep(0)
            connection.receiver.idle_talk = 0
        upkeep.Upkeep(s.serving).look_at(connection, s.serving.loop.time())
        await s.left_alone()


async def test_who_does_not_read_its_answers_holds_up_only_itself() -> None:
    async with served() as s:
        neighbour = await s.peer()
        (undisturbed,) = s.serving.connections
        peer = await s.peer(initial_window_size=h2.LARGEST_WINDOW)
        (connection,) = s.serving.connections - {undisturbed}
        peer.grant(0, h2.LARGEST_WINDOW - h2.DEFAULT_WINDOW)
        for stream in range(1, 41, 2):
            peer.ask(stream, "/t/Repeat", b"1000 60000")
        turns = 0
        while not connection.sender._is_paused:
            turns += 2
            neighbour.ask(turns + 1, "/t/Echo", b"hello")
            assert (await neighbour.answer(turns + 1)).messages == [b"hello"]
        assert connection.sender.unsent_bytes < 4 * MIB
        peer.vanish()
        await s.desk.cancelled.reached(20)
        await s.at_rest(connection)
