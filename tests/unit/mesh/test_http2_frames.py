"""Frames come out as they went in, however the network cuts the bytes."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.frames import BrokenConnection, Frame, FrameReader, frame

LARGEST = 64
FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 2**31 - 1),
        st.binary(max_size=LARGEST),
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(0, 600), max_size=20)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The same bytes in pieces, some of which may be empty."""
    edges = [0, *sorted(min(edge, len(data)) for edge in at), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def joined(sent: list[Frame]) -> bytes:
    return b"".join(frame(*each) for each in sent)


def take_in(reader: FrameReader, pieces: list[bytes], came: list[Frame]) -> None:
    for piece in pieces:
        came.extend(reader.feed(piece))


def read_one(data: bytes) -> Frame:
    (only,) = FrameReader(LARGEST).feed(data)
    return only


@given(FRAMES, CUTS)
def test_frames_are_the_same_however_the_bytes_are_cut(sent: list[Frame], at: list[int]) -> None:
    reader = FrameReader(LARGEST)
    came = [each for piece in cut(joined(sent), at) for each in reader.feed(piece)]
    assert came == sent


@given(FRAMES)
def test_frames_are_the_same_byte_by_byte(sent: list[Frame]) -> None:
    data = joined(sent)
    reader = FrameReader(LARGEST)
    came = [each for at in range(len(data)) for each in reader.feed(data[at : at + 1])]
    assert came == sent


@given(FRAMES, CUTS)
def test_a_frame_comes_with_its_last_byte_and_not_before(sent: list[Frame], at: list[int]) -> None:
    reader = FrameReader(LARGEST)
    ends = [len(joined(sent[: number + 1])) for number in range(len(sent))]
    fed = came = 0
    for piece in cut(joined(sent), at):
        fed += len(piece)
        came += len(list(reader.feed(piece)))
        assert came == sum(end <= fed for end in ends)


@given(FRAMES, st.integers(LARGEST + 1, h2.LARGEST_FRAME), CUTS)
def test_a_frame_too_large_is_refused_after_those_before_it(
    sent: list[Frame], size: int, at: list[int]
) -> None:
    reader = FrameReader(LARGEST)
    came: list[Frame] = []
    head = size.to_bytes(3, "big") + bytes(6)
    with pytest.raises(BrokenConnection) as caught:
        take_in(reader, cut(joined(sent) + head, at), came)
    assert caught.value.code == h2.FRAME_SIZE_ERROR
    assert came == sent


def test_a_frame_too_large_is_refused_before_its_payload_comes() -> None:
    reader = FrameReader(LARGEST)
    head = frame(h2.DATA, 0, 1, bytes(LARGEST + 1))[: h2.HEAD_BYTES]
    assert list(reader.feed(head[:-1])) == []
    with pytest.raises(BrokenConnection):
        list(reader.feed(head[-1:]))


def test_a_frame_as_large_as_may_be_is_read() -> None:
    assert read_one(frame(h2.DATA, 0, 1, bytes(LARGEST))) == (h2.DATA, 0, 1, bytes(LARGEST))


@given(FRAMES, st.integers(1, 8))
def test_what_was_not_looked_at_is_there_the_next_time(sent: list[Frame], looks: int) -> None:
    reader = FrameReader(LARGEST)
    feed = reader.feed(joined(sent))
    came = list(islice(feed, looks))
    feed.close()  # type: ignore[attr-defined]
    assert came == sent[:looks]
    assert list(reader.feed(b"")) == sent[looks:]


def test_the_reserved_bit_is_no_part_of_the_stream() -> None:
    data = bytearray(frame(h2.PING, 0, 7, bytes(8)))
    data[5] |= 0x80
    assert read_one(bytes(data)) == (h2.PING, 0, 7, bytes(8))


def test_a_frame_is_laid_out_as_the_rfc_says() -> None:
    assert frame(h2.HEADERS, h2.END_HEADERS, 3, b"xy") == bytes.fromhex(
        "000002 01 04 00000003 7879"
    )


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_frames_with_numbers_hold_them(stream: int, number: int) -> None:
    raw = number.to_bytes(4, "big")
    assert read_one(h2.window_update(stream, number)) == (h2.WINDOW_UPDATE, 0, stream, raw)
    assert read_one(h2.reset(stream, number)) == (h2.RST_STREAM, 0, stream, raw)


def test_a_goaway_says_the_last_stream_the_code_and_why() -> None:
    kind, flags, stream, payload = read_one(h2.goaway(5, h2.ENHANCE_YOUR_CALM, "wörds"))
    assert (kind, flags, stream) == (h2.GOAWAY, 0, 0)
    assert payload == bytes.fromhex("00000005 0000000b") + "wörds".encode()


@given(st.dictionaries(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), max_size=10))
def test_settings_are_read_as_they_were_written(values: dict[int, int]) -> None:
    kind, flags, stream, payload = read_one(h2.settings(values))
    assert (kind, flags, stream) == (h2.SETTINGS, 0, 0)
    assert list(h2.parse_settings(payload)) == list(values.items())


@given(st.binary(max_size=60).filter(lambda payload: len(payload) % 6))
def test_settings_that_are_no_pairs_are_refused(payload: bytes) -> None:
    with pytest.raises(BrokenConnection) as caught:
        list(h2.parse_settings(payload))
    assert caught.value.code == h2.FRAME_SIZE_ERROR


@given(st.binary(max_size=40), st.integers(0, 255), st.integers(0, 255))
def test_padding_is_taken_off(payload: bytes, padding: int, flags: int) -> None:
    padded = bytes((padding,)) + payload + bytes(padding)
    assert h2.unpadded(flags | h2.PADDED, padded) == payload


@given(st.binary(max_size=40), st.integers(0, 255))
def test_what_has_no_padding_stays_as_it_is(payload: bytes, flags: int) -> None:
    assert h2.unpadded(flags & ~h2.PADDED, payload) == payload


@given(st.binary(max_size=40), st.integers(0, 255))
def test_more_padding_than_payload_is_refused(rest: bytes, more: int) -> None:
    padding = min(255, len(rest) + 1 + more)
    for payload in (b"", bytes((padding,)) + rest):
        with pytest.raises(BrokenConnection) as caught:
            h2.unpadded(h2.PADDED, payload)
        assert caught.value.code == h2.PROTOCOL_ERROR
