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

    base        what every error is, and how it is rebuilt from the wire
    refusals    the request cannot be done as it stands
    outages     the mesh cannot do it now, or not at all

Nothing here imports anything outside the standard library: the purest code of the mesh raises from
it. A class whose message never varies needs no constructor: `says` is the message.
"""

from __future__ import annotations

from services.mesh.errors.base import DOMAIN, Code, FieldViolation, MeshError, RemoteError, Resource
from services.mesh.errors.outages import (
    DataLoss,
    DeadlineExceeded,
    DependencyUnavailable,
    Draining,
    InternalError,
    NoHealthyShard,
    NotImplementedYet,
    ObjectCorrupt,
    OutcomeUnknown,
    Overloaded,
    QuotaExceeded,
    ResourceExhausted,
    ShardBusy,
    ShardUnavailable,
    SlowConsumer,
    StaleEpoch,
    Unavailable,
)
from services.mesh.errors.refusals import (
    Aborted,
    AlreadyExists,
    AttachRefused,
    AttemptNotFound,
    EtagMismatch,
    FailedPrecondition,
    ForbiddenTransition,
    IdempotencyConflict,
    InvalidArgument,
    InvalidField,
    InvalidToken,
    JobNotFound,
    NotFound,
    ObjectNotFound,
    OutOfRange,
    PageTokenInvalid,
    ParentNotStored,
    PayloadTooLarge,
    PoolExists,
    PoolNotFound,
    ResumeTokenExpired,
    ResumeTokenInvalid,
    ScheduleExists,
    ScheduleNotFound,
    ShardNotFound,
    StaleFence,
    UniqueConflict,
    UnknownType,
    WorkerNotFound,
)

__all__ = [
    "DOMAIN",
    "Aborted",
    "AlreadyExists",
    "AttachRefused",
    "AttemptNotFound",
    "Code",
    "DataLoss",
    "DeadlineExceeded",
    "DependencyUnavailable",
    "Draining",
    "EtagMismatch",
    "FailedPrecondition",
    "FieldViolation",
    "ForbiddenTransition",
    "IdempotencyConflict",
    "InternalError",
    "InvalidArgument",
    "InvalidField",
    "InvalidToken",
    "JobNotFound",
    "MeshError",
    "NoHealthyShard",
    "NotFound",
    "NotImplementedYet",
    "ObjectCorrupt",
    "ObjectNotFound",
    "OutOfRange",
    "OutcomeUnknown",
    "Overloaded",
    "PageTokenInvalid",
    "ParentNotStored",
    "PayloadTooLarge",
    "PoolExists",
    "PoolNotFound",
    "QuotaExceeded",
    "RemoteError",
    "Resource",
    "ResourceExhausted",
    "ResumeTokenExpired",
    "ResumeTokenInvalid",
    "ScheduleExists",
    "ScheduleNotFound",
    "ShardBusy",
    "ShardNotFound",
    "ShardUnavailable",
    "SlowConsumer",
    "StaleEpoch",
    "StaleFence",
    "Unavailable",
    "UniqueConflict",
    "UnknownType",
    "WorkerNotFound",
]
