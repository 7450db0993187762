"""Everything the SDK raises on purpose, in one tree.

    JobmeshError
    ├── HandlerError        an app module or a handler in it cannot be used
    ├── PermanentFailure    raised by a handler: no retry can help
    │   ├── InputError      the input does not fit what the handler declares
    │   └── OutputError     what the handler returned cannot be stored
    ├── RetryAfter          raised by a handler: try again, no sooner than this
    ├── Snooze              raised (or returned) by a handler: run me again later, at no cost
    ├── AttemptCancelled    raised by `Context.check_cancelled()`: stop the work
    ├── JobFailed           raised by `result()`: the job ended, but not SUCCEEDED
    ├── WaitTimeout         the wait was over before the job ended (also a TimeoutError)
    └── CallError           the mesh refused a call, or could not be reached
        ├── InvalidArgument · NotFound · AlreadyExists · OutOfRange
        ├── FailedPrecondition · Aborted · ResourceExhausted
        └── Unavailable · DeadlineExceeded · Unimplemented · InternalError

A CallError carries the machine-readable `reason` of proto/jobmesh/v1/error_reason.proto, the field
violations, and the server's wish when to retry. Standard library only.
"""
# ruff: noqa: N818 - the names say what happened; an "Error" suffix on each would blur that.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from jobmesh.model import Job


#: The longest wait that retry policies may have, too.
MAX_SNOOZE_SECONDS = 30 * 24 * 3600.0


class JobmeshError(Exception):
    """Base of all errors of the SDK."""


class HandlerError(JobmeshError):
    """The app module or a handler in it cannot be used; the message says what to change."""


# --- raised by handlers, or on their behalf


class PermanentFailure(JobmeshError):
    """Raise it in a handler when no retry can help: the job becomes FAILED at once."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class InputError(PermanentFailure):
    """The input does not fit what the handler declares: `url: expected str, got int`."""


class OutputError(PermanentFailure):
    """What the handler returned cannot be stored as an output."""


class RetryAfter(JobmeshError):
    """Raise it in a handler to fail this attempt and ask for the next no sooner than `seconds`
    (or a timedelta).

    It spends an attempt like any other failure; the job's retry policy still decides whether
    there is a next one.
    """

    def __init__(self, seconds: float | timedelta, message: str = "") -> None:
        # What is no number is refused here, and not where it would be told to the mesh.
        seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        super().__init__(message or f"asked to be retried in {seconds:g} s")
        self.seconds = seconds
        self.message = str(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.seconds, self.message))


class Snooze(JobmeshError):
    """Raise or return it in a handler that cannot go on now: the job is due again after `delay`.

    Neither success nor failure: it costs no attempt, and what was checkpointed stays. `delay` is
    in seconds (or a timedelta), at most 30 days. A subclass that does not pass one on to
    `super().__init__` is a failure.
    """

    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if not 0 <= seconds <= MAX_SNOOZE_SECONDS:  # what is no number is refused as well
            raise ValueError(f"delay: {seconds} is not from 0 s to 30 days")
        super().__init__(message or f"asked to be run again in {seconds:g} s")
        self.seconds = seconds
        self.message = str(self)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.seconds, self.message))


class AttemptCancelled(JobmeshError):
    """This attempt is no longer wanted: the job was cancelled, or the worker lost it."""


# --- raised by job handles


class JobFailed(JobmeshError):
    """The job ended FAILED, CANCELLED or EXPIRED; `job` is its last state."""

    def __init__(self, job: Job) -> None:
        self.job = job
        why = f": {job.failure}" if job.failure else ""
        super().__init__(f"job {job.id} is {job.state}{why}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.job,))


class WaitTimeout(JobmeshError, TimeoutError):
    """The job did not end in time. It goes on: this bounds only the wait."""


# --- answers of the mesh


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks a rule: its path in the request, and what is expected."""

    field: str
    description: str


HINTS: Mapping[str, str] = {
    "UNKNOWN_TYPE": "start a worker that serves it: jobmesh worker --app MODULE",
    "IDEMPOTENCY_CONFLICT": "use another key, or send exactly what was sent first",
    "UNIQUE_CONFLICT": "wait until it has ended, or keep it: the policy KEEP returns it",
    "PAYLOAD_TOO_LARGE": "pass a pathlib.Path, and it is uploaded as a file",
    "NO_HEALTHY_SHARD": "look at: jobmesh shard list",
    "SHARD_UNAVAILABLE": "look at: jobmesh shard list",
    "SCHEDULE_EXISTS": "choose another name; or change it: jobmesh schedule update NAME; "
    "or delete it: jobmesh schedule delete NAME",
    "POOL_EXISTS": "it has other settings: jobmesh pool show TYPE; "
    "change them: jobmesh pool set TYPE",
    "UNREACHABLE": "start a mesh here with: jobmesh up, or set {variable}",
}


#: Where the command's own words are clearer than the service's.
MESSAGES: Mapping[str, str] = {
    "UNKNOWN_TYPE": "job.type: no worker and no pool has announced {type!r}",
}


class CallError(JobmeshError):
    """The mesh refused a call, or could not be reached. `str()` is one line for people."""

    code: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        status: str = "",
    ) -> None:
        self.message = message
        self.reason = reason
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        #: Seconds the server asks to wait before a retry; None when it did not say.
        self.retry_after = retry_after
        #: Name of the gRPC status code, such as "NOT_FOUND".
        self.status = status or self.code
        super().__init__(self.line)

    @property
    def hint(self) -> str:
        """What to do about it; empty when there is nothing general to say."""
        named = {"variable": "JOBMESH_ADDRESS", **self.metadata}
        return HINTS.get(self.reason, "").format_map(named)

    @property
    def line(self) -> str:
        """The message with its reason, and the hint: `… (UNKNOWN_TYPE) — start a worker …`."""
        tail = f" — {self.hint}" if self.hint else ""
        return f"{self.message} ({self.reason or self.status}){tail}"


class InvalidArgument(CallError):
    code = "INVALID_ARGUMENT"


class NotFound(CallError):
    code = "NOT_FOUND"


class AlreadyExists(CallError):
    code = "ALREADY_EXISTS"


class OutOfRange(CallError):
    code = "OUT_OF_RANGE"


class FailedPrecondition(CallError):
    code = "FAILED_PRECONDITION"


class Aborted(CallError):
    code = "ABORTED"


class ResourceExhausted(CallError):
    code = "RESOURCE_EXHAUSTED"


class Unavailable(CallError):
    code = "UNAVAILABLE"


class DeadlineExceeded(CallError):
    code = "DEADLINE_EXCEEDED"


class Unimplemented(CallError):
    code = "UNIMPLEMENTED"


class InternalError(CallError):
    code = "INTERNAL"


BY_CODE: Mapping[str, type[CallError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        OutOfRange,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Unimplemented,
        InternalError,
    )
}


def call_error(
    status: str,
    message: str,
    *,
    reason: str = "",
    violations: Sequence[FieldViolation] = (),
    metadata: Mapping[str, str] | None = None,
    retry_after: float | None = None,
) -> CallError:
    """The error of the class that `status` (a gRPC code's name) stands for."""
    kind = BY_CODE.get(status, CallError)
    if reason in MESSAGES:
        message = MESSAGES[reason].format_map({"type": "", **(metadata or {})})
    return kind(
        message,
        reason=reason,
        violations=violations,
        metadata=metadata,
        retry_after=retry_after,
        status=status,
    )
