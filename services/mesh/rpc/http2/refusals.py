"""Who is turned away before a handler is asked, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import grpc

from services.mesh.rpc.http2.headers import MAX_LIST_BYTES, Asked, Metadata, http_only
from services.mesh.rpc.http2.messages import ENCODINGS

_IS_GRPC: Final = re.compile(r"application/grpc([+;]|$)").match
_ADVICE: Final = "this port speaks gRPC over HTTP/2; try grpcurl or buf curl"
#: For who speaks HTTP/1, in words that it understands.
NOT_HTTP2: Final = (
    "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\n"
    f"Content-Length: {len(_ADVICE) + 1}\r\nConnection: close\r\n\r\n{_ADVICE}\n"
).encode()


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call ends that nobody serves; `http`: its caller does not even speak gRPC."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    text: str = ""
    metadata: Metadata = ()
    http: bytes | None = None


def refusal_of(asked: Asked, is_served: bool) -> Refusal | None:
    """Why a call is not served; None: it is."""
    if asked.method != "POST":
        return Refusal(http=http_only(405, allow="POST"))
    if not _IS_GRPC(asked.content_type):
        return Refusal(http=http_only(415, accept_post="application/grpc"))
    if asked.size > MAX_LIST_BYTES:
        text = f"{asked.size} bytes of metadata, of which there may be {MAX_LIST_BYTES}"
        return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    if asked.problem:
        return Refusal(grpc.StatusCode.INTERNAL, asked.problem)
    if not is_served:
        return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"no method {asked.path} here")
    if asked.encoding not in ENCODINGS:
        accepted = ("grpc-accept-encoding", ",".join(ENCODINGS))
        text = f"grpc-encoding {asked.encoding!r} is not understood here"
        return Refusal(grpc.StatusCode.UNIMPLEMENTED, text, (accepted,))
    return None
