"""A tap on a connection to NATS: loses messages, or delivers them again, unnoticed by both ends.

It reads the frames the server sends to one client. `MSG` and `HMSG` carry messages; all else is
handed on untouched.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

_MEMORY = 400


class BrokerTap:
    """What happens to the messages that one unit is sent."""

    def __init__(self) -> None:
        self._loss = 0.0
        self._random = random.Random(0)
        self._streams: list[_Frames] = []
        self.dropped = 0
        self.repeated = 0

    def lose(self, share: float, seed: int = 0) -> None:
        """Drop this share of the messages from now on; 0: none."""
        self._loss = share
        self._random = random.Random(seed)

    def repeat(self, seed: int = 0) -> int:
        """Deliver what was delivered lately once more, in another order; how many messages."""
        count = sum(stream.repeat(random.Random(seed)) for stream in self._streams)
        self.repeated += count
        return count

    def opened(self, send: Callable[[bytes], None]) -> Callable[[bytes], bytes]:
        stream = _Frames(send, self._is_lost)
        self._streams = [*self._streams[-3:], stream]
        return stream.feed

    def _is_lost(self) -> bool:
        lost = self._loss > 0 and self._random.random() < self._loss
        self.dropped += lost
        return lost


class _Frames:
    """The frames of one connection."""

    def __init__(self, send: Callable[[bytes], None], is_lost: Callable[[], bool]) -> None:
        self._send = send
        self._is_lost = is_lost
        self._buffer = bytearray()
        self._recent: deque[bytes] = deque(maxlen=_MEMORY)

    def feed(self, chunk: bytes) -> bytes:
        """Whole frames to hand on; a part of one waits for the rest of it."""
        self._buffer += chunk
        passed = bytearray()
        while frame := self._next():
            is_message = frame[:4].upper() in (b"MSG ", b"HMSG")
            if is_message and self._is_lost():
                continue
            if is_message:
                self._recent.append(frame)
            passed += frame
        return bytes(passed)

    def repeat(self, chance: random.Random) -> int:
        again = list(self._recent)
        chance.shuffle(again)
        if again:
            self._send(b"".join(again))
        return len(again)

    def _next(self) -> bytes:
        """The next whole frame, or nothing."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return b""
        size = end + 2
        head = bytes(self._buffer[:end])
        if head[:4].upper() in (b"MSG ", b"HMSG"):
            size += int(head.split()[-1]) + 2
            if len(self._buffer) < size:
                return b""
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame
