"""Peers that break the rules are told so, and nobody else notices."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from services.mesh.rpc.http2 import connection as http2_connection
from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.messages import framed
from services.mesh.rpc.http2.stream import WINDOW
from tests.integration.http2_desk import served
from tests.integration.http2_peer import Peer, call_headers

RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
PLAIN = b"\x83\x86\x04\x07/t/Echo\x0f\x10\x10application/grpc"
Abuse = Callable[[Peer], None]


def sending(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> Abuse:
    return lambda peer: peer.send(kind, flags, stream, payload)


def saying(*frames: bytes) -> Abuse:
    return lambda peer: peer.raw(b"".join(frames))


def beginning(block: bytes, flags: int = h2.END_HEADERS) -> Abuse:
    return sending(h2.HEADERS, flags, 3, block)


def pieces(count: int, size: int) -> Abuse:
    """Headers that go on and on."""
    more = h2.frame(h2.CONTINUATION, 0, 3, bytes(size))
    return saying(h2.frame(h2.HEADERS, 0, 3, PLAIN), *[more] * count)


#: Stream 1 is a call under way, 3 the next one.
BREAKS: dict[str, tuple[int, Abuse]] = {
    "settings of no pairs": (h2.FRAME_SIZE_ERROR, sending(h2.SETTINGS, payload=bytes(5))),
    "settings of a stream": (h2.PROTOCOL_ERROR, sending(h2.SETTINGS, stream=1)),
    "acknowledged with words": (h2.FRAME_SIZE_ERROR, sending(h2.SETTINGS, h2.ACK, 0, bytes(6))),
    "a window of 32 bits": (h2.FLOW_CONTROL_ERROR, saying(h2.settings({4: 2**31}))),
    "small frames": (h2.PROTOCOL_ERROR, saying(h2.settings({5: 16_383}))),
    "large frames": (h2.PROTOCOL_ERROR, saying(h2.settings({5: 2**24}))),
    "push of three": (h2.PROTOCOL_ERROR, saying(h2.settings({2: 3}))),
    "a ping of seven bytes": (h2.FRAME_SIZE_ERROR, sending(h2.PING, payload=bytes(7))),
    "a ping of a stream": (h2.PROTOCOL_ERROR, sending(h2.PING, 0, 1, bytes(8))),
    "a push": (h2.PROTOCOL_ERROR, sending(h2.PUSH_PROMISE, 4, 1, bytes(8))),
    "data of no stream": (h2.PROTOCOL_ERROR, sending(h2.DATA, payload=b"x")),
    "data of an idle stream": (h2.PROTOCOL_ERROR, sending(h2.DATA, 0, 3, b"x")),
    "reset of no stream": (h2.PROTOCOL_ERROR, sending(h2.RST_STREAM, payload=bytes(4))),
    "reset of an idle stream": (h2.PROTOCOL_ERROR, sending(h2.RST_STREAM, 0, 3, bytes(4))),
    "a short reset": (h2.FRAME_SIZE_ERROR, sending(h2.RST_STREAM, 0, 1, bytes(3))),
    "window of an idle stream": (h2.PROTOCOL_ERROR, saying(h2.window_update(3, 1))),
    "a window that stays": (h2.PROTOCOL_ERROR, saying(h2.window_update(0, 0))),
    "a window of three bytes": (h2.FRAME_SIZE_ERROR, sending(h2.WINDOW_UPDATE, 0, 0, bytes(3))),
    "a window too large": (h2.FLOW_CONTROL_ERROR, saying(h2.window_update(0, h2.LARGEST_WINDOW))),
    "windows too large by settings": (
        h2.FLOW_CONTROL_ERROR,
        saying(h2.window_update(1, 2**30), h2.settings({4: 2**31 - 1})),
    ),
    "headers of no stream": (h2.PROTOCOL_ERROR, sending(h2.HEADERS, 4, 0, PLAIN)),
    "headers of our stream": (h2.PROTOCOL_ERROR, sending(h2.HEADERS, 4, 2, PLAIN)),
    "headers without priority": (h2.FRAME_SIZE_ERROR, beginning(b"\0" * 4, 0x24)),
    "too much padding of data": (h2.PROTOCOL_ERROR, sending(h2.DATA, 8, 1, b"\x06" + bytes(5))),
    "padding without data": (h2.PROTOCOL_ERROR, sending(h2.DATA, 8, 1)),
    "too much padding of headers": (h2.PROTOCOL_ERROR, beginning(b"\xff" + PLAIN, 0x0C)),
    "a frame too large": (h2.FRAME_SIZE_ERROR, saying((WINDOW + 1).to_bytes(3, "big") + bytes(6))),
    "a continuation of nothing": (h2.PROTOCOL_ERROR, sending(h2.CONTINUATION, 4, 1, PLAIN)),
    "a continuation of another": (
        h2.PROTOCOL_ERROR,
        saying(h2.frame(h2.HEADERS, 0, 3, PLAIN), h2.frame(h2.CONTINUATION, 4, 1)),
    ),
    "a ping among headers": (
        h2.PROTOCOL_ERROR,
        saying(h2.frame(h2.HEADERS, 0, 3, PLAIN), h2.frame(h2.PING, 0, 0, bytes(8))),
    ),
    "an unknown frame among headers": (
        h2.PROTOCOL_ERROR,
        saying(h2.frame(h2.HEADERS, 0, 3, PLAIN), h2.frame(0x42, 0, 0)),
    ),
    "many continuations": (h2.ENHANCE_YOUR_CALM, pieces(20, 0)),
    "long continuations": (h2.ENHANCE_YOUR_CALM, pieces(3, 16_000)),
    "headers that end too soon": (h2.COMPRESSION_ERROR, beginning(b"\x40\x0akey")),
    "headers of no table": (h2.COMPRESSION_ERROR, beginning(b"\xff\xff\xff\xff\x0f")),
    "a table too large": (h2.COMPRESSION_ERROR, beginning(b"\x3f\xff\xff\xff\x0f" + PLAIN)),
    "a bomb of headers": (
        h2.COMPRESSION_ERROR,
        beginning(PLAIN + b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 100),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_connection_is_told_why_and_leaves_nothing(name: str) -> None:
    code, abuse = BREAKS[name]
    async with served() as s:
        neighbour = await s.peer()
        neighbour.ask(1, "/t/Hold", b"neighbour")
        (undisturbed,) = s.serving.connections
        peer = await s.peer()
        (connection,) = s.serving.connections - {undisturbed}
        peer.open(1, "/t/Deaf")
        await s.desk.begun.reached(2)
        abuse(peer)
        peer.ask(5, "/t/Echo", b"not looked at any more")
        assert await peer.goaway() in {(1, code), (3, code)}
        await peer.over()
        assert 5 not in peer.answers
        await s.desk.cancelled.reached(1)
        await s.desk.ended.reached(1)
        assert not connection.streams
        assert not connection.held
        await peer.close()
        s.desk.release.set()
        assert (await neighbour.answer(1)).messages == [b"neighbour"]
        await s.at_rest(undisturbed)


async def test_a_greeting_without_settings_is_none() -> None:
    async with served() as s:
        peer = await s.stranger()
        peer.raw(h2.PREFACE + h2.frame(h2.PING, 0, 0, bytes(8)))
        assert (await peer.goaway())[1] == h2.PROTOCOL_ERROR


async def test_who_speaks_http_1_is_answered_in_its_words() -> None:
    async with served() as s:
        peer = await s.stranger()
        peer.raw(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        said = b""
        while data := await peer._received():
            said += data
        assert b"HTTP/1.1 505 " in said
        await peer.close()
        await s.left_alone()


def malformed(*headers: tuple[str, str]) -> Abuse:
    return lambda peer: peer.send(h2.HEADERS, h2.END_HEADERS, 3, peer.block(headers))


def spoken(stream: int, *frames: tuple[int, int, bytes]) -> Abuse:
    return saying(*(h2.frame(kind, flags, stream, payload) for kind, flags, payload in frames))


RESETS: dict[str, tuple[int, int, Abuse]] = {
    "no path": (3, h2.PROTOCOL_ERROR, malformed((":method", "POST"))),
    "no headers": (3, h2.PROTOCOL_ERROR, malformed()),
    "capitals": (3, h2.PROTOCOL_ERROR, malformed(*call_headers("/t/Echo", ("Key", "v")))),
    "two paths": (3, h2.PROTOCOL_ERROR, malformed((":path", "/t"), *call_headers("/t/Echo"))),
    "path after others": (3, h2.PROTOCOL_ERROR, malformed(("a", "b"), *call_headers("/t/Echo"))),
    "of one hop": (3, h2.PROTOCOL_ERROR, malformed(*call_headers("/", ("connection", "close")))),
    "a window too large": (
        1,
        h2.FLOW_CONTROL_ERROR,
        saying(h2.window_update(1, h2.LARGEST_WINDOW)),
    ),
    "a window that stays": (1, h2.PROTOCOL_ERROR, saying(h2.window_update(1, 0))),
    "data after the end": (
        1,
        h2.STREAM_CLOSED,
        spoken(1, (h2.DATA, h2.END_STREAM, b""), (h2.DATA, 0, b"x")),
    ),
    "headers that end nothing": (1, h2.PROTOCOL_ERROR, spoken(1, (h2.HEADERS, 4, b""))),
    "headers after the end": (
        1,
        h2.PROTOCOL_ERROR,
        spoken(1, (h2.HEADERS, 5, b""), (h2.HEADERS, 5, b"")),
    ),
    "more than the window": (
        1,
        h2.FLOW_CONTROL_ERROR,
        spoken(1, *[(h2.DATA, 0, framed(bytes(16_379)))] * 17),
    ),
}


@pytest.mark.parametrize("name", RESETS)
async def test_a_broken_stream_is_reset_and_the_others_go_on(name: str) -> None:
    stream, code, abuse = RESETS[name]
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Deaf")
        await s.desk.begun.reached(1)
        abuse(peer)
        assert (await peer.answer(stream)).reset == code
        peer.ask(5, "/t/Echo", b"goes on")
        assert (await peer.answer(5)).messages == [b"goes on"]
        assert s.desk.cancelled.count == (stream == 1)
        peer.reset(1)
        await s.at_rest(s.connection)


# --- messages


async def refused(peer: Peer, stream: int) -> None:
    assert (await peer.answer(stream)).status == RESOURCE_EXHAUSTED
    assert peer.of(stream).reset in (None, h2.NO_ERROR)


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Chat"])
async def test_a_message_that_is_too_large_is_refused_by_its_first_bytes(path: str) -> None:
    async with served(largest_message=1000) as s:
        peer = await s.peer()
        peer.open(1, path)
        peer.data(1, b"\0" + (1001).to_bytes(4, "big") + bytes(500))
        await refused(peer, 1)
        peer.ask(3, path, bytes(1000))
        assert (await peer.answer(3)).messages == [bytes(1000)]
        await s.at_rest(s.connection)


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Join"])
async def test_a_small_message_that_opens_to_a_large_one_is_refused(path: str) -> None:
    with ExitStack() as stack:
        async with served() as s:
            peer = await s.peer()
            bomb = zlib.compress(bytes(64 * 2**20), 9)
            peer.open(1, path, ("grpc-encoding", "deflate"))
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            peer.data(1, b"\1" + framed(bomb)[1:16_000])
            for at in range(16_000, len(bomb) + 5, 16_000):
                peer.data(1, framed(bomb)[at : at + 16_000])
            peer.data(1, b"", end=True)
            await refused(peer, 1)
            assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
            await s.at_rest(s.connection)


async def test_all_that_a_peer_makes_us_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "_MOST_HELD", 100_000)
    async with served() as s:
        peer = await s.peer()
        for stream in range(1, 21, 2):
            peer.open(stream, "/t/Deaf" if stream % 4 == 1 else "/t/Echo")
            peer.data(stream, b"\0\0\0\xff\xff" + bytes(16_000))
            await peer.settled()
            assert s.connection.held <= 100_000
        turned_away = [stream for stream, answer in peer.answers.items() if answer.blocks]
        assert turned_away == [13, 15, 17, 19]
        for stream in turned_away:
            await refused(peer, stream)
        for stream in range(1, 13, 2):
            peer.reset(stream)
        await peer.settled()
        peer.ask(21, "/t/Echo", b"room again")
        assert (await peer.answer(21)).messages == [b"room again"]
        await s.at_rest(s.connection)


@pytest.mark.parametrize("message", [framed(b"ab"), b"\1" + bytes(4)])
async def test_what_small_messages_take_besides_their_bytes_is_held_against_their_peer(
    message: bytes,
) -> None:
    with ExitStack() as stack:
        async with served() as s:
            peer = await s.peer()
            peer.open(1, "/t/Deaf")
            await s.desk.begun.reached(1)
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            peer.data(1, message * (16_000 // len(message)))
            await peer.settled()
            assert s.connection.held > tracemalloc.get_traced_memory()[0]


async def test_a_call_ends_even_if_its_last_words_cannot_be_said() -> None:
    async def mumbles(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.ABORTED, "words", (("näme", "value"),))
        return request

    async with served() as s:
        s.desk.serve("/t/Mumbles", mumbles)
        peer = await s.peer()
        peer.ask(1, "/t/Mumbles", b"")
        assert (await peer.answer(1)).status
        await s.at_rest(s.connection)
