"""Header blocks: what a call asks for, and how its answer begins and ends.

A caller's blocks repeat: once the table that both sides keep has settled, all its calls of one
method are the same few bytes. So a block is remembered with what it meant, for as long as the table
does not change.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError
from hpack.table import HeaderTable

from services.mesh.rpc.http2.frames import (
    COMPRESSION_ERROR,
    PROTOCOL_ERROR,
    BrokenConnection,
    BrokenStream,
)

Metadata = tuple[tuple[str, str | bytes], ...]

#: All names and values of one block, as RFC 9113 counts them (32 bytes around each).
MAX_LIST_BYTES: Final = 16 * 1024
#: Beyond this a block is not even read to its end, and its connection with it: then both sides
#: have different tables.
_MOST_LIST_BYTES: Final = 4 * MAX_LIST_BYTES
_AROUND_BYTES: Final = 32
#: Blocks that are remembered per connection, and up to which size.
_KNOWN_BLOCKS: Final = 64
_KNOWN_BYTES: Final = 512
#: And what it means: short blocks may stand for long headers.
_KNOWN_SIZE: Final = 2048

_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
#: What belongs to the transport and is none of the handler's business.
_OWN: Final = frozenset(
    {
        "content-type",
        "te",
        "grpc-timeout",
        "grpc-encoding",
        "grpc-accept-encoding",
        "grpc-message-type",
    }
)
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9a-z]+").fullmatch
_BROKEN_VALUE: Final = re.compile(r"[\0\r\n]").search
_FORBIDDEN: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call asks for, by its headers."""

    method: str
    path: str
    content_type: str
    encoding: str
    #: Seconds from its arrival; None: the caller set no deadline.
    timeout: float | None
    #: What the caller added, in order.
    metadata: Metadata
    #: Of all headers, as MAX_LIST_BYTES counts them.
    size: int = 0
    #: What of it cannot be understood, in words; empty: nothing.
    problem: str = ""


class _Table(HeaderTable):
    """The peer's dynamic table, which counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]


class HeaderReader:
    """Reads the header blocks of one connection, every one in its order."""

    def __init__(self) -> None:
        self._decoder = Decoder(_MOST_LIST_BYTES)
        self._decoder.header_table = self._table = _Table()
        self._known: dict[bytes, Asked] = {}

    def request(self, block: bytes) -> Asked:
        """What a block that opens a stream asks for. BrokenStream: no request at all."""
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table.changes
        asked = to_asked(self._decoded(block))
        is_small = len(block) <= _KNOWN_BYTES and asked.size <= _KNOWN_SIZE
        if is_small and self._table.changes == before:
            if len(self._known) >= _KNOWN_BLOCKS:
                self._known.clear()
            self._known[block] = asked
        return asked

    def skip(self, block: bytes) -> None:
        """A block that nobody needs; the table must hear of it all the same."""
        self._decoded(block)

    def _decoded(self, block: bytes) -> Sequence[tuple[bytes, bytes]]:
        before = self._table.changes
        try:
            return [
                (bytes(name), bytes(value)) for name, value in self._decoder.decode(block, True)
            ]
        except HPACKError as error:
            raise BrokenConnection(COMPRESSION_ERROR, type(error).__name__) from error
        finally:
            if self._table.changes != before:
                self._known.clear()


def to_asked(headers: Iterable[tuple[bytes, bytes]]) -> Asked:
    """Sort a request's headers. BrokenStream where HTTP/2 calls them malformed."""
    pseudo: dict[str, str] = {}
    plain: list[tuple[str, str]] = []
    size = 0
    for raw_name, raw_value in headers:
        size += len(raw_name) + len(raw_value) + _AROUND_BYTES
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if _BROKEN_VALUE(value):
            raise BrokenStream(PROTOCOL_ERROR, "a header of several lines")
        if name in _PSEUDO and not plain and name not in pseudo:
            pseudo[name] = value
        elif _NAME(name) and name not in _FORBIDDEN:
            plain.append((name, value))
        else:
            raise BrokenStream(PROTOCOL_ERROR, "a header that may not be, or not there")
    if not all(pseudo.get(name) for name in (":method", ":scheme", ":path")):
        raise BrokenStream(PROTOCOL_ERROR, "a request without method, scheme or path")
    return _sorted(pseudo, plain, size)


def _sorted(pseudo: dict[str, str], plain: Sequence[tuple[str, str]], size: int) -> Asked:
    own = {name: value for name, value in plain if name in _OWN}
    problem = ""
    timeout = metadata = None
    try:
        timeout = _seconds(own.get("grpc-timeout"))
        metadata = tuple(
            (name, part)
            for name, value in plain
            if name not in _OWN
            for part in _opened(name, value)
        )
    except ValueError as error:
        problem = str(error)
    return Asked(
        method=pseudo[":method"],
        path=pseudo[":path"],
        content_type=own.get("content-type", ""),
        encoding=own.get("grpc-encoding", "identity"),
        timeout=timeout,
        metadata=metadata or (),
        size=size,
        problem=problem,
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise ValueError(f"grpc-timeout {text!r}: not up to eight digits and one of HMSmun")
    return int(found[1]) * _UNITS[found[2]]


def _opened(name: str, value: str) -> list[str] | list[bytes]:
    """As its sender had it. Binary ones of one name may have been joined on their way."""
    if not name.endswith("-bin"):
        return [value]
    try:
        parts = value.split(",")
        return [base64.b64decode(p + "=" * (-len(p) % 4), validate=True) for p in parts]
    except binascii.Error as error:
        raise ValueError(f"{name}: not base64") from error


# --- answers: literals that no table needs to know, so that they can be made beforehand


def literal(name: str, value: bytes) -> bytes:
    """A header that leaves the peer's table as it is."""
    raw = name.encode("ascii")
    return b"\0" + _length(len(raw)) + raw + _length(len(value)) + value


def _length(number: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541, 5.1)."""
    if number < 127:
        return bytes((number,))
    parts = [127]
    number -= 127
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes((*parts, number))


#: Begins a block: our table holds nothing from here on (RFC 7541, 6.3).
NO_TABLE: Final = b"\x20"
#: Answered at all; the first is `:status 200` of the static table.
BEGINNING: Final = b"\x88" + literal("content-type", b"application/grpc")
#: And ended well.
SUCCESS: Final = literal("grpc-status", b"0")


def ending(code: int, text: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> bytes:
    """The trailers of a call."""
    parts = [literal("grpc-status", str(code).encode())]
    if text:
        parts.append(literal("grpc-message", escaped(text)))
    parts.extend(literal(name, _closed(name, value)) for name, value in metadata)
    return b"".join(parts)


def http_only(status: int, **headers: str) -> bytes:
    """An answer to somebody who does not speak gRPC."""
    rest = (literal(name.replace("_", "-"), value.encode()) for name, value in headers.items())
    return literal(":status", str(status).encode()) + b"".join(rest)


def escaped(text: str) -> bytes:
    """Percent-encoded as gRPC wants it: what is printable ASCII stays."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")
    )


def _closed(name: str, value: str | bytes) -> bytes:
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return base64.b64encode(raw).rstrip(b"=") if name.endswith("-bin") else raw
