"""A raw peer of the HTTP/2 listener, which can break every rule.

The peer does nothing by itself: it acknowledges nothing, grants no windows, and reads only when it
is asked for what came. `settled` is how a test knows that all it sent has been looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.messages import framed

#: A test that waits longer for an answer has failed.
PATIENCE_SECONDS = 5.0
Header = tuple[str, str]


def call_headers(path: str, *more: Header) -> list[Header]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]


@dataclass
class Answer:
    """What came of one stream."""

    blocks: list[dict[str, str]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    reset: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {name: value for block in self.blocks for name, value in block.items()}

    @property
    def status(self) -> int | None:
        """gRPC's, or None if it was not told."""
        text = self.headers.get("grpc-status")
        return None if text is None else int(text)

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at + 5 <= len(self.data):
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            if at + 5 + size > len(self.data):
                break
            found.append(bytes(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        return found


class Peer:
    """One connection as its client's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = h2.FrameReader(h2.LARGEST_FRAME)
        self._came: deque[h2.Frame] = deque()
        self._block: tuple[int, bytes] | None = None
        self._pings = 0
        self.encoder, self.decoder = Encoder(), Decoder(2**20)
        #: Every frame that was read, in order.
        self.seen: list[h2.Frame] = []
        self.answers: dict[int, Answer] = {}
        #: What the windows of a stream and of the connection were widened by.
        self.granted: dict[int, int] = {}

    @classmethod
    async def connect(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def greeted(cls, port: int, **settings: int) -> Peer:
        """Connected, with greetings exchanged; settings by their names in `frames`."""
        peer = await cls.connect(port)
        values = {getattr(h2, name.upper()): value for name, value in settings.items()}
        peer.raw(h2.PREFACE + h2.settings(values))
        await peer.until(h2.SETTINGS, flags=h2.ACK)
        return peer

    # --- what it says

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def dribble(self, data: bytes, size: int = 1) -> None:
        """Each piece by itself; the loop has several turns to carry it over."""
        for at in range(0, len(data), size):
            self.raw(data[at : at + size])
            for _ in range(3):
                await asyncio.sleep(0)

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        self.raw(h2.frame(kind, flags, stream, payload))

    def settings(self, **values: int) -> None:
        self.raw(h2.settings({getattr(h2, name.upper()): each for name, each in values.items()}))

    def block(self, headers: Iterable[Header]) -> bytes:
        encoded: bytes = self.encoder.encode(list(headers))
        return encoded

    def open(self, stream: int, path: str, *more: Header, end: bool = False) -> None:
        """Begin a call."""
        flags = h2.END_HEADERS | (h2.END_STREAM if end else 0)
        self.send(h2.HEADERS, flags, stream, self.block(call_headers(path, *more)))

    def data(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        self.send(h2.DATA, h2.END_STREAM if end else 0, stream, payload)

    def say(self, stream: int, *messages: bytes, end: bool = False) -> None:
        """Whole messages, each in frames of 16 KiB, whatever the window."""
        payload = b"".join(map(framed, messages))
        pieces = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
        for piece in pieces[:-1]:
            self.data(stream, piece)
        self.data(stream, pieces[-1], end=end)

    def ask(self, stream: int, path: str, *messages: bytes, headers: Iterable[Header] = ()) -> None:
        """A whole call."""
        self.open(stream, path, *headers)
        self.say(stream, *messages, end=True)

    def grant(self, stream: int, size: int) -> None:
        self.raw(h2.window_update(stream, size))

    def reset(self, stream: int, code: int = h2.CANCEL) -> None:
        self.raw(h2.reset(stream, code))

    # --- what it hears

    async def next(self) -> h2.Frame | None:
        """The next frame, or None at the end of the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._came:
                data = await self._received()
                if not data:
                    return None
                self._came.extend(self._frames.feed(data))
        found = self._came.popleft()
        self.seen.append(found)
        self._note(*found)
        return found

    async def _received(self) -> bytes:
        try:
            return await self._reader.read(65536)
        except ConnectionError:
            return b""

    async def until(
        self, kind: int, stream: int | None = None, flags: int = 0, payload: bytes | None = None
    ) -> bytes:
        """Read on to such a frame; returns its payload."""
        while (found := await self.next()) is not None:
            if found[0] != kind or found[1] & flags != flags:
                continue
            if stream in (None, found[2]) and payload in (None, found[3]):
                return found[3]
        raise AssertionError(f"the connection ended before a frame of kind {kind}: {self.seen}")

    async def settled(self) -> None:
        """Everything that was sent has been looked at."""
        self._pings += 1
        mark = b"mark%04d" % self._pings
        self.send(h2.PING, payload=mark)
        await self.until(h2.PING, flags=h2.ACK, payload=mark)

    async def answer(self, stream: int) -> Answer:
        """The answer, once it is whole: ended with all headers, or reset."""
        while not (answer := self.of(stream)).has_ended and answer.reset is None:
            if await self.next() is None:
                raise AssertionError(f"the connection ended before stream {stream}: {self.seen}")
        return answer

    async def responses(self, stream: int, count: int) -> list[bytes]:
        """The first so many messages of a stream."""
        while len(found := self.of(stream).messages) < count:
            if await self.next() is None:
                raise AssertionError(f"the connection ended with {len(found)} of {count} messages")
        return found

    async def goaway(self) -> tuple[int, int]:
        """The next one's last stream and code."""
        last, code = struct.unpack(">II", (await self.until(h2.GOAWAY))[:8])
        return last, code

    async def over(self) -> list[h2.Frame]:
        """All that came, once the listener hung up."""
        while await self.next() is not None:
            pass
        return self.seen

    def of(self, stream: int) -> Answer:
        return self.answers.setdefault(stream, Answer())

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.DATA:
            self.of(stream).data += payload
        elif kind in (h2.HEADERS, h2.CONTINUATION):
            self._note_block(flags, stream, payload)
        elif kind == h2.RST_STREAM:
            self.of(stream).reset = int.from_bytes(payload, "big")
        elif kind == h2.WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            self.granted[stream] = self.granted.get(stream, 0) + size
        if kind in (h2.DATA, h2.HEADERS) and flags & h2.END_STREAM and self._block is None:
            self.of(stream).has_ended = True

    def _note_block(self, flags: int, stream: int, payload: bytes) -> None:
        """Ends of a stream may stand in a HEADERS frame that CONTINUATIONs follow."""
        first_flags, begun = (flags, b"") if self._block is None else self._block
        if not flags & h2.END_HEADERS:
            self._block = (first_flags, begun + payload)
            return
        self._block = None
        headers = self.decoder.decode(begun + payload)
        self.of(stream).blocks.append({str(name): str(value) for name, value in headers})
        if first_flags & h2.END_STREAM:
            self.of(stream).has_ended = True

    # --- its end

    def shut(self) -> None:
        """Say that no more will come, in TCP's words."""
        self._writer.write_eof()

    def vanish(self) -> None:
        """Gone, without a goodbye."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
