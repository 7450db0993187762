"""A block means the same whether it is remembered or not, however the table has changed since."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.mesh.rpc.http2 import headers as h2
from services.mesh.rpc.http2.frames import (
    COMPRESSION_ERROR,
    DEFAULT_FRAME,
    BrokenConnection,
    BrokenStream,
)
from services.mesh.rpc.http2.headers import MAX_LIST_BYTES, Asked, HeaderReader, literal, to_asked

Header = tuple[bytes, bytes]
Outcome = Asked | type[Exception]

REQUEST: tuple[Header, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/jobs/Get"),
    (b":authority", b"mesh"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)

#: The same few, so that blocks repeat; the long ones put others out of the table.
EXTRAS = st.lists(
    st.sampled_from(
        [
            (b"a", b"1"),
            (b"a", b"2"),
            (b"user-agent", b"tests"),
            (b"grpc-timeout", b"20S"),
            (b"long", b"x" * 1500),
            (b"longer", b"y" * 3000),
            (b"longest", b"z" * 5000),
            (b"t-bin", b"aGVsbG8"),
        ]
    ),
    max_size=4,
)
#: Headers, and whether the peer leaves them out of the table.
BLOCKS = st.lists(st.tuples(EXTRAS, st.booleans()), max_size=15)
SIZES = st.lists(st.sampled_from([0, 60, 200, 4096]), max_size=2)
SIZED_BLOCKS = st.lists(st.tuples(SIZES, EXTRAS, st.booleans()), max_size=15)

#: A request of the static table alone, and pieces to put before and after it.
STATIC = b"\x83\x86\x84"
RESIZES = st.sampled_from([b"", b"\x20", b"\x3f\x1d", b"\x3f\xe1\x1f", b"\x20\x3f\xe1\x1f"])
PIECES = st.sampled_from(
    [
        b"\xbe",  # the newest of the table, the one before, the one before that
        b"\xbf",
        b"\xc0",
        b"\x40\x01a\x011",
        b"\x40\x01b\x012",
        b"\x7e\x013",  # the newest name with another value
        b"\x00\x01c\x014",
        b"\x40\x01d" + b"\x7f\xf1\x16" + b"x" * 3056,
    ]
)
RAW_BLOCKS = st.builds(
    lambda resize, pieces: resize + STATIC + b"".join(pieces), RESIZES, st.lists(PIECES, max_size=2)
)
#: Of a few blocks, each several times.
RAW_TALKS = st.lists(RAW_BLOCKS, min_size=1, max_size=4).flatmap(
    lambda few: st.lists(st.sampled_from(few), max_size=12)
)


def outcome(read: Callable[[bytes], Asked], block: bytes) -> Outcome:
    try:
        return read(block)
    except (BrokenConnection, BrokenStream) as error:
        return type(error)


def fresh() -> Callable[[bytes], Asked]:
    """Reads blocks in their order, and remembers no more than the table."""
    decoder = Decoder(MAX_LIST_BYTES)

    def read(block: bytes) -> Asked:
        try:
            return to_asked([(bytes(n), bytes(v)) for n, v in decoder.decode(block, raw=True)])
        except HPACKError as error:
            raise BrokenConnection(COMPRESSION_ERROR, str(error)) from error

    return read


@given(BLOCKS)
def test_every_block_means_what_it_says_whatever_is_remembered(
    blocks: list[tuple[list[Header], bool]],
) -> None:
    encoder, reader = Encoder(), HeaderReader()
    for extras, is_private in blocks:
        sent = [(name, value, is_private) for name, value in (*REQUEST, *extras)]
        assert reader.request(encoder.encode(sent)) == to_asked((*REQUEST, *extras))


@given(SIZED_BLOCKS)
@example(
    blocks=[
        *(([size], [], True) for size in (100, 4096, 0, 4096)),
        *[([], [(b"a", b"1")], False)] * 2,
    ]
)
def test_a_table_of_another_size_is_never_missed(
    blocks: list[tuple[list[int], list[Header], bool]],
) -> None:
    encoder, reader = Encoder(), HeaderReader()
    for sizes, extras, is_private in blocks:
        for size in sizes:
            if size != encoder.header_table_size:  # it forgets to tell of a change before none
                encoder.header_table_size = size
        sent = [(name, value, is_private) for name, value in (*REQUEST, *extras)]
        assert reader.request(encoder.encode(sent)) == to_asked((*REQUEST, *extras))


@settings(max_examples=300)
@given(RAW_TALKS)
@example([STATIC + b"\x40\x01a\x011", STATIC + b"\x40\x01a\x011", STATIC + b"\xbf"])
@example([STATIC + b"\x40\x01a\x011", STATIC + b"\xbe", b"\x20" + STATIC, STATIC + b"\xbe"])
def test_what_is_remembered_is_what_a_decoder_without_memory_reads(blocks: list[bytes]) -> None:
    reader, expected = HeaderReader(), fresh()
    for block in blocks:
        found = outcome(reader.request, block)
        assert found == outcome(expected, block)
        if found is BrokenConnection:
            return


@given(st.lists(st.tuples(EXTRAS, st.booleans()), max_size=12))
def test_blocks_that_nobody_needs_change_the_table_all_the_same(
    blocks: list[tuple[list[Header], bool]],
) -> None:
    encoder, reader = Encoder(), HeaderReader()
    for extras, is_skipped in blocks:
        block = encoder.encode([*REQUEST, *extras])
        if is_skipped:
            reader.skip(block)
        else:
            assert reader.request(block) == to_asked((*REQUEST, *extras))


def test_a_block_that_repeats_is_read_once() -> None:
    encoder, reader = Encoder(), HeaderReader()
    reader.request(encoder.encode(REQUEST))
    settled = encoder.encode(REQUEST)
    assert reader.request(settled) is reader.request(settled)


def test_only_so_many_blocks_are_remembered_and_no_long_ones() -> None:
    reader = HeaderReader()
    for number in range(3 * h2._KNOWN_BLOCKS):
        reader.request(STATIC + literal("number", str(number).encode()))
        reader.request(STATIC + literal("number", b"x" * h2._KNOWN_BYTES + b"%d" % number))
    assert 0 < len(reader._known) <= h2._KNOWN_BLOCKS
    assert max(map(len, reader._known)) <= h2._KNOWN_BYTES


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=30) | st.binary(max_size=30).map(STATIC.__add__), max_size=5))
def test_bytes_that_are_no_headers_break_only_what_they_may(blocks: list[bytes]) -> None:
    reader, expected = HeaderReader(), fresh()
    for block in blocks:
        found = outcome(reader.request, block)
        assert found == outcome(expected, block)
        if found is BrokenConnection:
            return


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\xbe", id="not in the table"),
        pytest.param(b"\x80", id="index nought"),
        pytest.param(b"\x3f\xe2\x1f", id="a larger table than we have"),
        pytest.param(STATIC + b"\x20", id="another size in the middle"),
        pytest.param(b"\x40\x05ab", id="a name without its end"),
        pytest.param(b"\x40\x01a\x05b", id="a value without its end"),
        pytest.param(b"\x40\x81\x00\x01a", id="not Huffman's"),
        pytest.param(literal("long", b"x" * 4 * MAX_LIST_BYTES), id="far more than may be"),
        pytest.param(b"\x82" * (4 * MAX_LIST_BYTES // 42 + 1), id="far more of small ones"),
    ],
)
@pytest.mark.parametrize("of", ["request", "skip"])
def test_a_block_that_cannot_be_read_breaks_the_connection(block: bytes, of: str) -> None:
    with pytest.raises(BrokenConnection) as caught:
        getattr(HeaderReader(), of)(block)
    assert caught.value.code == COMPRESSION_ERROR


def test_why_a_block_cannot_be_read_fits_into_a_frame() -> None:
    with pytest.raises(BrokenConnection) as caught:
        HeaderReader().skip(b"\x7f" + b"\xff" * 100_000)
    assert len(caught.value.text.encode()) < DEFAULT_FRAME - 8
