"""Whatever a handler raises becomes a status that its caller can act on."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, NoReturn

import grpc

from services.mesh.errors import (
    Code,
    DeadlineExceeded,
    Draining,
    InternalError,
    MeshError,
    OutcomeUnknown,
    Overloaded,
)
from services.mesh.rpc.errors import DETAILS_KEY, from_rpc_error, grpc_code, to_status
from services.mesh.rpc.interceptors.method import Call
from services.mesh.telemetry.tracing import trace_id_of

log = logging.getLogger("services.mesh.rpc")

#: Comes with a call that the channel sends again by itself, as it does with idempotent ones.
_REPEATED = "grpc-previous-rpc-attempts"
#: How the names of methods begin that change nothing.
_READS = (
    "Count",
    "Describe",
    "Download",
    "Explain",
    "Find",
    "Get",
    "List",
    "Locate",
    "Preview",
    "Stats",
    "Watch",
)


def explained(call: Call, error: BaseException) -> MeshError:
    """The error as our callers know errors. A defect is logged here, under an id it is found by."""
    if isinstance(error, asyncio.CancelledError):
        # What the handler waited for was cancelled under it, as the end of the process does. A
        # write may have been carried out by then.
        return Draining() if _reads(call) else OutcomeUnknown("unknown")
    if isinstance(error, Overloaded) and not _reads(call) and is_repeated(call.context):
        # That this try was turned away does not say what became of the one before it.
        return OutcomeUnknown("unknown")
    if isinstance(error, MeshError) and error.code is not Code.UNKNOWN:
        return error
    if isinstance(error, TimeoutError):
        return DeadlineExceeded()
    if isinstance(error, grpc.aio.AioRpcError):
        return from_rpc_error(error)
    correlation_id = trace_id_of(call.span.traceparent) or uuid.uuid4().hex
    extra = {
        "action": "rpc_defect",
        "method": call.method.full_name,
        "correlation_id": correlation_id,
    }
    log.error("%s failed", call.method.name, exc_info=error, extra=extra)
    return InternalError(correlation_id)


def is_repeated(context: Any) -> bool:
    """Whether the channel sends this call again: nobody knows what became of it the first time."""
    return any(name == _REPEATED for name, _ in context.invocation_metadata() or ())


def _reads(call: Call) -> bool:
    return call.method.name.startswith(_READS)


async def abort(context: Any, error: MeshError) -> NoReturn:
    """End the call with the error's status; leaves by the exception gRPC wants."""
    status = to_status(error)
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(grpc_code(error.code), status.message, details)
    raise AssertionError("abort returned")
