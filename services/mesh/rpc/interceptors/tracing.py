"""Server spans that continue the caller's trace (W3C Trace Context in the call's metadata)."""

from __future__ import annotations

from services.mesh.errors import Code
from services.mesh.rpc.interceptors.method import Call
from services.mesh.telemetry.tracing import Tracing, adopt

TRACEPARENT = "traceparent"


class ServerSpans:
    """One span per call; `enabled` is asked first, so that an untraced process pays one look."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.enabled = tracing.enabled

    def begin(self, call: Call) -> None:
        attributes = {"rpc.system.name": "grpc", "rpc.method": call.method.full_name}
        call.span = self._tracing.open_span(
            call.method.full_name, "server", parent=_parent(call), attributes=attributes
        )
        adopt(call.span)

    def end(self, call: Call, code: Code, error: BaseException | None) -> None:
        call.span.set("rpc.response.status_code", code.name)
        if error is not None:
            call.span.fail(error)
        call.span.end()


def _parent(call: Call) -> str:
    for key, value in call.context.invocation_metadata() or ():
        if key == TRACEPARENT:
            return str(value)
    return ""
