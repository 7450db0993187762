"""What comes in on one connection: which frames may come when, and what each means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.frames import BrokenConnection, BrokenStream, FrameReader, frame
from services.mesh.rpc.http2.headers import MAX_LIST_BYTES, HeaderReader
from services.mesh.rpc.http2.stream import WINDOW, Stream

if TYPE_CHECKING:
    from services.mesh.rpc.http2.connection import Connection

#: Bytes of requests under way on the connection. What streams hold unread is bounded by theirs.
CONNECTION_WINDOW: Final = 4 * 1024 * 1024
#: A header block in pieces, before it is opened.
_BLOCK_BYTES: Final = 2 * MAX_LIST_BYTES
_BLOCK_PIECES: Final = 16
#: Frames that only cost, between two looks of the upkeep.
_IDLE_TALK: Final = 50_000


class Receiver:
    """Takes the bytes of a peer, holds it to the rules, and tells its connection what it wants.

    BrokenConnection out of `feed`: the peer broke a rule, and cannot be understood any more.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sender = connection, connection.sender
        self.has_greeted = False
        #: The latest that the peer opened.
        self.last_stream = 0
        #: Frames that only cost since the upkeep last looked.
        self.idle_talk = 0
        self._frames = FrameReader(WINDOW)
        self._headers = HeaderReader()
        self._greeting = b""
        self._has_settings = False
        #: The header block that has not come to its end: stream, flags, pieces.
        self._block: tuple[int, int, list[bytes]] | None = None
        self._window = CONNECTION_WINDOW
        self._credit = 0
        self._takers: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_reset,
            self._on_settings,
            self._on_push,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    def feed(self, data: bytes) -> None:
        if not self.has_greeted:
            data = self._greeted(data)
        for kind, flags, stream, payload in self._frames.feed(data):
            self._take(kind, flags, stream, payload)

    def _greeted(self, data: bytes) -> bytes:
        """What follows the greeting; nothing as long as it is not whole."""
        self._greeting += data
        size = len(h2.PREFACE)
        if self._greeting[:size] != h2.PREFACE[: len(self._greeting)]:
            self._connection.refuse_http1()
            return b""
        if len(self._greeting) < size:
            return b""
        self.has_greeted = True
        self._connection.greet()
        rest, self._greeting = self._greeting[size:], b""
        return rest

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and kind != h2.CONTINUATION:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a frame within a header block")
        if not self._has_settings and kind != h2.SETTINGS:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a greeting without settings")
        if kind >= len(self._takers):
            self._talk()  # an extension of the protocol, which is to be ignored
            return
        try:
            self._takers[kind](flags, stream, payload)
        except BrokenStream as error:
            self._talk()
            self._connection.refuse(stream, error.code)

    def _talk(self, cost: int = 1) -> None:
        """Count a frame that carries nothing, or what it costs in such frames."""
        self.idle_talk += cost
        if self.idle_talk > _IDLE_TALK:
            raise BrokenConnection(h2.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _stream(self, id_: int) -> Stream | None:
        """A stream that is or was; None: it is over, which its peer may not know yet."""
        if not 0 < id_ <= self.last_stream:
            raise BrokenConnection(h2.PROTOCOL_ERROR, f"stream {id_} was not opened")
        return self._connection.streams.get(id_)

    # --- requests

    def _on_data(self, flags: int, id_: int, payload: bytes) -> None:
        size = len(payload)
        self._count_in(size)
        stream = self._stream(id_)
        if stream is None:
            self._talk()
            return
        if not stream.has_spoken:
            stream.has_spoken = True
            if stream.trailers is not None:
                self._sender.pump(stream)  # its end has waited for this
        if stream.is_answered:
            return
        if stream.peer_has_ended:
            raise BrokenStream(h2.STREAM_CLOSED, "data after the end")
        payload = h2.unpadded(flags, payload)
        if flags & h2.END_STREAM:
            stream.peer_has_ended = True
        elif not payload:
            self._talk()
        self._connection.receive(stream, payload, size)

    def _count_in(self, size: int) -> None:
        """Give the window of the connection back at once: streams hold back who is too fast."""
        self._window -= size
        self._credit += size
        if self._window < 0:
            raise BrokenConnection(h2.FLOW_CONTROL_ERROR, "more than the window had room for")
        if self._credit > CONNECTION_WINDOW // 4:
            self._sender.write(h2.window_update(0, self._credit))
            self._window += self._credit
            self._credit = 0

    def _on_headers(self, flags: int, id_: int, payload: bytes) -> None:
        if not id_ & 1:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "headers of a stream no client may open")
        payload = h2.unpadded(flags, payload)
        if flags & h2.WITH_PRIORITY:
            if len(payload) < h2.PRIORITY_BYTES:
                raise BrokenConnection(h2.FRAME_SIZE_ERROR, "headers without their priority")
            payload = payload[h2.PRIORITY_BYTES :]
        if flags & h2.END_HEADERS:
            self._on_block(id_, flags, payload)
        else:
            self._block = (id_, flags, [payload])

    def _on_continuation(self, flags: int, id_: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != id_:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a continuation of nothing")
        _, first_flags, pieces = self._block
        pieces.append(payload)
        if len(pieces) > _BLOCK_PIECES or sum(map(len, pieces)) > _BLOCK_BYTES:
            raise BrokenConnection(h2.ENHANCE_YOUR_CALM, "headers without end")
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_block(id_, first_flags, b"".join(pieces))

    def _on_block(self, id_: int, flags: int, block: bytes) -> None:
        if len(block) > _BLOCK_BYTES:
            raise BrokenConnection(h2.ENHANCE_YOUR_CALM, "headers beyond all measure")
        if id_ <= self.last_stream:
            self._headers.skip(block)
            self._on_trailers(id_, flags)
            return
        self.last_stream = id_
        asked = self._headers.request(block)
        self._connection.open(id_, asked, is_whole=bool(flags & h2.END_STREAM))

    def _on_trailers(self, id_: int, flags: int) -> None:
        """Headers on a stream that is open already: all they can do is end it."""
        stream = self._connection.streams.get(id_)
        if stream is None or stream.is_answered:
            self._talk()
            return
        if stream.peer_has_ended or not flags & h2.END_STREAM:
            raise BrokenStream(h2.PROTOCOL_ERROR, "headers in the middle of a stream")
        self._connection.close_in(stream)

    def _on_reset(self, flags: int, id_: int, payload: bytes) -> None:
        self._talk()
        if len(payload) != h2.RESET_BYTES:
            raise BrokenConnection(h2.FRAME_SIZE_ERROR, "a reset without its reason")
        stream = self._stream(id_)
        if stream is not None:
            self._connection.lose(stream)

    # --- talk between the two connections

    def _on_priority(self, flags: int, id_: int, payload: bytes) -> None:
        self._talk()
        if not id_:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a priority of no stream")
        if len(payload) != h2.PRIORITY_BYTES:
            raise BrokenStream(h2.FRAME_SIZE_ERROR, "a priority of another size")

    def _on_settings(self, flags: int, id_: int, payload: bytes) -> None:
        self._talk()
        if id_:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "settings of a stream")
        if flags & h2.ACK:
            if payload:
                raise BrokenConnection(h2.FRAME_SIZE_ERROR, "an answer that sets something")
            return
        self._has_settings = True
        resized: list[Stream] = []
        for name, value in h2.parse_settings(payload):
            if name == h2.INITIAL_WINDOW_SIZE:
                resized = list(self._connection.streams.values())
                self._talk(len(resized))
                self._sender.resize_windows(value, resized)
            elif name == h2.MAX_FRAME_SIZE:
                self._sender.resize_frames(value)
            elif name == h2.HEADER_TABLE_SIZE:
                self._sender.resize_table(value)
            elif name == h2.ENABLE_PUSH and value > 1:
                raise BrokenConnection(h2.PROTOCOL_ERROR, "pushes are neither on nor off")
        self._sender.write(frame(h2.SETTINGS, h2.ACK, 0))
        for stream in resized:
            self._make_use(stream)

    def _on_push(self, flags: int, id_: int, payload: bytes) -> None:
        raise BrokenConnection(h2.PROTOCOL_ERROR, "a client does not push")

    def _on_ping(self, flags: int, id_: int, payload: bytes) -> None:
        self._talk()
        if id_:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != h2.PING_BYTES:
            raise BrokenConnection(h2.FRAME_SIZE_ERROR, "a ping of another size")
        if not flags & h2.ACK:
            self._sender.write(frame(h2.PING, h2.ACK, 0, payload))
            return
        self._connection.hear_answer(payload)

    def _on_goaway(self, flags: int, id_: int, payload: bytes) -> None:
        self._talk()  # what it has under way is answered; it will close the connection

    def _on_window_update(self, flags: int, id_: int, payload: bytes) -> None:
        if len(payload) != h2.WINDOW_UPDATE_BYTES:
            raise BrokenConnection(h2.FRAME_SIZE_ERROR, "a window of another size")
        size = int.from_bytes(payload, "big") & h2.LARGEST_WINDOW
        if id_:
            stream = self._stream(id_)
            if not size:
                raise BrokenStream(h2.PROTOCOL_ERROR, "a window that does not grow")
            if stream is not None:
                stream.widen(size)
                self._make_use(stream)
        elif size:
            self._sender.widen(size)
        else:
            raise BrokenConnection(h2.PROTOCOL_ERROR, "a window that does not grow")

    def _make_use(self, stream: Stream) -> None:
        """Of more room. What waits for something else than room goes on waiting."""
        if stream.waiting_bytes:
            self._sender.pump(stream)
