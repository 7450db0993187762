"""Errors from the wire: google.rpc.Status, or a connection that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details  # type: ignore[import-untyped]
from google.rpc import status_pb2

from jobmesh.errors import CallError, FieldViolation, call_error

if TYPE_CHECKING:
    from jobmesh.v1.job_pb2 import ItemError

DETAILS_KEY = "grpc-status-details-bin"
UNREACHABLE = "UNREACHABLE"

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def from_rpc(
    error: grpc.aio.AioRpcError,
    address: str,
    timeout: float,
    service: str = "mesh",
    variable: str = "JOBMESH_ADDRESS",
) -> CallError:
    """What a failed call says, as an exception of ours.

    `service` stands at `address`, which the environment variable `variable` may change.
    """
    code = error.code().name
    packed = _details(error)
    if not packed:
        text = error.details() or ""
        # CANCELLED is a call that a server which drains has not begun; our own end otherwise.
        if code in ("UNAVAILABLE", "CANCELLED"):
            return _unreachable(text, address, service, variable)
        return _from_transport(code, text, address, timeout)
    info = packed.get("ErrorInfo")
    bad = packed.get("BadRequest")
    pace = packed.get("RetryInfo")
    return call_error(
        code,
        error.details() or code,
        reason=info.reason if info else "",
        metadata=dict(info.metadata) if info else None,
        violations=[FieldViolation(v.field, v.description) for v in bad.field_violations]
        if bad
        else (),
        retry_after=pace.retry_delay.ToNanoseconds() / 1e9 if pace else None,
    )


def _details(error: grpc.aio.AioRpcError) -> dict[str, details.ErrorInfo]:
    """The details of a status by their message's name."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status.ParseFromString(value)
    return {type(detail).__name__: detail for detail in _unpacked(status)}


def _unpacked(status: status_pb2.Status) -> Iterator[Message]:
    for packed in status.details:
        for kind in (details.ErrorInfo, details.BadRequest, details.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                detail: Message = kind()
                packed.Unpack(detail)
                yield detail


def _unreachable(text: str, address: str, service: str, variable: str) -> CallError:
    if "failed to connect" in text:
        what = f"no {service} answers at {address}"
    elif "errors resolving" in text:
        what = f"{address} is not an address: there is no such host, or port"
    else:
        what = f"lost the connection to {address}"
    metadata = {"variable": variable}
    return call_error("UNAVAILABLE", what, reason=UNREACHABLE, metadata=metadata)


def _from_transport(code: str, text: str, address: str, timeout: float) -> CallError:
    """No service of the mesh said this: gRPC itself did."""
    if code == "DEADLINE_EXCEEDED":
        return call_error(code, f"no answer from {address} within {timeout:g} s")
    return call_error(code, text or code)


def from_item(error: ItemError) -> CallError:
    """The error of one item of a batch."""
    return call_error(
        _CODE_NAMES.get(error.code, "UNKNOWN"),
        error.message,
        reason=error.reason,
        metadata=dict(error.metadata),
        violations=[FieldViolation(v.field, v.description) for v in error.field_violations],
    )


def is_transient(error: CallError) -> bool:
    """Whether the same thing may well work a moment later."""
    return error.status == "UNAVAILABLE" or error.reason in ("OVERLOADED", "SLOW_CONSUMER")
