"""What a call asks for, in whatever words; and answers that any peer can read."""

from __future__ import annotations

import base64
from dataclasses import replace
from urllib.parse import unquote

import pytest
from hpack import Decoder, Encoder
from hypothesis import example, given
from hypothesis import strategies as st

from services.mesh.rpc.http2 import headers as h2
from services.mesh.rpc.http2.frames import PROTOCOL_ERROR, BrokenStream
from services.mesh.rpc.http2.headers import (
    Asked,
    HeaderReader,
    ending,
    escaped,
    http_only,
    literal,
    to_asked,
)

Header = tuple[bytes, bytes]

PSEUDO: tuple[Header, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/jobs/Get"),
    (b":authority", b"mesh"),
)
GRPC: tuple[Header, ...] = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
REQUEST = PSEUDO + GRPC


def asked(*extras: Header) -> Asked:
    return HeaderReader().request(Encoder().encode([*REQUEST, *extras]))


def means(block: bytes) -> list[Header]:
    """What a peer reads in an answer, whose table stays as it is."""
    decoder = Decoder(200_000)
    found = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    assert not decoder.header_table.dynamic_entries
    return found


# --- what a request may look like


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(PSEUDO[1:], id="no method"),
        pytest.param((*PSEUDO[:2], *PSEUDO[3:]), id="no path"),
        pytest.param(GRPC, id="nothing but plain ones"),
        pytest.param((), id="nothing"),
        pytest.param((*REQUEST, (b":authority", b"late")), id="pseudo after plain"),
        pytest.param((*GRPC, *PSEUDO), id="all pseudo after plain"),
        pytest.param((*PSEUDO, (b":path", b"/jobs/Get")), id="a path twice"),
        pytest.param((*REQUEST, (b"Upper", b"1")), id="upper case"),
        pytest.param((*REQUEST, (b"uppeR", b"1")), id="upper case at the end"),
        *(
            pytest.param((*REQUEST, (name, b"1")), id=name.decode())
            for name in (
                b"connection",
                b"proxy-connection",
                b"keep-alive",
                b"transfer-encoding",
                b"upgrade",
            )
        ),
    ],
)
def test_a_malformed_request_breaks_its_stream_and_not_the_table(headers: list[Header]) -> None:
    encoder, reader = Encoder(), HeaderReader()
    for _ in range(3):
        with pytest.raises(BrokenStream) as caught:
            reader.request(encoder.encode(headers))
        assert caught.value.code == PROTOCOL_ERROR
    assert reader.request(encoder.encode(REQUEST)).path == "/jobs/Get"


def test_a_request_is_sorted_into_what_each_header_is_for() -> None:
    found = asked(
        (b"grpc-encoding", b"gzip"),
        (b"grpc-timeout", b"5S"),
        (b"one", b"1"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"two", b"2"),
        (b"one", b"\xe9"),
    )
    metadata = (("one", "1"), ("two", "2"), ("one", "é"))
    expected = Asked("POST", "/jobs/Get", "application/grpc", "gzip", 5.0, metadata)
    assert replace(found, size=0) == expected


def test_what_a_request_does_not_say_is_what_grpc_takes_for_granted() -> None:
    expected = Asked("POST", "/jobs/Get", "application/grpc", "identity", None, ())
    assert replace(asked(), size=0) == expected


def test_the_size_of_headers_counts_32_bytes_around_each() -> None:
    headers = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b"a", b"bc")]
    sizes = sum(len(name) + len(value) for name, value in headers)
    assert to_asked(headers).size == sizes + 4 * 32


# --- timeouts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2H", 7200),
        ("3M", 180),
        ("20S", 20),
        ("250m", 0.25),
        ("40u", 4e-5),
        ("7n", 7e-9),
        ("00000000S", 0),
        ("99999999H", 99999999 * 3600),
    ],
)
def test_a_timeout_is_read_in_every_unit(text: str, seconds: float) -> None:
    found = asked((b"grpc-timeout", text.encode()))
    assert (found.timeout, found.problem) == (pytest.approx(seconds), "")


@pytest.mark.parametrize(
    "text",
    [
        *("", "S", "10", "123456789S", "-1S", "+1S", "1.5S", "1e3S", "infS", "1_0S"),
        *("1s", "1h", "1SS", " 1S", "1S ", "²S"),
    ],
)
def test_a_timeout_that_is_none_is_told_in_words(text: str) -> None:
    found = asked((b"grpc-timeout", text.encode("latin-1")))
    assert "grpc-timeout" in found.problem
    assert (found.timeout, found.path) == (None, "/jobs/Get")


# --- binary metadata


@given(st.binary(max_size=100), st.booleans())
def test_binary_metadata_is_opened_with_padding_and_without(value: bytes, is_padded: bool) -> None:
    raw = base64.b64encode(value)
    found = asked((b"k-bin", raw if is_padded else raw.rstrip(b"=")))
    assert (found.metadata, found.problem) == ((("k-bin", value),), "")


@pytest.mark.parametrize("raw", [b"a", b"abcde", b"a b=", b"a-_b", b"!!!!", b"ab=c", b"\xe9abc"])
def test_binary_metadata_that_is_none_is_told_in_words(raw: bytes) -> None:
    found = asked((b"one", b"1"), (b"k-bin", raw))
    assert found.problem
    assert (found.metadata, found.path) == ((), "/jobs/Get")


def test_binary_values_that_were_joined_on_their_way_are_opened_one_by_one() -> None:
    found = asked((b"k-bin", b"YQ,Yg==,Yw"))
    assert found.metadata == tuple(("k-bin", each) for each in (b"a", b"b", b"c"))
    assert not found.problem


# --- answers


@given(st.binary(max_size=300), st.integers(0, 70_000))
@example(b"", 0)
@example(b"", 126)
@example(b"", 127)
@example(b"", 128)
@example(b"", 254)
@example(b"", 255)
@example(b"", 127 + 2**14 - 1)
@example(b"", 127 + 2**14)
def test_a_literal_is_read_back_whatever_its_length(value: bytes, more: int) -> None:
    sent = value + bytes(more)
    assert means(literal("name", sent)) == [(b"name", sent)]


@pytest.mark.parametrize("size", [1, 126, 127, 128, 300])
def test_a_literal_is_read_back_whatever_the_length_of_its_name(size: int) -> None:
    assert means(literal("n" * size, b"v")) == [(b"n" * size, b"v")]


def test_the_blocks_that_are_made_beforehand_say_what_grpc_wants() -> None:
    expected = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert means(h2.BEGINNING) == expected
    assert means(h2.SUCCESS) == [(b"grpc-status", b"0")]
    assert ending(0, "") == h2.SUCCESS


@given(st.integers(0, 16), st.text(), st.lists(st.tuples(st.sampled_from("ab"), st.binary())))
def test_an_ending_is_read_back(code: int, text: str, more: list[tuple[str, bytes]]) -> None:
    metadata = [(f"{name}-bin", value) for name, value in more]
    (status, *rest) = means(ending(code, text, [("plain", "é"), *metadata]))
    assert status == (b"grpc-status", str(code).encode())
    message = [(b"grpc-message", escaped(text))] if text else []
    closed = [(name.encode(), base64.b64encode(value).rstrip(b"=")) for name, value in metadata]
    assert rest == [*message, (b"plain", "é".encode()), *closed]


@given(st.lists(st.binary(max_size=50), max_size=4))
def test_binary_metadata_goes_out_as_it_comes_in(values: list[bytes]) -> None:
    metadata = tuple(("k-bin", value) for value in values)
    _, *sent = means(ending(0, "", metadata))
    assert to_asked([*REQUEST, *sent]).metadata == metadata


def test_who_does_not_speak_grpc_is_answered_in_http() -> None:
    assert means(http_only(405, allow="POST")) == [(b":status", b"405"), (b"allow", b"POST")]
    expected = [(b":status", b"415"), (b"accept-post", b"application/grpc")]
    assert means(http_only(415, accept_post="application/grpc")) == expected


@given(st.text())
@example("100%41")
def test_escaped_text_is_plain_and_is_read_back(text: str) -> None:
    sent = escaped(text)
    assert all(0x20 <= byte <= 0x7E for byte in sent)
    assert unquote(sent.decode("ascii"), errors="strict") == text


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="%")))
def test_text_that_needs_no_escape_has_none(text: str) -> None:
    assert escaped(text) == text.encode()


def test_half_a_character_does_not_stop_a_status() -> None:
    assert unquote(escaped("a\ud800b").decode()) == "a?b"
    assert means(ending(13, "\ud800"))[1] == (b"grpc-message", b"?")
