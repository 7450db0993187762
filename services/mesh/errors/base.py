"""What every error of the mesh is: a code, a reason, and what crosses the wire with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

DOMAIN = "jobmesh"


class Code(IntEnum):
    """The gRPC status codes, by their wire numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One broken rule: the field's path, what is wrong with it, the rule's id if it has one."""

    field: str
    description: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """What an error is about: a kind of thing ("job", "schedule", …) and its name."""

    kind: str
    name: str


class MeshError(Exception):
    """Base of all errors that may cross a process boundary.

    `metadata` repeats everything dynamic in the message under the keys the contract names.
    `retry_after` is in seconds; None leaves the pace to the caller's own backoff.
    """

    code: Code = Code.UNKNOWN
    reason: str = "UNSPECIFIED"
    says: ClassVar[str] = ""
    waits: ClassVar[float | None] = None
    #: What the error is about, and the metadata key that names it.
    kind: ClassVar[str] = ""
    key: ClassVar[str] = ""
    #: The class of each reason, filled as the classes below are defined.
    by_reason: ClassVar[dict[str, type[MeshError]]] = {}

    def __init__(
        self,
        message: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[FieldViolation] = (),
        retry_after: float | None = None,
        resource: Resource | None = None,
    ) -> None:
        super().__init__(message or self.says)
        self.message = message or self.says
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = self.waits if retry_after is None else retry_after
        self.resource = resource or self._named_resource()

    def _named_resource(self) -> Resource | None:
        return Resource(self.kind, self.metadata[self.key]) if self.key in self.metadata else None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" in cls.__dict__:
            MeshError.by_reason[cls.reason] = cls

    @property
    def retryable(self) -> bool:
        """Whether the same call may be sent again as it stands (AIP-194)."""
        return self.code is Code.UNAVAILABLE

    @classmethod
    def restore(cls, reason: str, code: Code, message: str, **parts: Any) -> MeshError:
        """Rebuild an error of the class its reason names, or a RemoteError.

        `parts` are the keyword arguments of MeshError.
        """
        kind = cls.by_reason.get(reason, RemoteError)
        error = kind.__new__(kind)
        MeshError.__init__(error, message, **parts)
        # The wire wins: a neighbour one version apart may send a known reason with another code.
        error.reason, error.code = reason, code
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy by parts, since the subclasses' constructors take other arguments."""
        return (_rebuild, (self.reason, int(self.code), self.message), dict(self.__dict__))


def _rebuild(reason: str, code: int, message: str) -> MeshError:
    return MeshError.restore(reason, Code(code), message)


class RemoteError(MeshError):
    """An error from the wire that this version has no class for; go by its `code`."""
