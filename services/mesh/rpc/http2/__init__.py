"""The server's side of gRPC over HTTP/2 (RFC 9113), on the event loop itself.

Why: of a single call's CPU, `grpc.aio` takes nearly all: its threads hand each message to each
other and wake the loop for each step. Here a call is bytes that come in with others, one task, and
bytes that leave with others: a tenth of that (ADR 0018 has figures, and what was tried instead).
HPACK comes from a library; what is left of HTTP/2 for one that only answers is small:

    frames      bytes to frames and back; what ends a stream and what ends a connection
    headers     header blocks to what a call asks for; statuses and metadata to header blocks
    messages    the bytes of a stream to whole messages, opened and bounded
    stream      one call as bytes: windows of flow control, what waits to be read and to be sent
    refusals    who is turned away before a handler is asked
    sending     what goes out: as the peer has room, all of a turn in one write
    receiving   what comes in: which frames may come when, and what each means
    connection  one peer: its calls from beginning to end, and the end of the connection
    call        one call as a handler sees it: its task, its reads and writes, its one ending
    deadlines   ends calls whose time is over, by one timer
    upkeep      what only time shows: silent, idle, aged and half-open connections
    listener    the port: takes connections, TLS, a graceful stop

The first five know no event loop. What a peer can make us hold is bounded everywhere: calls
at once, bytes of requests that nobody reads, sizes of headers and messages, frames that only cost.
"""

from services.mesh.rpc.http2.listener import Listener

__all__ = ["Listener"]
