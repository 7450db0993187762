"""What goes out on one connection: windows of flow control, and all of a turn in one write."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Final

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.frames import BrokenConnection, BrokenStream, frame
from services.mesh.rpc.http2.headers import BEGINNING, NO_TABLE
from services.mesh.rpc.http2.messages import framed
from services.mesh.rpc.http2.stream import Stream

#: What may wait for the network before writers have to.
_BUFFER_BYTES: Final = 256 * 1024
#: Of one frame, whatever the peer allows: others wait behind it, and the network takes it whole.
_FRAME_BYTES: Final = 64 * 1024
#: For the peer to hang up after we did.
_LINGER_SECONDS: Final = 1.0


class Sender:
    """Sends frames as the peer and the network have room.

    `on_finished` is told of each stream whose last frame has gone.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_finished: Callable[[Stream], None]
    ) -> None:
        self._loop, self._on_finished = loop, on_finished
        self._transport: asyncio.Transport | None = None
        #: Nothing is sent any more.
        self.is_closing = False
        self._is_paused = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._window = h2.DEFAULT_WINDOW
        #: That streams begin with.
        self.stream_window = h2.DEFAULT_WINDOW
        self._frame_bytes = h2.DEFAULT_FRAME
        #: What the next header block has to begin with.
        self._foreword = b""
        #: Of answers that the peer has no room for.
        self.waiting_bytes = 0
        #: Streams that have something to send, but the connection has no room, in turn.
        self._starved: dict[int, Stream] = {}

    # --- the network

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def lose(self) -> None:
        """There is no network any more."""
        self._transport = None
        self._out.clear()
        self._starved.clear()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.feed_starved()

    def write(self, data: bytes) -> None:
        """With everything else of this turn of the loop."""
        if self._transport is None or self.is_closing:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > _BUFFER_BYTES:
            self._flush()  # the network says now whether it has room for more

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    def say_instead(self, words: bytes) -> None:
        """To who does not speak HTTP/2; nothing else that was written is of any use to it."""
        self._out[:] = [words]
        self.close()

    def close(self) -> None:
        """Send what was written, and go when the peer goes: what it still sends would make the
        kernel throw away what it has not read.
        """
        self._flush()
        transport = self._transport
        if transport is None or self.is_closing:
            return
        self.is_closing = True
        self._linger(transport, _underway(transport) + 1)
        try:
            if transport.can_write_eof():
                transport.write_eof()
        except (OSError, RuntimeError):  # the peer has hung up before us
            transport.abort()

    def _linger(self, transport: asyncio.Transport, unsent: int) -> None:
        """Wait for the peer as long as it takes in something."""
        if self._transport is None:
            return
        left = _underway(transport)
        if left and left >= unsent:
            transport.abort()
        elif left or unsent:
            if not left and not transport.can_write_eof():
                # TLS has a goodbye of its own. What the peer says after that breaks the connection,
                # so it comes when there is nothing left to break.
                transport.close()
            self._loop.call_later(_LINGER_SECONDS, self._linger, transport, left)
        else:
            transport.abort()

    def abort(self) -> None:
        """The peer is gone, and will not read what we have to say."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # --- what the peer has room for

    def widen(self, size: int) -> None:
        """The window of the connection."""
        self._window += size
        if self._window > h2.LARGEST_WINDOW:
            raise BrokenConnection(h2.FLOW_CONTROL_ERROR, "a window beyond 31 bits")
        self.feed_starved()

    def resize_windows(self, size: int, streams: list[Stream]) -> None:
        """Of all streams, those that are open as well. What they have room for then is not sent
        yet: the peer holds to the old windows until it has heard that we know the new ones.
        """
        if size > h2.LARGEST_WINDOW:
            raise BrokenConnection(h2.FLOW_CONTROL_ERROR, "windows beyond 31 bits")
        try:
            for stream in streams:
                stream.widen(size - self.stream_window)
        except BrokenStream as error:
            raise BrokenConnection(error.code, error.text) from error
        self.stream_window = size

    def resize_frames(self, size: int) -> None:
        if not h2.DEFAULT_FRAME <= size <= h2.LARGEST_FRAME:
            raise BrokenConnection(h2.PROTOCOL_ERROR, f"frames of {size} bytes")
        self._frame_bytes = min(size, _FRAME_BYTES)

    def resize_table(self, size: int) -> None:
        """Of headers. We use none, but who makes its own smaller waits to hear that ours is, at the
        beginning of the next block, and may break off if it does not.
        """
        if size < h2.DEFAULT_TABLE:
            self._foreword = NO_TABLE

    # --- streams

    def begin(self, stream: Stream) -> None:
        self.write(frame(h2.HEADERS, h2.END_HEADERS, stream.id, self._foreworded(BEGINNING)))

    def send(self, stream: Stream, message: bytes) -> None:
        data = framed(message)
        self.waiting_bytes += len(data)
        stream.put(data)
        self.pump(stream)

    def pump(self, stream: Stream) -> None:
        """Send of a stream what there is room for, and its end after it."""
        while stream.waiting_bytes:
            if stream.window <= 0:
                return  # its own window brings it back
            room = min(self._window, stream.window, self._frame_bytes)
            if room <= 0 or self._is_paused:
                self._starved[stream.id] = stream
                return
            part = stream.take(room)
            self._window -= len(part)
            self.waiting_bytes -= len(part)
            self.write(frame(h2.DATA, 0, stream.id, part))
        if stream.trailers is not None:
            self._finish(stream, stream.trailers)
        elif stream.call is not None:
            stream.call.wake_writer()

    def feed_starved(self) -> None:
        for _ in range(len(self._starved)):
            if self._window <= 0 or self._is_paused:
                return
            # Who gets no end of it waits behind the others.
            self.pump(self._starved.pop(next(iter(self._starved))))

    def forget(self, stream: Stream) -> None:
        self.waiting_bytes -= stream.waiting_bytes
        self._starved.pop(stream.id, None)

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        if stream.has_ended:
            return
        self._write_block(stream.id, trailers)
        stream.has_ended = True
        if stream.call is not None:
            stream.call.wake_writer()
        if not stream.peer_has_ended:
            self.write(h2.reset(stream.id, h2.NO_ERROR))  # it need not send the rest
        self._on_finished(stream)

    def _write_block(self, id_: int, block: bytes) -> None:
        """Headers that end a stream, in as many frames as they need."""
        block = self._foreworded(block)
        size = self._frame_bytes
        pieces = [block[at : at + size] for at in range(0, len(block), size)]
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            kind = h2.CONTINUATION if number else h2.HEADERS
            flags = (0 if number else h2.END_STREAM) | (h2.END_HEADERS if number == last else 0)
            self.write(frame(kind, flags, id_, piece))

    def _foreworded(self, block: bytes) -> bytes:
        if self._foreword:
            block, self._foreword = self._foreword + block, b""
        return block


def _underway(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not taken in, those that the kernel holds for it included: what is
    left of them is lost if it still speaks after we are gone.
    """
    waiting = transport.get_write_buffer_size()
    endpoint = transport.get_extra_info("socket")
    try:
        held = fcntl.ioctl(-1 if endpoint is None else endpoint, termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # closed, or not to be asked here
        return waiting
    return waiting + int(struct.unpack("i", held)[0])
