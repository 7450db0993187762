"""Refused: the request cannot be done as it stands, and sending it again does not help."""
# ruff: noqa: N818 - the names are the reasons of the contract; an "Error" suffix would blur that.

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from services.mesh.errors.base import Code, FieldViolation, MeshError, Resource
from services.mesh.errors.outages import OutcomeUnknown


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
