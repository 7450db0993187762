"""Frames between a worker and its executors: a JSON header and a body, lengths in front.

No asyncio here: importing it takes a third of the time in which an executor is ready.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

Header = dict[str, Any]

LENGTHS = struct.Struct("!II")
_PIECE = 1 << 20

# --- kinds of frames, by the "kind" of their header

READY = "ready"
CALL = "call"
PROGRESS = "progress"
HEARTBEAT = "heartbeat"
EXTEND = "extend"
CHECKPOINT = "checkpoint"
STORED = "stored"
PRINTED = "printed"
RETURNED = "returned"
SNOOZED = "snoozed"
RAISED = "raised"


def pack(header: Header, body: bytes = b"") -> bytes:
    """A frame as it travels."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((LENGTHS.pack(len(head), len(body)), head, body))


def receive(connection: socket.socket) -> tuple[Header, bytes] | None:
    """The next frame, blocking; None if the other side ended."""
    lengths = _exactly(connection, LENGTHS.size)
    if lengths is None:
        return None
    head_size, body_size = LENGTHS.unpack(lengths)
    head, body = _exactly(connection, head_size), _exactly(connection, body_size)
    if head is None or body is None:
        return None
    return json.loads(head), body


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = connection.recv(min(size, _PIECE))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
