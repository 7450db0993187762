"""What services ask of the coordination store. No driver, no wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.limits import Limit, Place

DEPENDENCY = "etcd"


class LeaseLost(DependencyUnavailable):
    """The lease is gone or no longer to be trusted: nothing may be started under it."""

    def __init__(self, lease_id: int, why: str) -> None:
        super().__init__(DEPENDENCY, f"lease {lease_id:x} cannot be used: {why}")


class LeaseState(Enum):
    """How much its holder may believe in a lease; see the package's docstring."""

    HELD = "held"
    DOUBTFUL = "doubtful"
    LOST = "lost"
    CLOSED = "closed"


class Lease(Protocol):
    """A lease that is being kept alive."""

    @property
    def lease_id(self) -> int: ...

    @property
    def state(self) -> LeaseState: ...

    @property
    def alive(self) -> bool:
        """Inside the trust window, by the clock of this instant."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once the server said that the lease is gone."""
        ...

    def on_change(self, callback: Callable[[LeaseState], None]) -> None:
        """Call back on every change of state, on the event loop."""
        ...

    async def close(self) -> None:
        """Stop renewing and revoke: every key under the lease vanishes now. May be called twice."""
        ...


# --- locks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockOwner:
    """Who holds a job's lock, and for which dispatch."""

    worker_id: str
    fence: int

    @classmethod
    def parse(cls, value: bytes) -> LockOwner:
        """Read "<worker_id>/<fence>". A strange value has no fence, but is a lock all the same."""
        worker_id, _, fence = value.decode(errors="replace").rpartition("/")
        return cls(worker_id, int(fence) if fence.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class LockResult:
    """Every job asked for is in exactly one of the two."""

    acquired: list[bytes] = field(default_factory=list)
    held: dict[bytes, LockOwner] = field(default_factory=dict)


class Locks(Protocol):
    """Job locks under one lease. Jobs are the 16 bytes of their ids, as they travel."""

    async def lock(self, fences: Mapping[bytes, int]) -> LockResult:
        """Lock each job for the given fence.

        Raises LeaseLost if the lease cannot be trusted, before or after; DependencyUnavailable if
        etcd did not answer, in which case some may be locked: call again, or `unlock` them all.
        """
        ...

    async def unlock(self, fences: Mapping[bytes, int]) -> None:
        """Give locks back. Those of others, already gone or taken again since are left alone."""
        ...


class LockTable(Protocol):
    """A look at everyone's locks."""

    async def held(self, jobs: Iterable[bytes]) -> dict[bytes, LockOwner]:
        """Those of the jobs that are locked, and by whom."""
        ...


# --- places of limits ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlaceWish:
    """Who wants a place of each of some limits. `owner` is unique to the attempt."""

    owner: str
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """Every owner is in exactly one of the two: its places, or the limit that had none for it."""

    taken: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    full: dict[str, str] = field(default_factory=dict)


class Places(Protocol):
    """Places of limits under one lease: while it lives, and until they are given back."""

    async def take(self, wishes: Sequence[PlaceWish]) -> PlaceResult:
        """Take a place of each limit for each owner, or none of them.

        Raises as `Locks.lock` does; after DependencyUnavailable some may be taken: they end with
        the lease.
        """
        ...

    async def give_back(self, places: Iterable[Place]) -> None:
        """Give places back. Those of others, or already gone, are left alone."""
        ...


# --- keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it stands. `revision` is that of its latest write; `lease_id` is 0 for a key that
    stays.
    """

    key: str
    value: bytes
    revision: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there was when the watch began: always the first event, and never a later one."""

    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Put:
    """A key was created or written again."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key is gone; `entry` is the last that was seen of it. `revision` is that of its deletion,
    or of the list that it was missing from.
    """

    entry: Entry
    revision: int


WatchEvent = Snapshot | Put | Deleted


class Registry(Protocol):
    """Small keys: membership under leases, and settings that stay."""

    async def get(self, key: str) -> Entry | None: ...

    async def entries(self, prefix: str) -> list[Entry]:
        """All keys under the prefix as of one revision, by name."""
        ...

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        """Write the key and return its new revision. Raises LeaseLost if the lease is gone."""
        ...

    async def replace(
        self, key: str, value: bytes, revision: int, lease: Lease | None = None
    ) -> int | None:
        """Write only if the key still stands at `revision` (0: does not exist).

        Returns the new revision, or None if it changed meanwhile. After DependencyUnavailable the
        outcome is unknown: read again.
        """
        ...

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Delete the key, or only if it still stands at `revision`. Whether it was deleted."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """A Snapshot, then every change. Never ends by itself: breaks are repaired inside. Close
        with `aclosing`.
        """
        ...


class Leadership(Protocol):
    """A candidate for one key, which whoever holds it leads."""

    @property
    def is_leader(self) -> bool:
        """Holds the key, and the lease is inside its trust window."""
        ...

    def on_change(self, callback: Callable[[bool], None]) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Give up leading, if we do, and stop trying."""
        ...
