"""The standard health service, fed by the process's Readiness.

`""` is whether the process is alive, a service's name whether it is ready. A Watch ends when the
process drains, after it has told NOT_SERVING, so that it does not hold the server's stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.mesh.rpc.interceptors.writing import writes
from services.mesh.runtime import DrainSignal, Readiness

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def handlers(servicer: HealthServicer) -> dict[str, Any]:
    """The methods by their paths."""
    request, response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    decode, encode = request.FromString, response.SerializeToString
    watch = writes(servicer.Watch)
    return {
        f"/{SERVICE}/Check": grpc.unary_unary_rpc_method_handler(servicer.Check, decode, encode),
        f"/{SERVICE}/Watch": grpc.unary_stream_rpc_method_handler(watch, decode, encode),
    }


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Answers Check and Watch from the readiness as it is."""

    def __init__(self, readiness: Readiness, drain: DrainSignal, services: Iterable[str]) -> None:
        self._readiness, self._drain = readiness, drain
        self._services = frozenset(services)
        self._changed = asyncio.Event()
        readiness.listen(self._notify)

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != told:
                yield health_pb2.HealthCheckResponse(status=status)
                told = status
            if self._drain.is_set():
                return
            await self._drain.first(changed.wait())

    def _status(self, service: str) -> Any:
        if service == "":
            return _SERVING if self._readiness.alive else _NOT_SERVING
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._readiness.ready else _NOT_SERVING

    def _notify(self) -> None:
        # Each change gets an event of its own: whoever waited on the old one looks again.
        self._changed.set()
        self._changed = asyncio.Event()
