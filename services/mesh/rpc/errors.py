"""MeshError to google.rpc.Status and back: the one place that knows both.

Every status has an ErrorInfo; beside it stands what its code calls for: BadRequest for broken
fields, PreconditionFailure where the state forbids, ResourceInfo for what it is about, RetryInfo
where waiting helps. Each at most once.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2 as details  # type: ignore[import-untyped]
from google.rpc import status_pb2

from services.mesh.errors import (
    DOMAIN,
    Code,
    DeadlineExceeded,
    DependencyUnavailable,
    FailedPrecondition,
    FieldViolation,
    MeshError,
    Resource,
)

#: The metadata key under which a call's google.rpc.Status travels.
DETAILS_KEY = "grpc-status-details-bin"

#: Bounds of what an error says. A status travels in metadata, of which peers take 8 KiB; a larger
#: one breaks the call instead of telling why. Field paths hold keys that callers chose.
LONGEST_MESSAGE, LONGEST_FIELD, LONGEST_DESCRIPTION, MOST_VIOLATIONS = 600, 120, 200, 10

_GRPC_CODES = {Code(code.value[0]): code for code in grpc.StatusCode}


def grpc_code(code: Code) -> grpc.StatusCode:
    """Our code as grpcio's."""
    return _GRPC_CODES[code]


def to_status(error: MeshError) -> status_pb2.Status:
    """The error as it goes over the wire."""
    message = _cut(error.message, LONGEST_MESSAGE)
    status = status_pb2.Status(code=int(error.code), message=message)
    for detail in _details(error):
        status.details.add().Pack(detail)
    return status


def _details(error: MeshError) -> Iterator[Message]:
    yield details.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    if error.violations:
        yield details.BadRequest(
            field_violations=[
                details.BadRequest.FieldViolation(
                    field=_cut(v.field, LONGEST_FIELD),
                    description=_cut(v.description, LONGEST_DESCRIPTION),
                    reason=v.rule,
                )
                for v in error.violations[:MOST_VIOLATIONS]
            ]
        )
    if isinstance(error, FailedPrecondition):
        subject = error.resource.name if error.resource else ""
        violation = details.PreconditionFailure.Violation(
            type=error.reason,
            subject=subject,
            description=_cut(error.message, LONGEST_DESCRIPTION),
        )
        yield details.PreconditionFailure(violations=[violation])
    if error.resource is not None:
        yield details.ResourceInfo(
            resource_type=error.resource.kind, resource_name=error.resource.name
        )
    if error.retry_after is not None:
        yield details.RetryInfo(retry_delay=_duration(error.retry_after))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration


def from_status(status: status_pb2.Status) -> MeshError:
    """The error that a status describes, of the class its reason names."""
    found = {type(detail): detail for detail in _unpacked(status)}
    info = found.get(details.ErrorInfo)
    reason, metadata = "UNSPECIFIED", {}
    if isinstance(info, details.ErrorInfo) and info.domain == DOMAIN:
        reason, metadata = info.reason, dict(info.metadata)
    return MeshError.restore(
        reason,
        Code(status.code),
        status.message,
        metadata=metadata,
        violations=_violations(found.get(details.BadRequest)),
        retry_after=_retry_after(found.get(details.RetryInfo)),
        resource=_resource(found.get(details.ResourceInfo)),
    )


def _unpacked(status: status_pb2.Status) -> Iterator[Message]:
    kinds = (details.ErrorInfo, details.BadRequest, details.RetryInfo, details.ResourceInfo)
    for packed in status.details:
        for kind in kinds:
            if packed.Is(kind.DESCRIPTOR):
                detail = kind()
                packed.Unpack(detail)
                yield detail


def _violations(detail: Message | None) -> list[FieldViolation]:
    if not isinstance(detail, details.BadRequest):
        return []
    return [FieldViolation(v.field, v.description, v.reason) for v in detail.field_violations]


def _retry_after(detail: Message | None) -> float | None:
    if not isinstance(detail, details.RetryInfo):
        return None
    return float(detail.retry_delay.ToNanoseconds() / 1e9)


def _resource(detail: Message | None) -> Resource | None:
    if not isinstance(detail, details.ResourceInfo):
        return None
    return Resource(detail.resource_type, detail.resource_name)


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str = "peer") -> MeshError:
    """The error behind a failed call.

    With an ErrorInfo it is what the peer raised. Without one it came from gRPC itself, before,
    during or after the peer's work: whether that work was done is not known.
    """
    status = _attached(error)
    if status is not None:
        return from_status(status)
    code, message = Code(error.code().value[0]), error.details() or ""
    # So ends a call that a server which drains has not begun; what we cancel is no AioRpcError.
    if code in (Code.UNAVAILABLE, Code.CANCELLED):
        return DependencyUnavailable(peer, f"{peer} is away: {message}")
    if code is Code.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{peer} did not answer in time")
    return MeshError.restore("UNSPECIFIED", code, f"{peer}: {message}")


def _attached(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None
