"""Messages of gRPC in a stream of bytes: five bytes of prefix before each."""

from __future__ import annotations

import zlib
from typing import Final

import grpc

PREFIX_BYTES: Final = 5
#: zlib's word for the wrapping of each encoding that is understood.
_WRAPPINGS: Final = {"gzip": 31, "deflate": 15}
ENCODINGS: Final = ("identity", *_WRAPPINGS)


class BadMessage(Exception):  # noqa: N818
    """The bytes are no message that may be handed on; the call ends with this."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def framed(message: bytes) -> bytes:
    """As it goes onto the wire, never compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Compressed(bytes):
    """A message that has to be opened first. That is left to its reader: a small one may be large
    then, and many may wait.
    """

    __slots__ = ()


class Assembler:
    """Puts the messages of one stream together, none larger than `largest`."""

    __slots__ = ("_largest", "_rest")

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._rest = bytearray()

    def drop(self) -> None:
        """What has begun will not be needed."""
        self._rest.clear()

    @property
    def is_between(self) -> bool:
        """No message has begun that is not whole."""
        return not self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """Every message that is whole now. BadMessage for what will never be one."""
        rest = self._rest
        if not rest and len(data) >= PREFIX_BYTES and not data[0]:
            # Nearly always: one message in one piece.
            size = int.from_bytes(data[1:PREFIX_BYTES], "big")
            if size == len(data) - PREFIX_BYTES and size <= self._largest:
                return [data[PREFIX_BYTES:]]
        rest += data
        messages: list[bytes] = []
        at = 0
        while len(rest) - at >= PREFIX_BYTES:
            begin = at + PREFIX_BYTES
            size = int.from_bytes(rest[at + 1 : begin], "big")
            if rest[at] > 1:
                raise BadMessage(grpc.StatusCode.INTERNAL, f"a message with the flag {rest[at]}")
            if size > self._largest:
                raise too_large(size, self._largest)
            if len(rest) < begin + size:
                break
            message = bytes(rest[begin : begin + size])
            messages.append(Compressed(message) if rest[at] else message)
            at = begin + size
        del rest[:at]
        return messages


def opened(message: bytes, encoding: str, largest: int) -> bytes:
    """A message as its sender had it, and no more than `largest` bytes of it."""
    if type(message) is not Compressed:
        return message
    wrapping = _WRAPPINGS.get(encoding)
    if wrapping is None:
        text = f"a compressed message, but grpc-encoding is {encoding!r}"
        raise BadMessage(grpc.StatusCode.INTERNAL, text)
    inflater = zlib.decompressobj(wrapping)
    try:
        plain = inflater.decompress(message, largest + 1)
    except zlib.error as error:
        text = f"a message that {encoding} cannot open: {error}"
        raise BadMessage(grpc.StatusCode.INTERNAL, text) from error
    if len(plain) > largest:
        raise too_large(len(plain), largest)
    if not inflater.eof or inflater.unused_data:
        raise BadMessage(grpc.StatusCode.INTERNAL, f"a message that {encoding} ends elsewhere")
    return plain


def too_large(size: int, largest: int) -> BadMessage:
    text = f"received message larger than max ({size} vs. {largest})"
    return BadMessage(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
