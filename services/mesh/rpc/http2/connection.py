"""One peer: its calls from their beginning to their end, and the end of the connection."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any, Final, cast

import grpc

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.call import Call
from services.mesh.rpc.http2.frames import BrokenConnection, BrokenStream, frame
from services.mesh.rpc.http2.headers import (
    BEGINNING,
    MAX_LIST_BYTES,
    SUCCESS,
    Asked,
)
from services.mesh.rpc.http2.messages import BadMessage
from services.mesh.rpc.http2.receiving import CONNECTION_WINDOW, Receiver
from services.mesh.rpc.http2.refusals import NOT_HTTP2, refusal_of
from services.mesh.rpc.http2.sending import Sender
from services.mesh.rpc.http2.serving import Serving
from services.mesh.rpc.http2.stream import WINDOW, Stream

log = logging.getLogger("services.mesh.rpc")

#: Of all requests of a peer that are not whole or not read yet; one more is refused.
_MOST_HELD: Final = 64 * 1024 * 1024
#: Of all answers that a peer has no room for; who asks for more of them gets none.
_MOST_WAITING: Final = 64 * 1024 * 1024
#: Of pings: whether somebody is there, and whether everything before a goaway has come.
_WORD: Final = b"jobmesh?"
_LAST_WORD: Final = b"goodbye?"
#: After a goaway, until calls that were on their way have come, if no answer says so.
_DRAIN_SECONDS: Final = 1.0
#: For the first request of a stream that is refused as it opens.
_FIRST_WORDS_SECONDS: Final = 0.05


class Connection(asyncio.Protocol):
    """The protocol of one accepted connection."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.loop, self.deadlines = serving.loop, serving.deadlines
        self.largest_message, self.largest_sent = serving.largest_message, serving.largest_sent
        self.streams: dict[int, Stream] = {}
        self.sender = Sender(self.loop, self._on_finished)
        self.began = self.heard = self.loop.time()
        #: Where no call is under way.
        self.idle_since = self.began
        #: Of the age that connections may have: those that began at once shall not end at once.
        self.share_of_age = random.uniform(0.9, 1.1)
        #: Memory of all requests that are not whole or not read yet.
        self.held = 0
        #: When the ping that has no answer yet was sent.
        self.pinged: float | None = None
        self.drained: float | None = None
        #: No stream begins any more.
        self._is_closed_to_new = False
        #: The latest stream that the peer may take for begun; never a later one than said before.
        self._last_taken = h2.LARGEST_WINDOW
        self.receiver = Receiver(self)

    # --- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sender.open(cast(asyncio.Transport, transport))
        self._serving.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.heard = self.loop.time()
        if self.sender.is_closing:
            return
        try:
            self.receiver.feed(data)
        except BrokenConnection as error:
            self._break_off(error)
        except Exception:
            log.exception("a connection failed", extra={"action": "http2_defect"})
            self._break_off(BrokenConnection(h2.INTERNAL_ERROR, "a defect of the server"))

    def pause_writing(self) -> None:
        self.sender.pause()

    def resume_writing(self) -> None:
        self.sender.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self.sender.lose()
        self._serving.leave(self)
        self._lose_all()

    # --- what the peer wants

    def greet(self) -> None:
        """Say what we bear. Not before the peer has: it may not speak HTTP/2 at all."""
        ours = {
            h2.MAX_CONCURRENT_STREAMS: self._serving.most_streams,
            h2.INITIAL_WINDOW_SIZE: WINDOW,
            h2.MAX_FRAME_SIZE: WINDOW,
            h2.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
        }
        self.sender.write(h2.settings(ours))
        self.sender.write(h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW))

    def open(self, id_: int, asked: Asked, *, is_whole: bool) -> None:
        """A call begins; `is_whole`: no request will follow."""
        # Calls that were given up count until their handlers have ended: nobody opens and resets
        # faster than we end.
        if self._is_closed_to_new or len(self.streams) >= self._serving.most_streams:
            raise BrokenStream(h2.REFUSED_STREAM, "no room for one more")
        stream = Stream(id_, self.sender.stream_window, self.largest_message)
        stream.peer_has_ended = stream.has_spoken = is_whole
        self.streams[id_] = stream
        self._begin(stream, asked)
        if is_whole:
            self.close_in(stream)

    def _begin(self, stream: Stream, asked: Asked) -> None:
        handler = self._serving.find(asked.path)
        stream.call = call = Call(self, stream, asked, handler)
        refusal = refusal_of(asked, handler is not None)
        if refusal is None:
            if call.deadline is not None:
                self.deadlines.add(call)
            if handler.request_streaming:
                call.start()
        elif refusal.http is None:
            call.end(refusal.code, refusal.text, refusal.metadata)
        else:
            stream.trailers = refusal.http
            self.sender.pump(stream)

    def receive(self, stream: Stream, payload: bytes, size: int) -> None:
        """Bytes of its requests, for which `size` of its window was used."""
        call = stream.call
        assert call is not None
        held = stream.held
        try:
            credit = stream.receive(payload, size)
        except BadMessage as error:
            self.held += stream.held - held
            call.fail(error.code, error.text)
            return
        self.held += stream.held - held
        if self.held > _MOST_HELD:
            call.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many of your requests are unread")
            return
        if credit:
            self.sender.write(h2.window_update(stream.id, credit))
        if stream.peer_has_ended:
            self._on_end(stream, call)
        elif stream.messages:
            call.wake_reader()

    def _on_end(self, stream: Stream, call: Call) -> None:
        """No more requests will come: that of a single one is whole."""
        if stream.is_cut:
            call.fail(grpc.StatusCode.INTERNAL, "the stream ended within a message")
        elif not call.is_new:
            call.wake_reader()
        elif len(stream.messages) == 1:
            call.start()
        else:
            text = f"{len(stream.messages)} requests where one belongs"
            call.fail(grpc.StatusCode.UNIMPLEMENTED, text)

    def close_in(self, stream: Stream) -> None:
        """No more requests will come."""
        stream.peer_has_ended = stream.has_spoken = True
        if stream.trailers is not None:
            self.sender.pump(stream)  # its end has waited for this
        elif stream.call is not None:
            self._on_end(stream, stream.call)

    def lose(self, stream: Stream) -> None:
        """Nothing more of it is to be sent or read."""
        stream.has_ended = stream.peer_has_ended = True
        self._drop(stream)
        call = stream.call
        if call is None or not call.is_running:
            self._forget(stream)
        if call is not None:
            call.lose()

    def refuse(self, id_: int, code: int) -> None:
        """End one stream by its number, whether it was opened or not."""
        self.sender.write(h2.reset(id_, code))
        stream = self.streams.get(id_)
        if stream is not None:
            self.lose(stream)

    def refuse_http1(self) -> None:
        self._serving.broken += 1
        self.sender.say_instead(NOT_HTTP2)

    def hear_answer(self, word: bytes) -> None:
        """Of a ping."""
        self.pinged = None
        if word == _LAST_WORD:
            self._close_to_new()

    # --- what calls do

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._serving.run(work)

    def read(self, stream: Stream) -> bytes:
        """The next request, which must be there."""
        held = stream.held
        message, credit = stream.read()
        self.held += stream.held - held
        if credit:
            self.sender.write(h2.window_update(stream.id, credit))
        return message

    def send(self, stream: Stream, message: bytes, *, has_begun: bool) -> None:
        """One response of several."""
        if not has_begun:
            self.sender.begin(stream)
        self._send(stream, message)

    def answer(self, stream: Stream, message: bytes) -> None:
        """The only response, and the end."""
        self.sender.begin(stream)
        stream.trailers = SUCCESS
        self._send(stream, message)

    def _send(self, stream: Stream, message: bytes) -> None:
        self.sender.send(stream, message)
        if self.sender.waiting_bytes > _MOST_WAITING:
            self.refuse(stream.id, h2.ENHANCE_YOUR_CALM)

    def end(self, stream: Stream, block: bytes, *, has_begun: bool) -> None:
        """No more responses; the trailers, once those before them have gone."""
        stream.trailers = block if has_begun else BEGINNING + block
        if stream.has_spoken or stream.peer_has_ended:
            self.sender.pump(stream)
        else:
            # Who opens a stream of requests has the first one under way. grpc.aio takes a status
            # that overtakes it for an error of its own, and shows that one.
            self.loop.call_later(_FIRST_WORDS_SECONDS, self.sender.pump, stream)

    def leave(self, stream: Stream) -> None:
        """Its handler has ended."""
        if stream.has_ended:
            self._forget(stream)

    # --- streams end

    def _on_finished(self, stream: Stream) -> None:
        if stream.call is None or not stream.call.is_running:
            self._forget(stream)

    def _lose_all(self) -> None:
        for stream in list(self.streams.values()):
            self.lose(stream)

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        self._drop(stream)
        if stream.call is not None:
            self.deadlines.discard(stream.call)
        if not self.streams:
            self.idle_since = self.loop.time()
            if self._is_closed_to_new:
                self.sender.close()

    def _drop(self, stream: Stream) -> None:
        self.held -= stream.held
        self.sender.forget(stream)
        stream.drop()

    # --- the connection ends

    def ping(self, word: bytes = _WORD) -> None:
        self.pinged = self.loop.time()
        self.sender.write(frame(h2.PING, 0, 0, word))

    def drain(self) -> None:
        """Say that no more calls should come; those on their way are still taken.

        When the ping is answered, the peer has heard it, and what it began before has come.
        """
        if self.drained is not None:
            return
        self.drained = self.loop.time()
        if not self.receiver.has_greeted:
            self.sender.close()
            return
        self.sender.write(h2.goaway(h2.LARGEST_WINDOW, h2.NO_ERROR))
        self.ping(_LAST_WORD)
        self.loop.call_later(_DRAIN_SECONDS, self._close_to_new)

    def _close_to_new(self) -> None:
        if self._is_closed_to_new:
            return
        self._is_closed_to_new = True
        self._last_taken = self.receiver.last_stream
        self.sender.write(h2.goaway(self._last_taken, h2.NO_ERROR))
        if not self.streams:
            self.sender.close()

    def cut(self) -> None:
        """End what is under way, and the connection."""
        if self.receiver.has_greeted:
            self._close_to_new()  # whose calls have not come yet knows that none of them began
        for stream in list(self.streams.values()):
            stream.has_spoken = True  # it will have no time to
            if stream.call is not None:
                stream.call.fail(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        self.sender.close()

    def _break_off(self, error: BrokenConnection) -> None:
        """The peer cannot be understood any more; it is told why."""
        extra = {"action": "http2_broken", "code": error.code, "error": error.text}
        log.debug("broke off a connection", extra=extra)
        self._serving.broken += 1
        # None that was named before as not taken: those are begun elsewhere.
        last = min(self._last_taken, self.receiver.last_stream)
        self.sender.write(h2.goaway(last, error.code, error.text))
        self.sender.close()
        self._lose_all()
