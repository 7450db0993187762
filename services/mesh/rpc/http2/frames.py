"""Frames of HTTP/2: bytes to frames and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Of length, kind, flags and stream, before each payload.
HEAD_BYTES: Final = 9

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

#: What both sides begin with, until they say otherwise.
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
DEFAULT_TABLE: Final = 4_096
LARGEST_WINDOW: Final = 2**31 - 1
LARGEST_FRAME: Final = 2**24 - 1

#: Payloads that have one size only.
PRIORITY_BYTES: Final = 5
RESET_BYTES: Final = 4
PING_BYTES: Final = 8
WINDOW_UPDATE_BYTES: Final = 4

#: In one frame: each of those that are known may change every stream there is.
_MOST_SETTINGS: Final = 32
#: Of a reason in words.
_TEXT_BYTES: Final = 256

Frame = tuple[int, int, int, bytes]


class BrokenConnection(Exception):  # noqa: N818 - named by what it means
    """The peer broke a rule after which nothing it says can be trusted."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class BrokenStream(Exception):  # noqa: N818
    """The peer broke a rule of one stream; the others go on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def settings(values: dict[int, int]) -> bytes:
    pairs = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def parse_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    if len(payload) % 6:
        raise BrokenConnection(FRAME_SIZE_ERROR, "settings are no pairs of name and value")
    if len(payload) > 6 * _MOST_SETTINGS:
        raise BrokenConnection(ENHANCE_YOUR_CALM, "more settings than there are")
    for at in range(0, len(payload), 6):
        name = int.from_bytes(payload[at : at + 2], "big")
        yield name, int.from_bytes(payload[at + 2 : at + 6], "big")


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    head = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big")
    return frame(GOAWAY, 0, 0, head + text.encode()[:_TEXT_BYTES])


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of DATA or HEADERS without the padding it may have."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenConnection(PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


class FrameReader:
    """Takes the bytes of a connection apart; what is not whole yet waits for the rest."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._rest = bytearray()
        #: Bytes from which on the rest may be a frame.
        self._wanted = HEAD_BYTES

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that is whole now: kind, flags, stream, payload."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
        at, end = 0, len(data)
        self._wanted = HEAD_BYTES
        try:
            while end - at >= HEAD_BYTES:
                size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                if size > self._largest:
                    raise BrokenConnection(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                begin = at + HEAD_BYTES
                if begin + size > end:
                    self._wanted = HEAD_BYTES + size
                    break
                kind, flags = data[at + 3], data[at + 4]
                stream = int.from_bytes(data[at + 5 : begin], "big") & 0x7FFFFFFF
                at = begin + size
                yield kind, flags, stream, data[begin:at]
        finally:
            self._rest = bytearray(data[at:])
