"""WatchLogs: what handlers logged, and log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue import convert
from services.enqueue.app.logs import Reading
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.wire.logs import log_line_to_proto


class LogCalls:
    """The RPC about logs."""

    _desk: Desk

    async def WatchLogs(
        self, request: pb.WatchLogsRequest, context: Context
    ) -> AsyncIterator[pb.WatchLogsResponse]:
        reading = Reading(
            namespace=convert.namespace_of(request.namespace),
            job_id=convert.job_id_of(request.job_id),
            attempt=request.attempt,
            fence=request.after_dispatch_no,
            number=request.after_number,
        )
        async with aclosing(self._desk.logs.read(reading, once=request.once)) as parts:
            async for tried, lines in parts:
                yield pb.WatchLogsResponse(
                    lines=[log_line_to_proto(line, tried.attempt, tried.fence) for line in lines]
                )
