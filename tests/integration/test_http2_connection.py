"""Peers that keep the rules of HTTP/2 in unusual ways are served like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from services.mesh.rpc.http2 import connection as http2_connection
from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.messages import framed
from tests.integration.http2_desk import served
from tests.integration.http2_peer import Peer, call_headers

OK = grpc.StatusCode.OK.value[0]
INTERNAL = grpc.StatusCode.INTERNAL.value[0]
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
CALL = h2.END_HEADERS


async def echoed(peer: Peer, stream: int) -> list[bytes]:
    """The messages of a call that must have ended well."""
    answer = await peer.answer(stream)
    assert (answer.status, answer.headers[":status"]) == (OK, "200")
    return answer.messages


# --- how requests come


async def test_a_call_that_comes_byte_by_byte_is_served() -> None:
    async with served() as s:
        peer = await s.stranger()
        block = peer.block(call_headers("/t/Echo"))
        said = h2.PREFACE + h2.settings({}) + h2.frame(h2.HEADERS, CALL, 1, block)
        await peer.dribble(said + h2.frame(h2.DATA, h2.END_STREAM, 1, framed(b"hello")))
        assert await echoed(peer, 1) == [b"hello"]


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_messages_in_data_frames_of_few_bytes_are_put_together(size: int) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Chat")
        messages = [b"", b"a", b"long enough" * 9, b""]
        said = b"".join(map(framed, messages))
        for at in range(0, len(said), size):
            peer.data(1, said[at : at + size])
        assert await peer.responses(1, 4) == messages
        peer.data(1, b"", end=True)
        assert await echoed(peer, 1) == messages


async def test_many_messages_in_one_frame_are_taken_apart() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Join")
        peer.data(1, framed(b"a") + framed(b"") + framed(b"b"), end=True)
        assert await echoed(peer, 1) == [b"a++b"]


async def test_padding_and_priorities_are_read_over() -> None:
    async with served() as s:
        peer = await s.peer()
        block = peer.block(call_headers("/t/Echo"))
        flags = CALL | h2.PADDED | h2.WITH_PRIORITY
        peer.send(h2.HEADERS, flags, 1, b"\x04" + bytes(4) + b"\x10" + block + bytes(4))
        peer.send(h2.PRIORITY, 0, 3, bytes(4) + b"\x10")
        message = framed(b"hello")
        peer.send(h2.DATA, h2.PADDED, 1, b"\xff" + message[:4] + bytes(255))
        peer.send(h2.DATA, h2.PADDED, 1, b"\x00" + message[4:])
        peer.send(h2.DATA, h2.PADDED | h2.END_STREAM, 1, b"\x02" + bytes(2))
        assert await echoed(peer, 1) == [b"hello"]


async def test_padding_is_given_back_to_the_windows_as_any_other_byte() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Chat")
        rounds = 5000  # of 256 bytes: several windows of a stream
        for at in range(rounds):
            peer.send(h2.DATA, h2.PADDED, 1, b"\xff" + bytes(255))
            if at % 100 == 0:
                await peer.settled()
        peer.say(1, b"hello", end=True)
        assert await echoed(peer, 1) == [b"hello"]
        assert peer.granted[1] >= 256 * rounds - 256 * 1024


async def test_headers_in_many_pieces_are_one_block() -> None:
    async with served() as s:
        peer = await s.peer()
        block = peer.block(call_headers("/t/Echo", ("key", "v" * 200)))
        peer.send(h2.HEADERS, 0, 1, block[:1])
        for at in range(1, 11):
            peer.send(h2.CONTINUATION, 0, 1, block[at : at + 1])
        peer.send(h2.CONTINUATION, h2.END_HEADERS, 1, block[11:])
        peer.say(1, b"hello", end=True)
        assert await echoed(peer, 1) == [b"hello"]


async def test_an_empty_piece_of_headers_changes_nothing() -> None:
    async with served() as s:
        peer = await s.peer()
        block = peer.block(call_headers("/t/Echo"))
        peer.send(h2.HEADERS, 0, 1, b"")
        peer.send(h2.CONTINUATION, 0, 1, block)
        peer.send(h2.CONTINUATION, h2.END_HEADERS, 1, b"")
        peer.say(1, b"hello", end=True)
        assert await echoed(peer, 1) == [b"hello"]


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Join", "/t/Chat"])
@pytest.mark.parametrize("by", ["empty data", "trailers", "trailers in pieces"])
async def test_a_half_close_ends_the_requests_however_it_is_said(path: str, by: str) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, path)
        peer.say(1, b"hello")
        await peer.settled()
        trailers = peer.block([("some", "thing")])
        if by == "empty data":
            peer.data(1, b"", end=True)
        elif by == "trailers":
            peer.send(h2.HEADERS, CALL | h2.END_STREAM, 1, trailers)
        else:
            peer.send(h2.HEADERS, h2.END_STREAM, 1, trailers[:2])
            peer.send(h2.CONTINUATION, h2.END_HEADERS, 1, trailers[2:])
        assert await echoed(peer, 1) == [b"hello"]
        await s.at_rest(s.connection)


@pytest.mark.parametrize(("path", "status"), [("/t/Echo", UNIMPLEMENTED), ("/t/Join", OK)])
async def test_headers_that_end_the_stream_are_a_call_without_requests(
    path: str, status: int
) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, path, end=True)
        assert (await peer.answer(1)).status == status
        await s.at_rest(s.connection)


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Chat"])
async def test_requests_that_end_within_a_message_end_the_call(path: str) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, path)
        peer.data(1, framed(b"hello")[:7], end=True)
        assert (await peer.answer(1)).status == INTERNAL
        await s.at_rest(s.connection)


async def test_two_requests_where_one_belongs_are_refused() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Echo", b"a", b"b")
        assert (await peer.answer(1)).status == UNIMPLEMENTED
        assert s.desk.begun.count == 0
        await s.at_rest(s.connection)


async def test_trailers_are_heard_by_the_table_of_headers() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Echo")
        peer.say(1, b"one")
        # Indexed by the encoder: what follows refers to it.
        peer.send(h2.HEADERS, CALL | h2.END_STREAM, 1, peer.block([("new", "entry")]))
        peer.ask(3, "/t/Echo", b"two", headers=[("new", "entry")])
        assert await echoed(peer, 1) == [b"one"]
        assert await echoed(peer, 3) == [b"two"]


async def test_a_table_that_the_peer_shrinks_and_grows_stays_the_same_on_both_sides() -> None:
    async with served() as s:
        peer = await s.peer()
        plain = b"\x83\x86\x04\x07/t/Echo\x0f\x10\x10application/grpc"
        grown, shrunk = b"\x3f\xe1\x1f" + plain, b"\x20" + plain
        indexed = b"\x40\x01k\x01v"
        for stream, block in enumerate((grown, shrunk, grown, plain + indexed, plain + b"\xbe")):
            peer.send(h2.HEADERS, CALL, 2 * stream + 1, block)
            peer.say(2 * stream + 1, b"hello", end=True)
            assert await echoed(peer, 2 * stream + 1) == [b"hello"]


@pytest.mark.parametrize("size", [0, 1024])
async def test_a_peer_that_wants_a_smaller_table_is_told_that_ours_is(size: int) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Echo", b"before")
        assert await echoed(peer, 1) == [b"before"]
        peer.settings(header_table_size=size)
        await peer.until(h2.SETTINGS, flags=h2.ACK)
        # From here on it refuses every block until one has told so, as nghttp2's decoder does.
        peer.decoder.max_allowed_table_size = size
        peer.ask(3, "/t/Echo", b"after")
        peer.ask(5, "/t/None", b"refused")
        assert await echoed(peer, 3) == [b"after"]
        assert (await peer.answer(5)).status == grpc.StatusCode.UNIMPLEMENTED.value[0]
        blocks = [each[3] for each in peer.seen if each[0] == h2.HEADERS and each[2] > 1]
        assert [block[:1] == b"\x20" for block in blocks] == [True, False, False]


async def test_unknown_frames_settings_and_flags_are_ignored() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.send(0x42, 0xFF, 7, b"something")
        peer.raw(h2.settings({0x4242: 1, 1: 0, h2.MAX_HEADER_LIST_SIZE: 1}))
        peer.send(h2.HEADERS, CALL | 0x50, 1, peer.block(call_headers("/t/Echo")))
        peer.send(h2.DATA, h2.END_STREAM | 0x50, 1, framed(b"hello"))
        assert await echoed(peer, 1) == [b"hello"]


async def test_a_peer_that_says_goodbye_still_gets_its_answers() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"held")
        peer.raw(h2.goaway(0, h2.NO_ERROR))
        await peer.settled()
        s.desk.release.set()
        assert await echoed(peer, 1) == [b"held"]


async def test_many_calls_interleaved_by_the_byte_keep_apart() -> None:
    async with served() as s:
        peer = await s.peer()
        said = {stream: framed(b"message of %d" % stream) for stream in range(1, 101, 2)}
        for stream in said:
            peer.open(stream, "/t/Join" if stream % 4 == 1 else "/t/Echo")
        for at in range(24):
            for stream, message in said.items():
                if at < len(message):
                    peer.data(stream, message[at : at + 1], end=at + 1 == len(message))
        for stream in said:
            assert await echoed(peer, stream) == [b"message of %d" % stream]
        await s.at_rest(s.connection)


# --- how answers go


async def test_the_status_of_one_call_does_not_wait_for_another() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"first")
        peer.ask(3, "/t/Echo", b"second")
        assert await echoed(peer, 3) == [b"second"]
        assert not peer.of(1).blocks
        s.desk.release.set()
        assert await echoed(peer, 1) == [b"first"]


async def test_a_refusal_waits_for_the_first_request_whatever_else_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_connection, "_FIRST_WORDS_SECONDS", 60.0)
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/None")
        peer.grant(1, 1000)
        peer.grant(0, 1000)
        peer.settings(initial_window_size=2**20)
        await peer.settled()
        assert not peer.of(1).blocks
        peer.say(1, b"request")
        assert (await peer.answer(1)).status == UNIMPLEMENTED
        await s.at_rest(s.connection)


async def test_trailers_larger_than_a_frame_are_sent_in_pieces() -> None:
    words = "w" * 50_000

    async def wordy(request: bytes, context: Any) -> None:
        await context.write(b"response")
        await context.abort(grpc.StatusCode.ABORTED, words, (("more-bin", bytes(3000)),))

    async with served() as s:
        s.desk.serve("/t/Wordy", wordy, responses=True)
        peer = await s.peer()
        peer.ask(1, "/t/Wordy", b"")
        answer = await peer.answer(1)
        assert answer.messages == [b"response"]
        assert answer.headers["grpc-message"] == words
        pieces = [len(each[3]) for each in peer.seen if each[0] in (h2.HEADERS, h2.CONTINUATION)]
        assert len(pieces) == 5
        assert max(pieces) == h2.DEFAULT_FRAME


async def test_frames_are_as_large_as_the_peer_allows() -> None:
    async with served() as s:
        peer = await s.peer(max_frame_size=60_000, initial_window_size=2**20)
        peer.grant(0, 2**20)
        peer.ask(1, "/t/Size", b"100000")
        assert await echoed(peer, 1) == [bytes(100_000)]
        assert max(len(each[3]) for each in peer.seen if each[0] == h2.DATA) == 60_000
        peer.settings(max_frame_size=h2.DEFAULT_FRAME)
        peer.ask(3, "/t/Size", b"100000")
        assert await echoed(peer, 3) == [bytes(100_000)]
        last = [len(each[3]) for each in peer.seen if each[0] == h2.DATA and each[2] == 3]
        assert max(last) == h2.DEFAULT_FRAME


async def test_frames_are_no_larger_than_others_may_have_to_wait_for() -> None:
    async with served() as s:
        peer = await s.peer(max_frame_size=h2.LARGEST_FRAME, initial_window_size=2**24)
        peer.grant(0, 2**24)
        peer.ask(1, "/t/Size", b"1000000")
        assert await echoed(peer, 1) == [bytes(1_000_000)]
        assert max(len(each[3]) for each in peer.seen if each[0] == h2.DATA) == 64 * 1024


async def test_an_answer_to_a_caller_that_still_speaks_tells_it_to_stop() -> None:
    async def hasty(requests: Any, context: Any) -> bytes:
        return await anext(aiter(requests))

    async with served() as s:
        s.desk.serve("/t/Hasty", hasty, requests=True)
        peer = await s.peer()
        peer.open(1, "/t/Hasty")
        peer.say(1, b"first", b"second")
        assert await echoed(peer, 1) == [b"first"]
        peer.say(1, b"third", end=True)
        await peer.settled()
        assert peer.of(1).reset == h2.NO_ERROR
        await s.at_rest(s.connection)


# --- deadlines


@pytest.mark.parametrize("path", ["/t/Hold", "/t/Deaf"])
async def test_a_deadline_ends_the_call_and_its_handler(path: str) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, path, ("grpc-timeout", "50m"))
        peer.say(1, b"hello", end=path == "/t/Hold")
        answer = await peer.answer(1)
        assert answer.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        await s.desk.cancelled.reached(1)
        await s.at_rest(s.connection)


async def test_a_deadline_ends_a_call_whose_request_never_came() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Echo", ("grpc-timeout", "50m"))
        peer.data(1, framed(b"hello")[:7])
        # One that did come, and whose deadline is later, shows when the time is over.
        peer.ask(3, "/t/Hold", b"", headers=[("grpc-timeout", "500m")])
        assert (await peer.answer(3)).status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert 1 not in s.connection.streams
        assert s.connection.held == 0


async def test_deadlines_end_calls_in_their_order_whatever_order_they_came_in() -> None:
    async with served() as s:
        peer = await s.peer()
        for stream, timeout in ((1, "99999999H"), (3, "600m"), (5, "300m"), (7, "10u")):
            peer.ask(stream, "/t/Hold", b"", headers=[("grpc-timeout", timeout)])
        ends = [asyncio.create_task(s.desk.cancelled.reached(n)) for n in (1, 2, 3)]
        for end, stream in zip(ends, (7, 5, 3), strict=True):
            await end
            answer = await peer.answer(stream)
            assert answer.status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert not peer.of(1).blocks
        s.desk.release.set()
        assert await echoed(peer, 1) == [b""]
        assert not s.serving.deadlines._calls
