"""gRPC as the mesh speaks it: one kind of server, one kind of channel, one mapping of errors.

Server      every service of a process on one port, with health, reflection and limits. Handlers are
            wrapped once, when they are registered (`interceptors`), not on every call. What carries
            them is HTTP/2 on the event loop (`http2`), or gRPC's own server (`grpcio`).
            A process is alive ("" in the health service) until it drains and ready (its services'
            names) while everything it requires is up.
Channel     a grpc.aio channel for generated stubs that gives every call a deadline, hands the trace
            context on, retries only what the contract calls idempotent, and raises MeshError.
errors      MeshError to google.rpc.Status and back.

A servicer unpacks, calls one use case, packs, and lets errors fly. A method it does not override
answers UNIMPLEMENTED with the reason NOT_IMPLEMENTED. Handlers of request streams read from the
iterator they are given, not from `context.read`, or nothing is checked.
"""

from services.mesh.rpc.channel import Channel, open_channel
from services.mesh.rpc.errors import from_rpc_error, from_status, to_status
from services.mesh.rpc.server import Server
from services.mesh.rpc.tls import TlsFiles
from services.mesh.rpc.validation import Rules

__all__ = [
    "Channel",
    "Rules",
    "Server",
    "TlsFiles",
    "from_rpc_error",
    "from_status",
    "open_channel",
    "to_status",
]
