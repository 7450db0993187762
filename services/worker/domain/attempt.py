"""One attempt in the worker's hands, and the batch it came with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING
from uuid import UUID

from services.mesh.jobs.limits import Limit, Place
from services.mesh.jobs.model import ObjectRef, Payload
from services.worker.domain.clocks import ShardClocks

if TYPE_CHECKING:
    from services.worker.domain.ending import Verdict


@unique
class Stop(Enum):
    """Why a running attempt is stopped from outside."""

    TIMEOUT = "timeout"
    """It ran longer than allowed."""
    SILENCE = "silence"
    """Its handler gave no sign of life for longer than allowed."""
    TOTAL = "total"
    """The job's total time is over."""
    STALE = "stale"
    """The row moved on without it: nobody wants to hear of it any more."""
    CANCELLED = "cancelled"
    """A hint said that its job was cancelled. Hints decide nothing, so the row is still asked."""
    OPERATOR = "operator"
    """Someone called CancelAttempt."""
    DRAIN = "drain"
    """The worker ends."""


@dataclass(slots=True, eq=False)
class Attempt:
    """What was dispatched, and what has become of it here."""

    key: bytes
    """The job's id as it travels, 16 bytes."""
    fence: int
    type: str
    namespace: str
    number: int
    max_attempts: int = 0
    data: bytes = b""
    object: ObjectRef | None = None
    content_type: str = ""
    run_timeout: float | None = None
    progress_timeout: float | None = None
    """The longest silence of its handler."""
    total_left: float | None = None
    """What was left of the job's total time when it was dispatched."""
    checkpoint: Payload | None = None
    """What an earlier attempt stored to go on from."""
    traceparent: str = ""
    due_us: int = 0
    not_before: float = 0.0
    """When it may start, by our monotonic clock: it was sent ahead of its time."""
    limits: tuple[Limit, ...] = ()
    """Of which it takes a place each while it runs."""

    start_us: int = 0
    """When its handler started, by our clock; 0 before."""
    began: float = 0.0
    """The same by the monotonic clock."""
    executor_pid: int = 0
    locked: bool = False
    """We hold its lock, or may do so."""
    places: tuple[Place, ...] = ()
    """Those it has."""
    runs: bool = False
    """It takes up one of those that may run at once."""
    stop: Stop | None = None
    on_verdict: Callable[[Verdict], None] | None = None
    """Who wants to hear what the row said to its ending, if anybody does."""

    def another(self, key: bytes, data: bytes, due_us: int) -> Attempt:
        """One that came beside this one, and differs from it in so much only."""
        return Attempt(  # by place, for keywords cost more
            key,
            self.fence,
            self.type,
            self.namespace,
            self.number,
            self.max_attempts,
            data,
            self.object,
            self.content_type,
            self.run_timeout,
            self.progress_timeout,
            self.total_left,
            self.checkpoint,
            self.traceparent,
            due_us,
            0.0,
            self.limits,
        )

    @property
    def has_begun(self) -> bool:
        return self.start_us > 0

    @property
    def job_id(self) -> UUID:
        """For people, and for keys of objects: most attempts need it only as it travels."""
        return UUID(bytes=self.key)

    def __repr__(self) -> str:
        return f"<attempt {self.number} of {self.type} {self.job_id} fence {self.fence}>"


@dataclass(frozen=True, slots=True)
class Batch:
    """What a scheduler answered to a grab, or an Orchestrator that had it on loan."""

    type: str
    grab_no: int
    attempts: list[Attempt] = field(default_factory=list)
    scheduler_id: str = ""
    draining: bool = False
    """The scheduler goes away: ask again at once, another one will hear it."""
    now_us: int = 0
    """What the shard's clock showed at least when it was sent. Attempts due later have to wait."""

    clock: int = 0
    """Which clock that is."""
    grab_at: str = ""
    """Where the next grab is best sent; empty: to any scheduler."""
    more: bool = False
    """The grab is not answered by this: what is left of its credit may bring more."""

    def hold(self, arrived: float, clocks: ShardClocks) -> None:
        """Hold back what is not due yet; `arrived` by the monotonic clock.

        The shard's clock is seen from below: whoever waits for the difference may be late by as
        long as messages take, and is never early.
        """
        if self.now_us:
            now_us = clocks.seen(self.clock, self.now_us, arrived) if self.clock else self.now_us
            for attempt in self.attempts:
                if attempt.due_us > now_us:
                    attempt.not_before = arrived + (attempt.due_us - now_us) / 1e6
