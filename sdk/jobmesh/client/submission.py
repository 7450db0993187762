"""Submitting: what may be sent again, and how many jobs fit into one message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jobmesh.client.chains import OUTCOME_UNKNOWN, PARENT_NOT_STORED, Parent
from jobmesh.client.convert import to_timestamp
from jobmesh.client.status import is_transient
from jobmesh.errors import CallError, JobmeshError, call_error
from jobmesh.handlers import JobFunction
from jobmesh.options import NewJob
from jobmesh.policies import to_duration, to_retry_policy
from jobmesh.retry import Retry
from jobmesh.ties import Unique, Waits, waits_of
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2 import EnqueueItem
from jobmesh.v1.job_pb2 import JobSpec
from jobmesh.v1.payload_pb2 import Payload

#: The contract's bounds of a batch; the bytes leave room for the message around the items.
MAX_BATCH_ITEMS = 1000
MAX_BATCH_BYTES = 4 * 1024 * 1024 - 64 * 1024
#: An id of 36 characters, a policy, and what is around them.
DEPENDENCY_BYTES = 50

ON_FAILURE = {
    "cancel": job_pb2.PARENT_FAILURE_POLICY_CANCEL,
    "run": job_pb2.PARENT_FAILURE_POLICY_RUN,
    "fail": job_pb2.PARENT_FAILURE_POLICY_FAIL,
}
_UNIQUE = {
    "keep": job_pb2.UNIQUE_POLICY_KEEP,
    "replace": job_pb2.UNIQUE_POLICY_REPLACE,
    "refuse": job_pb2.UNIQUE_POLICY_REFUSE,
}

#: Reasons that say for certain that this try has stored nothing.
NOT_STORED = frozenset(
    {"SHARD_UNAVAILABLE", "NO_HEALTHY_SHARD", "STALE_EPOCH", "OVERLOADED", "DRAINING"}
)
#: The same of errors that no other try can help.
REFUSED = frozenset({PARENT_NOT_STORED, "QUOTA_EXCEEDED", "UNKNOWN_TYPE"})


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of one job of `enqueue_many`."""

    #: The stored job's id; empty if it was not stored.
    id: str = ""
    #: The idempotency key was known and this is the job of the first call, or this live one holds
    #: the unique key.
    existing: bool = False
    error: JobmeshError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class EnqueueFailed(JobmeshError):  # noqa: N818 - named like the rest of the tree
    """Some jobs of `enqueue_many` were not stored; `acks` says which, in the order given."""

    def __init__(self, acks: Sequence[Ack]) -> None:
        self.acks = list(acks)
        failed = [ack for ack in acks if not ack.ok]
        super().__init__(
            f"{len(failed)} of {len(acks)} jobs were not stored; the first: {failed[0].error}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.acks,))


@dataclass(slots=True)
class Key:
    """The idempotency key of one submission, and whether it may be sent again.

    Only a few errors make it certain that nothing was stored; after any other the job may be sent
    again only under the same key. A key of our own making also fixes the job's shard: when that one
    is away, and no earlier try can have stored the job, another key is another chance.
    """

    value: str
    own: bool
    certain: bool = True

    @classmethod
    def of(cls, given: str | None, make: bool = True, tag: str = "") -> Key:
        """The caller's, or one of our own: with a tag, at the place of others that have it."""
        if given is not None:
            return cls(given, own=False)
        return cls(tag + fresh_key() if make else "", own=make)

    def may_repeat(self, error: CallError) -> bool:
        """Decides about one more try after `error`, and changes the key if that helps."""
        if not is_transient(error):
            return False
        if error.reason not in NOT_STORED:
            self.certain = False
            return bool(self.value)
        if error.reason == "SHARD_UNAVAILABLE" and self.own and self.certain:
            self.value = fresh_key()
            error.retry_after = None  # meant for the shard that is away; we go elsewhere
        return True

    def told(self, error: CallError) -> CallError:
        """What to tell after the last try. That one may be certain to have stored nothing, and an
        earlier one not.
        """
        if self.certain or error.reason not in NOT_STORED | REFUSED:
            return error
        text = f"an earlier try may have stored it; the last one: {error.message}"
        return call_error("UNAVAILABLE", text, reason=OUTCOME_UNKNOWN, metadata=error.metadata)


def fresh_key() -> str:
    return os.urandom(16).hex()


def fresh_tag() -> str:
    """For the keys of jobs that travel together: they are stored together, too."""
    return f"{{{os.urandom(4).hex()}}}"


def type_of(new: NewJob) -> str:
    return new.type.spec.type if isinstance(new.type, JobFunction) else new.type


def function_of(new: NewJob) -> JobFunction[..., Any] | None:
    return new.type if isinstance(new.type, JobFunction) else None


def to_spec(new: NewJob, payload: Payload, after: Waits | None = None) -> JobSpec:
    """The job as the contract says it. What is not said, the decorated function may say.

    `after` are those of `new.after` that have ids, where some have none yet.
    """
    if new.at is not None and new.delay is not None:
        raise ValueError("give at or delay, not both")
    is_empty = payload.WhichOneof("content") is None and not payload.content_type
    spec = JobSpec(
        type=type_of(new),
        input=None if is_empty else payload,
        priority=new.priority,
        labels=new.labels or None,
        concurrency_key=new.concurrency_key,
    )
    if new.at is not None:
        spec.schedule_time.CopyFrom(to_timestamp(new.at, "at"))
    if new.delay is not None:
        spec.delay.CopyFrom(to_duration(new.delay))
    if new.expire is not None:
        spec.expire_time.CopyFrom(to_timestamp(new.expire, "expire"))
    _apply_policies(spec, new)
    _apply_ties(spec, new, new.after if after is None else after)
    return spec


def _apply_ties(spec: JobSpec, new: NewJob, after: Waits) -> None:
    for wait in waits_of(after):
        spec.dependencies.add(job_id=wait.job_id, on_failure=ON_FAILURE[wait.on_failure])
    if new.unique is not None:
        unique = Unique(new.unique) if isinstance(new.unique, str) else new.unique
        spec.unique_key, spec.unique_policy = unique.key, _UNIQUE[unique.policy]


def _apply_policies(spec: JobSpec, new: NewJob) -> None:
    function = function_of(new)
    retry = _retry(new, function)
    if retry is not None:
        spec.retry_policy.CopyFrom(to_retry_policy(retry))
    timeout = new.timeout
    if timeout is None and function is not None:
        timeout = function.spec.timeout
    bounds = {
        "run": timeout,
        "start": new.start_timeout,
        "progress": new.progress_timeout,
        "total": new.total_timeout,
    }
    for name, bound in bounds.items():
        if bound is not None:
            getattr(spec.timeouts, name).CopyFrom(to_duration(bound))


def _retry(new: NewJob, function: JobFunction[..., Any] | None) -> Retry | None:
    if new.retry is not None and new.retries is not None:
        raise ValueError("give retry or retries, not both")
    if new.retry is not None:
        return new.retry
    if new.retries is None:
        return None if function is None else function.spec.asked_retry
    if new.retries < 0:
        raise ValueError(f"retries must not be negative, not {new.retries}")
    # None at all, said outright, is meant: else the type's default would hold.
    return Retry.exponential(attempts=new.retries + 1) if new.retries else Retry.none()


# --- batches


@dataclass(slots=True)
class Submission:
    """One job of a batch on its way: its place among the acks, its key, what it waits for."""

    index: int
    spec: JobSpec
    key: Key
    parents: Sequence[Parent] = ()

    def item(self) -> EnqueueItem:
        return EnqueueItem(job=self.spec, idempotency_key=self.key.value)


@dataclass(slots=True)
class Batch:
    """Submissions that fit into one message."""

    submissions: list[Submission] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, submission: Submission) -> bool:
        """Takes it, or says that it belongs into the next batch."""
        # Key, tags and lengths of the item around the spec stay well below this.
        size = submission.spec.ByteSize() + 300 + DEPENDENCY_BYTES * len(submission.parents)
        full = len(self.submissions) >= MAX_BATCH_ITEMS
        if full or (self.submissions and self.size_bytes + size > MAX_BATCH_BYTES):
            return False
        self.submissions.append(submission)
        self.size_bytes += size
        return True
