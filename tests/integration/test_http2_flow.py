"""Windows of HTTP/2: nobody gets more than there is room for, nobody waits for somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from services.mesh.rpc.http2 import connection as http2_connection
from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.messages import framed
from services.mesh.rpc.http2.stream import MESSAGE_BYTES, WINDOW
from services.mesh.rpc.http2.upkeep import Patience, Upkeep
from services.mesh.runtime import Tally
from tests.integration.http2_desk import Served, served, starved
from tests.integration.http2_peer import Peer

OK = grpc.StatusCode.OK.value[0]
MIB = 2**20


async def got(peer: Peer, stream: int) -> int:
    """Bytes that came of a stream, once the listener has done what it could."""
    await peer.settled()
    return len(peer.of(stream).data)


# --- what the peer lets us send


async def test_a_window_that_grows_by_the_byte_carries_an_answer_by_the_byte() -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        peer.ask(1, "/t/Echo", b"hello, world")
        await s.desk.ended.reached(1)
        for expected in range(len(framed(b"hello, world"))):
            assert await got(peer, 1) == expected
            peer.grant(1, 1)
        answer = await peer.answer(1)
        assert (answer.status, answer.messages) == (OK, [b"hello, world"])
        await s.at_rest(s.connection)


async def test_windows_made_smaller_under_way_are_paid_back_first() -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=1000)
        peer.ask(1, "/t/Size", b"5000")
        await s.desk.ended.reached(1)
        assert await got(peer, 1) == 1000
        peer.settings(initial_window_size=100)  # 900 bytes less than nothing
        peer.grant(1, 900)
        assert await got(peer, 1) == 1000
        peer.grant(1, 1)
        assert await got(peer, 1) == 1001
        peer.ask(3, "/t/Size", b"5000")
        await s.desk.ended.reached(2)
        assert await got(peer, 3) == 100
        peer.settings(initial_window_size=200)
        assert (await got(peer, 1), await got(peer, 3)) == (1101, 200)
        peer.settings(initial_window_size=h2.DEFAULT_WINDOW)
        for stream in (1, 3):
            assert (await peer.answer(stream)).messages == [bytes(5000)]
        await s.at_rest(s.connection)


async def test_all_streams_share_the_window_of_the_connection() -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=MIB)
        for stream in (1, 3, 5):
            peer.ask(stream, "/t/Size", b"50000")
        await s.desk.ended.reached(3)
        await peer.settled()
        assert sum(len(each.data) for each in peer.answers.values()) == h2.DEFAULT_WINDOW
        peer.grant(0, 150_015 - h2.DEFAULT_WINDOW)
        for stream in (1, 3, 5):
            assert (await peer.answer(stream)).messages == [bytes(50_000)]


async def test_an_answer_without_room_does_not_hold_up_others() -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        peer.ask(1, "/t/Echo", b"blocked")
        peer.ask(3, "/t/Echo", b"free")
        peer.grant(3, 100)
        assert (await peer.answer(3)).messages == [b"free"]
        peer.ask(5, "/t/None", b"")  # a status alone needs no room
        assert (await peer.answer(5)).status == grpc.StatusCode.UNIMPLEMENTED.value[0]
        await s.desk.ended.reached(2)
        await peer.settled()
        assert not peer.of(1).data
        assert set(s.connection.streams) == {1}


async def test_a_handler_writes_no_faster_than_its_peer_makes_room() -> None:
    written = Tally()

    async def pour(request: bytes, context: Any) -> None:
        while True:
            await context.write(bytes(1000))
            written.add()

    async with served() as s:
        s.desk.serve("/t/Pour", pour, responses=True)
        peer = await s.peer()
        peer.ask(1, "/t/Pour", b"")
        while await got(peer, 1) < h2.DEFAULT_WINDOW:
            pass
        assert written.count == h2.DEFAULT_WINDOW // 1005
        peer.grant(0, 10_050)
        peer.grant(1, 10_050)
        while await got(peer, 1) < h2.DEFAULT_WINDOW + 10_050:
            pass
        assert written.count == (h2.DEFAULT_WINDOW + 10_050) // 1005
        peer.reset(1)
        await s.desk.cancelled.reached(1)
        await s.at_rest(s.connection)


@pytest.mark.parametrize("window", [0, MIB])
async def test_an_answer_that_waits_for_room_is_dropped_when_the_peer_gives_it_up(
    window: int,
) -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=window)
        peer.ask(1, "/t/Size", b"1000000")
        await s.desk.ended.reached(1)
        await peer.settled()
        stream = s.connection.streams[1]
        assert stream.waiting_bytes == 1_000_005 - min(window, h2.DEFAULT_WINDOW)
        peer.reset(1)
        await peer.settled()
        assert stream.waiting_bytes == 0
        await s.at_rest(s.connection)


async def test_larger_windows_are_used_only_after_they_were_acknowledged() -> None:
    # Who asked for them holds to the old ones until then, and breaks off a stream that does not.
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        peer.ask(1, "/t/Echo", b"hello")
        await s.desk.ended.reached(1)
        await peer.settled()
        told = len(peer.seen)
        peer.settings(initial_window_size=100)
        await peer.answer(1)
        kinds = [kind for kind, *_ in peer.seen[told:]]
        assert kinds == [h2.SETTINGS, h2.DATA, h2.HEADERS]


async def test_an_answer_that_nobody_reads_lives_no_longer_than_its_call_may() -> None:
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        peer.ask(1, "/t/Echo", b"hello", headers=[("grpc-timeout", "100m")])
        assert (await peer.answer(1)).reset == h2.CANCEL
        await s.at_rest(s.connection)


async def test_answers_that_nobody_reads_are_bounded_for_all_streams_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_connection, "_MOST_WAITING", 3 * MIB)
    async with served() as s:
        peer = await s.peer(initial_window_size=0)
        for stream in (1, 3, 5):
            peer.ask(stream, "/t/Size", b"1100000")
        assert (await peer.answer(5)).reset == h2.ENHANCE_YOUR_CALM
        assert set(s.connection.streams) == {1, 3}
        for stream in (1, 3):
            peer.reset(stream)
        await peer.settled()
        assert s.connection.sender.waiting_bytes == 0
        await s.at_rest(s.connection)


async def test_a_write_that_waits_ends_with_its_call() -> None:
    async def twofold(request: bytes, context: Any) -> None:
        writing = asyncio.create_task(context.write(b"response"))
        await asyncio.sleep(0)  # its turn
        try:
            await context.abort(grpc.StatusCode.ABORTED, "enough")
        finally:
            await asyncio.wait([writing])

    async with served() as s:
        s.desk.serve("/t/Twofold", twofold, responses=True)
        peer = await s.peer(initial_window_size=0)
        peer.ask(1, "/t/Twofold", b"")
        await s.desk.begun.reached(1)
        await peer.settled()
        peer.grant(1, 100)
        answer = await peer.answer(1)
        assert answer.messages == [b"response"]
        assert answer.status == grpc.StatusCode.ABORTED.value[0]
        await s.at_rest(s.connection)


# --- what we let the peer send


async def test_requests_that_nobody_reads_hold_up_only_their_own_stream() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Deaf")
        requests = WINDOW // 1024 - 2
        peer.say(1, *[bytes(1019)] * requests)
        for stream in range(3, 203, 2):
            peer.ask(stream, "/t/Echo", bytes(60_000))
            assert (await peer.answer(stream)).status == OK
            peer.grant(0, 60_005)
        assert 1 not in peer.granted
        assert s.connection.held == requests * (1024 + MESSAGE_BYTES)
        s.desk.release.set()
        peer.data(1, b"", end=True)
        assert (await peer.answer(1)).status == OK
        assert len(s.desk.read) == requests
        await s.at_rest(s.connection)


async def test_what_is_read_is_given_back() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Chat")
        for at in range(1, 101):
            peer.say(1, bytes(15_000))
            await peer.responses(1, at)
            peer.grant(0, 15_005)
            peer.grant(1, 15_005)
        await peer.settled()
        room = WINDOW + peer.granted[1] - 100 * 15_005
        assert WINDOW // 2 < room <= WINDOW


async def test_a_message_larger_than_the_window_comes_through() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Deaf")
        s.desk.release.set()
        message = framed(bytes(4 * MIB))
        at = 0
        while at < len(message):
            room = WINDOW + peer.granted.get(1, 0) - at
            assert room > 0
            piece = message[at : at + min(room, 16384)]
            at += len(piece)
            peer.data(1, piece)
            await peer.settled()
        assert await peer.responses(1, 1) == [b"%d" % (4 * MIB)]


async def test_a_large_message_does_not_widen_the_window_for_what_follows() -> None:
    async def first(requests: Any, context: Any) -> None:
        await anext(aiter(requests))
        await context.write(b"read one")
        await asyncio.Event().wait()

    async with served() as s:
        s.desk.serve("/t/First", first, requests=True, responses=True)
        peer = await s.peer()
        peer.open(1, "/t/First")
        large = framed(bytes(2 * MIB))
        for at in range(0, len(large) - 1, 64 * 1024):
            peer.data(1, large[at : min(at + 64 * 1024, len(large) - 1)])
            await peer.settled()
        peer.data(1, large[-1:] + framed(b"small"))
        await peer.responses(1, 1)
        await peer.settled()
        sent = len(large) + len(framed(b"small"))
        assert WINDOW + peer.granted[1] - sent <= WINDOW
        peer.reset(1)
        await s.at_rest(s.connection)


# --- what the network lets us send


async def choked(s: Served, path: str, said: bytes, **settings: int) -> Peer:
    """A peer that granted all windows there are, asked for much, and reads nothing."""
    peer = await s.peer(initial_window_size=h2.LARGEST_WINDOW, **settings)
    peer.grant(0, h2.LARGEST_WINDOW - h2.DEFAULT_WINDOW)
    peer.ask(1, path, said)
    return peer


async def test_a_network_that_takes_nothing_holds_up_who_writes() -> None:
    async with served() as s:
        other = await s.peer()
        (others,) = s.serving.connections
        peer = await choked(s, "/t/Repeat", b"2000 16000")
        (connection,) = s.serving.connections - {others}
        while not connection.sender._is_paused:
            other.ask(1 + 2 * other._pings, "/t/Echo", b"hello")
            await other.settled()
        assert connection.sender.unsent_bytes < MIB
        assert len(starved(connection)) <= 1
        answer = await peer.answer(1)
        assert (answer.status, len(answer.messages)) == (OK, 2000)
        await s.at_rest(connection)


@pytest.mark.parametrize("frame", [h2.DEFAULT_FRAME, h2.LARGEST_FRAME])
async def test_a_large_answer_that_the_network_takes_slowly_is_no_reason_to_hang_up(
    frame: int,
) -> None:
    async with served() as s:
        peer = await choked(s, "/t/Size", b"%d" % (16 * MIB), max_frame_size=frame)
        await s.desk.ended.reached(1)
        await asyncio.sleep(0)  # the turn of the loop in which it is written
        now = asyncio.get_running_loop().time()
        Upkeep(s.serving, Patience()).look_at(s.connection, now)
        assert (await peer.answer(1)).messages == [bytes(16 * MIB)]
