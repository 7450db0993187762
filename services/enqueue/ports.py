"""What Enqueue's use cases need from outside, as narrow as they use it.

Messages of the wire pass through the use cases unopened: what they need to know about one stands
beside it.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from services.enqueue.domain.explaining import Surroundings
from services.mesh.jobs.logs import LogLine
from services.mesh.jobs.model import Position
from services.mesh.jobs.record import record


@record
class Change:
    """A job's state or transition: which version it is, and the message to deliver."""

    job_id: str
    version: int
    terminal: bool
    message: Any


class JobSource(Protocol):
    """The truth about jobs, by way of the Orchestrators."""

    async def snapshots(self, namespace: str, job_ids: Sequence[str]) -> list[Change]:
        """Each job as it is, in order. Raises the first error, JobNotFound among them."""
        ...

    async def ends(
        self, namespace: str, jobs: Mapping[bytes, str]
    ) -> tuple[list[Change], list[str]]:
        """The transitions that ended jobs, of those that have ended; and shards that are away.

        Jobs are named by their 16 bytes, and by text. Raises JobNotFound. With an empty namespace,
        whatever theirs is.
        """
        ...

    async def changes_after(self, seen: Mapping[str, int]) -> tuple[list[Change], list[str]]:
        """The transitions after the versions seen, by job and version; and shards that are away."""
        ...


class HintFeed(Protocol):
    """Transitions as the broker brings them: fast, and perhaps not all."""

    async def open(
        self,
        wanted: Mapping[bytes, str],
        sink: Callable[[Sequence[Change]], None],
        ends_only: Callable[[], bool],
    ) -> None:
        """Begin; when this returns, what is committed from now on is on its way.

        Only jobs whose id, as 16 bytes, is wanted at that moment are looked at; it is known as that
        text. While `ends_only`, nobody wants transitions but those that end jobs.
        """
        ...

    async def close(self) -> None: ...


class ProgressFeed(Protocol):
    """What running handlers say about their advance, as the broker brings it. May miss some."""

    async def open(
        self, wanted: Container[bytes], sink: Callable[[Sequence[tuple[str, Any]]], None]
    ) -> None:
        """Begin; `sink` is given job ids with messages, of jobs that are wanted at that moment."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tried:
    """One dispatch of a job, as a reader of logs sees it."""

    attempt: int
    fence: int
    worker_id: str
    ended: bool


class LogSource(Protocol):
    """Where the log lines of attempts are."""

    async def dispatches(self, namespace: str, job_id: str) -> tuple[Sequence[Tried], bool]:
        """All so far, oldest first; and whether the job has ended. Raises JobNotFound."""
        ...

    async def kept(self, namespace: str, job_id: str, fence: int) -> Sequence[LogLine]:
        """The lines that were kept of a dispatch that has ended; none if it said nothing."""
        ...

    def live(
        self, job_id: str, tried: Tried, after: int, *, once: bool
    ) -> AsyncGenerator[Sequence[LogLine], None]:
        """The lines of a running one after a number, from its worker; ends when that is away."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A transition at its place in the order of its shard. Shared by all watches that want it."""

    shard: str
    place: Position
    job_id: str
    version: int
    namespace: str
    type: str
    state: int
    labels: Mapping[str, str]
    message: Any


@dataclass(frozen=True, slots=True)
class OrderPage:
    """Transitions in the order of one shard; see ListShardEvents."""

    events: Sequence[Placed]
    next: Position
    more: bool
    truncated: bool
    next_xid: int
    lasting: Position


@dataclass(frozen=True, slots=True)
class LivePage:
    """Jobs that have not ended, newest first, each with its shard; `missing` are shards away."""

    jobs: Sequence[tuple[str, Change]]
    more: bool
    missing: Sequence[str]


class OrderSource(Protocol):
    """The order of events of each shard, by way of the Orchestrators."""

    async def shards(self) -> Sequence[str]:
        """Their names."""
        ...

    async def page(
        self,
        shard: str,
        after: Position | None,
        namespaces: Iterable[str] = (),
        types: Iterable[str] = (),
    ) -> OrderPage:
        """A page after a place; without one, only where the order ends now."""
        ...

    async def live_jobs(self, namespace: str, matching: Any, before: str) -> LivePage:
        """A page of the jobs that match a filter of the wire and have not ended."""
        ...


class HintBell(Protocol):
    """Says that a shard has committed something, without saying what. May miss some."""

    async def open(self, ring: Callable[[str, Collection[str]], None]) -> None:
        """Begin; `ring` is given the shard, and names among which are the tenants and types."""
        ...

    async def close(self) -> None: ...


class TypeSurroundings(Protocol):
    """What is known about a type besides its jobs."""

    async def of(self, type_: str, key: UUID | None = None) -> Surroundings:
        """Its workers, pool and limits (that of the key too), and whether it is paused.

        Never raises for a store that is away.
        """
        ...
