"""The records that travel between services and the store: what a job is, what happened to it, what
was reported.

All times are aware datetimes in UTC that came from a shard's clock. Records are values: frozen,
compared by content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from services.mesh.jobs.limits import Limit
from services.mesh.jobs.record import record
from services.mesh.jobs.retry import Failure, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, Ties, UniquePolicy

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_MILLISECOND = timedelta(milliseconds=1)


def no_labels() -> Mapping[str, str]:
    """The default of a field: one empty, read-only mapping for all."""
    return NO_LABELS


@record
class ObjectRef:
    """An object in the input or the output store."""

    key: str
    size: int
    sha256: bytes = b""
    """Empty when unknown (uploads through a pre-signed URL)."""

    def to_json(self) -> dict[str, Any]:
        """The form in the row."""
        return {"key": self.key, "size": self.size, "sha256": self.sha256.hex()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObjectRef:
        """Read what `to_json` wrote."""
        return cls(data["key"], int(data["size"]), bytes.fromhex(data["sha256"]))


@record
class Timeouts:
    """Bounds on the phases of a job; None is no bound."""

    run: timedelta | None = None
    """From a handler's start to its end."""
    start: timedelta | None = None
    """From the first due time to the first start; then the job expires."""
    progress: timedelta | None = None
    """The longest silence of a handler that reports progress."""
    total: timedelta | None = None
    """From the first due time to the end; no attempt is begun after it."""

    def to_json(self) -> dict[str, int]:
        """The form in the row: milliseconds, and only what is set."""
        named = {"run": self.run, "start": self.start}
        named |= {"progress": self.progress, "total": self.total}
        return {name: value // _MILLISECOND for name, value in named.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, int] | None) -> Timeouts:
        """Read what `to_json` wrote; None is no bounds."""
        if not data:
            return NO_TIMEOUTS
        known = ("run", "start", "progress", "total")
        return cls(**{name: data[name] * _MILLISECOND for name in known if name in data})


NO_TIMEOUTS = Timeouts()


@record
class Payload:
    """An input or an output: bytes inline, or an object, or (in a list) only its size."""

    content_type: str = ""
    data: bytes | None = None
    ref: ObjectRef | None = None
    size: int = 0

    @classmethod
    def inline(cls, data: bytes, content_type: str = "") -> Payload:
        """A payload that travels inside the row."""
        return cls(content_type, data, None, len(data))

    @classmethod
    def stored(cls, ref: ObjectRef, content_type: str = "") -> Payload:
        """A payload that stays in an object store."""
        return cls(content_type, None, ref, ref.size)


NO_PAYLOAD = Payload()


@record
class NewJob:
    """A job to be written. Its id was minted by the caller, in a bucket of the shard it is written
    to.
    """

    id: UUID
    namespace: str
    type: str
    input: Payload = NO_PAYLOAD
    priority: int = 0
    """Higher goes first, -32768 to 32767."""
    due_time: datetime | None = None
    """When it may run. None: `delay` after the shard's now."""
    delay: timedelta | None = None
    expire_time: datetime | None = None
    """A job that has spent no attempt by then expires; `timeouts.start` may say sooner."""
    timeouts: Timeouts = NO_TIMEOUTS
    retry: RetryPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=no_labels)
    idempotency_key: str | None = None
    request_hash: bytes | None = None
    """What the key stands for (`request_hash_of`); another hash under the same key is a conflict.
    """
    traceparent: str | None = None
    schedule_id: UUID | None = None
    nominal_time: datetime | None = None
    origin_id: UUID | None = None
    """The job that this one repeats."""
    concurrency_key: str | None = None
    """Jobs of a type and namespace with the same one share a limit."""
    ties: Ties | None = None
    """What it waits for, and the key that it alone may hold; most jobs have neither."""


def request_hash_of(job: NewJob) -> bytes:
    """What a repeated request must equal: all that the caller said, and nothing that was minted for
    it.
    """
    stable = (
        job.namespace,
        job.type,
        job.input.content_type,
        None if job.input.data is None else hashlib.sha256(job.input.data).hexdigest(),
        None if job.input.ref is None else job.input.ref.to_json(),
        job.priority,
        None if job.due_time is None else job.due_time.isoformat(),
        None if job.delay is None else job.delay // _MILLISECOND,
        None if job.expire_time is None else job.expire_time.isoformat(),
        job.timeouts.to_json(),
        None if job.retry is None else job.retry.to_json(),
        sorted(job.labels.items()),
        job.concurrency_key,
        None if job.ties is None else job.ties.said(),
    )
    return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).digest()


@record
class Progress:
    """What a running handler said about its advance."""

    done: float
    total: float
    """0 when unknown."""
    message: str
    time: datetime
    """When it was said, by the worker's clock."""


@record
class JobProgress:
    """The progress of one attempt of a job."""

    job_id: UUID
    namespace: str
    type: str
    attempt: int
    progress: Progress


@record
class JobRecord:
    """The row of a job."""

    id: UUID
    namespace: str
    type: str
    state: JobState
    version: int
    priority: int
    attempt: int
    """Attempts spent so far, the one in flight included."""
    losses: int
    fence: int
    """`dispatch_no`: how often it was dispatched."""
    worker_id: str | None
    due_time: datetime
    first_due_time: datetime
    create_time: datetime
    dispatch_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    expire_time: datetime | None
    timeouts: Timeouts
    retry: RetryPolicy | None
    labels: Mapping[str, str]
    input: Payload
    output: Payload
    failure: Failure | None
    idempotency_key: str | None
    traceparent: str | None
    schedule_id: UUID | None
    nominal_time: datetime | None
    origin_id: UUID | None
    schedule: str = ""
    """The name of the schedule that made it, also when that is gone."""
    progress: Progress | None = None
    """The last one that the newest dispatch reported. Not in lists."""
    concurrency_key: str | None = None
    unique_key: str = ""
    unique_policy: UniquePolicy | None = None
    """What its submission said of the key; None without one, and of jobs of older versions."""
    dependencies: tuple[Dependency, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in one shard's order of events. Everything below the horizon is final; see the
    store's docstring.
    """

    xid: int
    number: int


@record
class JobEvent:
    """One committed transition."""

    job_id: UUID
    version: int
    state: JobState
    cause: Cause
    time: datetime
    attempt: int
    """The attempt it belongs to, 0 before the first."""
    fence: int
    """The dispatch it belongs to, 0 before the first."""
    worker_id: str | None
    due_time: datetime | None
    """When the job is due again; set on each transition to SCHEDULED."""
    failure: Failure | None
    note: str | None
    namespace: str
    type: str
    labels: Mapping[str, str] = field(default_factory=no_labels, compare=False)
    position: Position | None = field(default=None, compare=False)
    """Like the labels: set when the event was read back, not when it was just written."""
    awaited: bool = field(default=False, compare=False)
    """The job has ended and others wait for that; set when it was just written."""


@record
class EventColumns:
    """Committed transitions in columns, where there are too many for a record each. Those of one
    job are in order.
    """

    keys: list[bytes]
    """The jobs' ids, 16 bytes each."""
    versions: list[int]
    states: list[JobState]
    causes: list[Cause]
    times_us: list[int]
    attempts: list[int]
    fences: list[int]
    namespaces: list[str]
    types: list[str]
    workers: list[str]
    awaited: bool = False
    """Others wait for the end of some of the jobs."""


@record
class Claimed:
    """A job handed to a worker, with all the worker needs."""

    id: UUID
    namespace: str
    type: str
    fence: int
    attempt: int
    max_attempts: int
    due_time: datetime
    dispatch_time: datetime
    timeouts: Timeouts
    input: Payload
    traceparent: str | None
    version: int
    """Of the transition to this dispatch."""
    total_left: timedelta | None = None
    """What was left of its total time at the dispatch."""
    checkpoint: Payload | None = None
    """What an earlier attempt stored to go on from."""
    limit_key: UUID | None = None
    """Of its namespace and concurrency key; known where its type has a limit per key."""
    limits: tuple[Limit, ...] = ()
    """Of which it takes a place each while it runs."""


@record
class JobFilter:
    """What to list. Empty fields do not restrict."""

    namespace: str | None = None
    states: frozenset[JobState] = frozenset()
    types: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=no_labels)
    """All of them must match."""
    created_after: datetime | None = None
    """Inclusive."""
    created_before: datetime | None = None
    """Exclusive."""
    schedule_id: UUID | None = None
    redriven: bool | None = None
    """Whether a job that repeats it was ever made."""


@record
class EventFilter:
    """Which events a watch wants. Empty fields do not restrict."""

    namespace: str | None = None
    types: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=no_labels)
    """All of them must match."""

    def matches(self, event: JobEvent) -> bool:
        """Whether the watch wants this event. The event must carry its job's labels."""
        return (
            (self.namespace is None or self.namespace == event.namespace)
            and (not self.types or event.type in self.types)
            and all(event.labels.get(name) == value for name, value in self.labels.items())
        )


@record
class BacklogStat:
    """The backlog of one type on one shard."""

    type: str
    due: int
    """Due jobs nobody runs yet; `capped` says that there may be more."""
    capped: bool
    oldest_age: timedelta
    """How long the oldest due job has been waiting; zero if none is due."""
    dispatched: int
    running: int
    next_due_time: datetime | None
    """When the next job that is not due yet, or the next run of a schedule, becomes due."""
