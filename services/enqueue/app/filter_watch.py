"""One watch by filter: what waits to be sent, and how far its shards' orders were delivered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from services.enqueue.app.watch import Delivery, Kind
from services.enqueue.domain.filtering import FilterProgress, WatchFilter
from services.enqueue.domain.tokens import filter_digest, places_token
from services.enqueue.ports import Placed
from services.mesh.errors import MeshError, ShardUnavailable, SlowConsumer


class FilterWatch:
    """One caller's watch: an outbox, and how far its shards' orders were delivered."""

    __slots__ = (
        "attached",
        "digest",
        "failure",
        "filter",
        "held",
        "is_delivering",
        "limit",
        "matching",
        "most",
        "outbox",
        "pending",
        "progress",
        "wake",
    )

    def __init__(self, wanted: WatchFilter, matching: Any, limit: int, most: int) -> None:
        self.filter, self.matching = wanted, matching
        self.limit, self.most = limit, most
        self.digest = filter_digest(wanted.identity())
        self.progress = FilterProgress()
        self.outbox: deque[Placed] = deque()
        #: Events of shards whose jobs are not listed yet: snapshots come before them.
        self.held: deque[Placed] = deque()
        self.wake = asyncio.Event()
        #: Whether its reader has something to take. Otherwise we wait for news, or for a shard.
        self.is_delivering = False
        #: Why it must end, once the outbox is empty.
        self.failure: MeshError | None = None
        #: Shards whose tail it follows, and those that it does not follow yet.
        self.attached: set[str] = set()
        self.pending: set[str] = set()

    def post(self, event: Placed) -> None:
        """Take an event of its namespace, if it is wanted; nothing more once one did not fit."""
        if self.failure is None and self.filter.wants(event.type, event.state, event.labels):
            self.failure = self._overrun()
            if self.failure is None:
                self._queue_of(event).append(event)
            self.wake.set()

    def post_page(self, events: Iterable[Placed]) -> None:
        """Take what it asked for itself, which is one page at a time, whatever else waits."""
        for event in events:
            if self.filter.wants(event.type, event.state, event.labels):
                self.outbox.append(event)

    def _overrun(self) -> MeshError | None:
        """Why there is no room for one more: whoever we wait for keeps it from being sent."""
        if len(self.outbox) + len(self.held) < self.limit:
            return None
        if self.is_delivering:
            return SlowConsumer()
        if self.held:
            return ShardUnavailable(self.held[0].shard, why="is slow to list its jobs")
        return None  # a page with more than may wait, for a reader that waits for it

    def listed(self, shard: str, next_xid: int) -> None:
        """The shard's jobs were all shown: from now on its events are, and those that waited."""
        self.progress.listed(shard, next_xid)
        self.pending.discard(shard)
        waiting, self.held = self.held, deque()
        for event in waiting:
            self._queue_of(event).append(event)

    def _queue_of(self, event: Placed) -> deque[Placed]:
        return self.outbox if self.progress.is_listed(event.shard) else self.held

    def take(self) -> Delivery | None:
        """The next delivery: an event, or many of them as one; None if there is no news."""
        taken: list[Delivery] = []
        while self.outbox and len(taken) < self.most:
            event = self.outbox.popleft()
            if self.progress.event(event.shard, event.place, event.job_id, event.version):
                taken.append(Delivery(Kind.EVENT, event.message))
        return self.packed(taken)

    def packed(self, taken: list[Delivery]) -> Delivery | None:
        """Deliveries as the caller wants them, with the token after them."""
        if not taken:
            return None
        if self.most == 1:
            return Delivery(taken[0].kind, taken[0].message, self.token())
        return Delivery(Kind.BATCH, taken, self.token())

    def token(self) -> str:
        """Empty until the snapshot is settled: it cannot be gone on with, only begun anew."""
        if not self.progress.is_settled:
            return ""
        return places_token(self.digest, self.progress.places())
