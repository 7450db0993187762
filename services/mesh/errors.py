"""The one error tree of the mesh.

Domain and application code raise these; `services.mesh.rpc` turns them into `google.rpc.Status` on
the way out and back into the same classes on the caller's side, so `except StaleFence` works across
a process boundary. The names and codes are those of `proto/jobmesh/v1/error_reason.proto`; a
contract test holds the two together.

    MeshError
    ├── InvalidArgument            the request is wrong whatever the state of the mesh
    │   ├── InvalidField
    │   └── InvalidToken           PageTokenInvalid · ResumeTokenInvalid
    ├── NotFound
    │   ├── UnknownType            · JobNotFound · ScheduleNotFound · ShardNotFound · PoolNotFound
    │   └── AttemptNotFound        · ObjectNotFound · WorkerNotFound
    ├── AlreadyExists
    │   └── IdempotencyConflict    · UniqueConflict · ScheduleExists · PoolExists
    ├── OutOfRange
    │   └── PayloadTooLarge        · ResumeTokenExpired
    ├── FailedPrecondition         do not retry
    │   └── StaleFence             · ForbiddenTransition · AttachRefused · ParentNotStored
    ├── Aborted                    read again, then retry
    │   └── EtagMismatch
    ├── Unavailable                retry with backoff, as it stands
    │   ├── StaleEpoch             · ShardUnavailable (ShardBusy) · OutcomeUnknown
    │   └── NoHealthyShard         · DependencyUnavailable · Draining
    ├── ResourceExhausted          retry later, not more often
    │   └── Overloaded             · QuotaExceeded · SlowConsumer
    ├── DataLoss
    │   └── ObjectCorrupt
    ├── DeadlineExceeded
    ├── NotImplementedYet          part of the contract that this version does not fill
    ├── InternalError              a defect of ours
    └── RemoteError                an error from the wire whose reason this version does not know

This module imports nothing outside the standard library: the purest code of the mesh raises from
it. A class whose message never varies needs no constructor: `says` is the message.
"""
# ruff: noqa: N818 - the names are the reasons of the contract; an "Error" suffix would blur that.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Self

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


class InvalidArgument(MeshError):
    code = Code.INVALID_ARGUMENT


class InvalidField(InvalidArgument):
    """A field breaks a rule: `InvalidField("retry.max_attempts", "must be at least 1")`."""

    reason = "INVALID_FIELD"

    def __init__(self, field: str, description: str, rule: str = "") -> None:
        violation = FieldViolation(field, description, rule)
        super().__init__(f"{field}: {description}", violations=(violation,))

    @classmethod
    def of(cls, violations: Iterable[FieldViolation]) -> Self:
        """All broken rules of one message in one error."""
        found = tuple(violations)
        parts = (f"{v.field}: {v.description}" if v.field else v.description for v in found)
        error = cls.__new__(cls)
        MeshError.__init__(error, "; ".join(parts), violations=found)
        return error


class InvalidToken(InvalidArgument):
    """Nothing this mesh made, or made for something else."""

    field = ""

    def __init__(self) -> None:
        super().__init__(violations=(FieldViolation(self.field, self.says),))


class PageTokenInvalid(InvalidToken):
    reason, field = "PAGE_TOKEN_INVALID", "page_token"
    says = "the page token was not made by this method for this filter; start from the first page"


class ResumeTokenInvalid(InvalidToken):
    reason, field = "RESUME_TOKEN_INVALID", "resume_token"
    says = "the resume token was not made by WatchJobs for this filter; start again without it"


class NotFound(MeshError):
    code = Code.NOT_FOUND

    def __init__(self, name: object, message: str = "") -> None:
        super().__init__(message or f"no {self.kind} {name}", metadata={self.key: str(name)})


class UnknownType(NotFound):
    reason, kind, key = "UNKNOWN_TYPE", "type", "type"

    def __init__(self, type_: str) -> None:
        hint = "start a worker that serves it, or create its pool"
        super().__init__(type_, f"nobody ever announced the job type {type_!r}: {hint}")


class JobNotFound(NotFound):
    reason, kind, key = "JOB_NOT_FOUND", "job", "job_id"


class ScheduleNotFound(NotFound):
    reason, kind, key = "SCHEDULE_NOT_FOUND", "schedule", "schedule"


class ShardNotFound(NotFound):
    reason, kind, key = "SHARD_NOT_FOUND", "shard", "shard"


class PoolNotFound(NotFound):
    reason, kind, key = "POOL_NOT_FOUND", "pool", "type"


class AttemptNotFound(NotFound):
    reason, kind, key = "ATTEMPT_NOT_FOUND", "attempt of job", "job_id"


class ObjectNotFound(NotFound):
    reason, kind, key = "OBJECT_NOT_FOUND", "object", "key"


class WorkerNotFound(NotFound):
    reason, kind, key = "WORKER_NOT_FOUND", "worker", "worker_id"


class AlreadyExists(MeshError):
    code = Code.ALREADY_EXISTS

    def __init__(self, name: object, message: str = "") -> None:
        text = message or f"there is already a {self.kind} {name}"
        super().__init__(text, metadata={self.key: str(name)} if self.key else None)


class IdempotencyConflict(AlreadyExists):
    """The key was used before, for a job with other content; `job_id` is the first one's."""

    reason, kind, key = "IDEMPOTENCY_CONFLICT", "job", "job_id"

    def __init__(self, job_id: object) -> None:
        text = f"the idempotency key was used for job {job_id}, which has other content"
        super().__init__(job_id, text)


class UniqueConflict(AlreadyExists):
    """A live job, `job_id`, holds the unique key."""

    reason, kind, key = "UNIQUE_CONFLICT", "job", "job_id"

    def __init__(self, job_id: object, message: str = "") -> None:
        text = f"job {job_id}, which has not ended, holds the unique key"
        super().__init__(job_id, message or text)


class ScheduleExists(AlreadyExists):
    reason, kind, key = "SCHEDULE_EXISTS", "schedule", "schedule"


class PoolExists(AlreadyExists):
    reason, kind, key = "POOL_EXISTS", "pool", "type"


class OutOfRange(MeshError):
    code = Code.OUT_OF_RANGE


class PayloadTooLarge(OutOfRange):
    reason = "PAYLOAD_TOO_LARGE"

    def __init__(self, size_bytes: int, limit_bytes: int, what: str = "the inline payload") -> None:
        super().__init__(
            f"{what} has {size_bytes} bytes, the limit is {limit_bytes}; "
            "upload it and pass the reference",
            metadata={"size_bytes": str(size_bytes), "limit_bytes": str(limit_bytes)},
        )


class ResumeTokenExpired(OutOfRange):
    reason = "RESUME_TOKEN_EXPIRED"
    says = "the events after the resume token are no longer kept; start again without it"


class FailedPrecondition(MeshError):
    code = Code.FAILED_PRECONDITION


class StaleFence(FailedPrecondition):
    """The attempt was superseded: stop the work, do not retry."""

    reason, kind, key = "STALE_FENCE", "job", "job_id"

    def __init__(self, job_id: object, fence: int) -> None:
        metadata = {"job_id": str(job_id), "fence": str(fence)}
        super().__init__(f"dispatch {fence} of job {job_id} was superseded", metadata=metadata)


class ForbiddenTransition(FailedPrecondition):
    """The job's state does not allow it: `ForbiddenTransition(job_id, "SUCCEEDED", "cancel")`."""

    reason, kind, key = "FORBIDDEN_TRANSITION", "job", "job_id"

    def __init__(self, job_id: object, state: str, verb: str) -> None:
        metadata = {"job_id": str(job_id), "state": state}
        super().__init__(f"cannot {verb} job {job_id}: it is {state}", metadata=metadata)


class ParentNotStored(FailedPrecondition):
    """An item of a batch was not stored, since the one it waits for was not, or may not have been.
    `item` is that one's number, `parent_reason` what was told of it.
    """

    reason = "PARENT_NOT_STORED"

    def __init__(self, item: int, parent_reason: str) -> None:
        fate = "was not stored"
        if parent_reason == OutcomeUnknown.reason:
            fate = "may or may not be stored; retry both with the same idempotency keys"
        metadata = {"item": str(item), "parent_reason": parent_reason}
        super().__init__(f"not stored: it waits for item {item}, which {fate}", metadata=metadata)


class AttachRefused(FailedPrecondition):
    """The worker does not take this executor: it takes none, or serves the type itself."""

    reason = "ATTACH_REFUSED"
    says = "this worker takes no executors: start it with --attach"


class Aborted(MeshError):
    code = Code.ABORTED


class EtagMismatch(Aborted):
    reason = "ETAG_MISMATCH"

    def __init__(self, kind: str, name: str) -> None:
        text = f"the {kind} {name!r} changed since it was read; read it again"
        super().__init__(text, resource=Resource(kind, name))


class Unavailable(MeshError):
    code = Code.UNAVAILABLE
    waits = 1.0


class StaleEpoch(Unavailable):
    """The bucket map moved on while the call was under way; `epoch` is the newer one."""

    reason = "STALE_EPOCH"
    waits = 0.05

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the bucket map is now at epoch {epoch}", metadata={"epoch": str(epoch)})


class ShardUnavailable(Unavailable):
    reason = "SHARD_UNAVAILABLE"

    def __init__(self, shard: str, retry_after: float | None = None, why: str = "is away") -> None:
        metadata = {"shard": shard}
        super().__init__(f"shard {shard} {why}", metadata=metadata, retry_after=retry_after)


class ShardBusy(ShardUnavailable):
    """The shard answered, so it lives: it gave this one statement up, and nothing was changed.

    To callers that is the same as one that is away. Who decides whether it is away knows better.
    """


class OutcomeUnknown(Unavailable):
    """The write may have been committed. Only a retry with the same idempotency key is safe."""

    reason = "OUTCOME_UNKNOWN"

    def __init__(self, shard: str) -> None:
        text = (
            f"shard {shard} did not say whether it committed; retry with the same idempotency key"
        )
        super().__init__(text, metadata={"shard": shard})

    @classmethod
    def by_defect(cls, correlation_id: str) -> Self:
        """A defect of ours struck on the way to the shards, or back; the log has it by the id."""
        error = cls("unknown")
        error.message = (
            "a defect of the service left open whether it was committed; retry with the same "
            f"idempotency key, and see the service's log for {correlation_id}"
        )
        error.args = (error.message,)
        error.metadata["correlation_id"] = correlation_id
        return error

    @property
    def retryable(self) -> bool:
        """Not by itself: a retry without an idempotency key may create a twin."""
        return False


class NoHealthyShard(Unavailable):
    reason = "NO_HEALTHY_SHARD"
    says = "no shard can take new jobs now"


class DependencyUnavailable(Unavailable):
    """Something this service depends on is away: `DependencyUnavailable("nats")`."""

    reason = "DEPENDENCY_UNAVAILABLE"

    def __init__(self, dependency: str, message: str = "") -> None:
        super().__init__(message or f"{dependency} is away", metadata={"dependency": dependency})


class Draining(Unavailable):
    reason = "DRAINING"
    says = "this process is shutting down; another replica will answer"
    waits = 0.05


class ResourceExhausted(MeshError):
    code = Code.RESOURCE_EXHAUSTED
    waits = 1.0


class Overloaded(ResourceExhausted):
    reason = "OVERLOADED"
    says = "too much work in flight"


class QuotaExceeded(ResourceExhausted):
    reason, kind, key = "QUOTA_EXCEEDED", "namespace", "namespace"

    def __init__(self, namespace: str, quota: str, retry_after: float | None = None) -> None:
        text = f"namespace {namespace!r} is over its quota of {quota}"
        metadata = {"namespace": namespace, "quota": quota}
        super().__init__(text, metadata=metadata, retry_after=retry_after)


class SlowConsumer(ResourceExhausted):
    reason = "SLOW_CONSUMER"
    says = "the watcher read too slowly; resume with the last token it received"
    waits = 0.1


class DataLoss(MeshError):
    code = Code.DATA_LOSS


class ObjectCorrupt(DataLoss):
    reason, kind, key = "OBJECT_CORRUPT", "object", "key"

    def __init__(self, key: str) -> None:
        text = f"the checksum of object {key!r} differs from the recorded one"
        super().__init__(text, metadata={"key": key})


class DeadlineExceeded(MeshError):
    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    says = "the deadline passed before the answer was there"


class NotImplementedYet(MeshError):
    """Part of the contract this version does not fill: `NotImplementedYet("BackfillSchedule")`."""

    code = Code.UNIMPLEMENTED
    reason = "NOT_IMPLEMENTED"

    def __init__(self, feature: str) -> None:
        text = f"{feature} is not implemented in this version"
        super().__init__(text, metadata={"feature": feature})


class InternalError(MeshError):
    """A defect of ours. What the caller sees is only an id; the log has the rest."""

    code = Code.INTERNAL
    reason = "INTERNAL"

    def __init__(self, correlation_id: str) -> None:
        text = f"internal error, see the service's log for {correlation_id}"
        super().__init__(text, metadata={"correlation_id": correlation_id})


class RemoteError(MeshError):
    """An error from the wire that this version has no class for; go by its `code`."""
