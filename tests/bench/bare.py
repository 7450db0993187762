"""A server that refuses every call and is no part of the mesh: what gRPC and the machine need for
that by themselves, and what any load of that size does to whoever shares the machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.enqueue_service_pb2_grpc import (
    EnqueueServiceServicer,
    add_EnqueueServiceServicer_to_server,
)

from services.mesh.errors import QuotaExceeded
from services.mesh.rpc.errors import DETAILS_KEY, to_status
from services.mesh.runtime.service import loop_factory

STATUS = to_status(QuotaExceeded("loud", "100 jobs/s, 200 at once", retry_after=0.1))
DETAILS = ((DETAILS_KEY, STATUS.SerializeToString()),)


class Refusing(EnqueueServiceServicer):
    """Has the answer ready."""

    async def EnqueueBatch(self, request: pb.EnqueueBatchRequest, context: Any) -> Any:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, STATUS.message, DETAILS)


@contextmanager
def refusing_server() -> Iterator[str]:
    """Where it listens, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve_on(parent))


async def _serve_on(parent: Connection) -> None:
    server = grpc.aio.server()
    add_EnqueueServiceServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parent.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()
