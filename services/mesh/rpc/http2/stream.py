"""One call as bytes: its windows of flow control, what waits to be read, what waits to be sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from services.mesh.rpc.http2.frames import FLOW_CONTROL_ERROR, LARGEST_WINDOW, BrokenStream
from services.mesh.rpc.http2.messages import PREFIX_BYTES, Assembler

if TYPE_CHECKING:
    from services.mesh.rpc.http2.call import Call

#: Bytes of requests that a stream may have unread. More only for one message that is larger.
WINDOW: Final = 256 * 1024
#: Read bytes are given back to the sender in pieces no smaller than this.
_CREDIT: Final = WINDOW // 4
#: Of memory, that a message takes besides its bytes while it waits: many small ones take much.
MESSAGE_BYTES: Final = 96


class Stream:
    """Both directions of one stream; says what to tell the peer, and sends nothing by itself."""

    __slots__ = (
        "_assembler",
        "_credit",
        "_parts",
        "_unread",
        "_window_in",
        "call",
        "has_ended",
        "has_spoken",
        "held",
        "id",
        "messages",
        "peer_has_ended",
        "trailers",
        "waiting_bytes",
        "window",
    )

    def __init__(self, id_: int, window: int, largest_message: int) -> None:
        self.id = id_
        self.call: Call | None = None
        #: Nothing more comes from the peer; nothing more goes to it.
        self.peer_has_ended = self.has_ended = False
        #: Something of its requests came.
        self.has_spoken = False
        # --- in
        self.messages: deque[bytes] = deque()
        #: Memory of what came and was not read yet, whole messages and what has begun of one.
        self.held = 0
        self._assembler = Assembler(largest_message)
        self._window_in = WINDOW
        self._unread = self._credit = 0
        # --- out
        self.window = window
        self.waiting_bytes = 0
        #: What ends the stream, once all that waits has gone.
        self.trailers: bytes | None = None
        self._parts: deque[bytes | memoryview] = deque()

    # --- in

    def receive(self, data: bytes, size: int) -> int:
        """Take in `data`, for which `size` bytes of the window were used. Returns what to credit.

        BadMessage if it is no message; BrokenStream if the sender had no room for it.
        """
        self._window_in -= size
        if self._window_in < 0:
            raise BrokenStream(FLOW_CONTROL_ERROR, "more than the window had room for")
        self._unread += size
        self.held += len(data)
        messages = self._assembler.feed(data)
        self.messages.extend(messages)
        self.held += MESSAGE_BYTES * len(messages)
        # What has begun is let come to its end: it is bounded, and somebody waits for it.
        return 0 if self.messages else self._credited(self._unread)

    def read(self) -> tuple[bytes, int]:
        """The next message, which must be there, and what to credit."""
        message = self.messages.popleft()
        size = len(message) + PREFIX_BYTES
        self.held -= size + MESSAGE_BYTES
        # Some of it may have been credited while it came.
        return message, self._credited(min(size, self._unread) if self.messages else self._unread)

    def _credited(self, size: int) -> int:
        self._unread -= size
        self._credit += size
        if self._credit < _CREDIT or self.peer_has_ended:
            return 0
        credit, self._credit = self._credit, 0
        self._window_in += credit
        return credit

    @property
    def is_answered(self) -> bool:
        """Nothing that still comes is of any use."""
        return self.trailers is not None or self.has_ended

    @property
    def is_cut(self) -> bool:
        """The bytes that came end within a message."""
        return not self._assembler.is_between

    # --- out

    def put(self, data: bytes) -> None:
        self._parts.append(data)
        self.waiting_bytes += len(data)

    def take(self, most: int) -> bytes:
        """The next bytes to send, up to `most`."""
        whole = self._parts.popleft()
        if len(whole) > most:
            view = memoryview(whole)
            self._parts.appendleft(view[most:])
            whole = view[:most]
        part = bytes(whole)
        self.waiting_bytes -= len(part)
        self.window -= len(part)
        return part

    def widen(self, size: int) -> None:
        """The peer has room for more, or, by a change of its settings, for less."""
        self.window += size
        if self.window > LARGEST_WINDOW:
            raise BrokenStream(FLOW_CONTROL_ERROR, "a window beyond what fits into 31 bits")

    def drop(self) -> None:
        """Nothing of it will be read or sent any more."""
        self.messages.clear()
        self._assembler.drop()
        self._parts.clear()
        self.waiting_bytes = self.held = 0
