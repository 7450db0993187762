"""What a failed call to etcd means."""

from __future__ import annotations

import grpc
from grpc.aio import AioRpcError

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.port import DEPENDENCY

#: Codes that say something about the member or the way to it, not about the request.
_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)


class Refused(DependencyUnavailable):
    """etcd answered, and its answer was no: asking another member would not help."""

    def __init__(self, error: AioRpcError) -> None:
        super().__init__(DEPENDENCY, f"etcd refused: {error.details()} ({error.code().name})")
        self.status = error.code()
        self.details = error.details() or ""

    @property
    def lease_not_found(self) -> bool:
        return self.status is grpc.StatusCode.NOT_FOUND and "lease" in self.details

    @property
    def compacted(self) -> bool:
        return self.status is grpc.StatusCode.OUT_OF_RANGE

    @property
    def token_expired(self) -> bool:
        """Log in again: the token ran out, or the rights changed since it was given."""
        return (
            self.status is grpc.StatusCode.UNAUTHENTICATED
            or "revision in header is old" in self.details
        )


def judge(target: str, error: AioRpcError) -> DependencyUnavailable:
    """A Refused, or an error that says the member is away."""
    if error.code() in _AWAY:
        return away(target, f"{error.details()} ({error.code().name})")
    return Refused(error)


def away(target: str, why: str) -> DependencyUnavailable:
    return DependencyUnavailable(DEPENDENCY, f"etcd at {target} is away: {why}")
