"""One watch by filter: what waits to be sent, and how far its shards' orders were delivered."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from services.enqueue.app.watch import Delivery, Kind
from services.enqueue.domain.filtering import FilterProgress, WatchFilter
from services.enqueue.domain.tokens import filter_digest, places_token
from services.enqueue.ports import Placed
from services.mesh.errors import MeshError, SlowConsumer


class FilterWatch:
    """One caller's watch: an outbox, and how far its shards' orders were delivered."""

    __slots__ = (
        "attached",
        "digest",
        "failure",
        "filter",
        "held",
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
        #: Why it must end, once the outbox is empty.
        self.failure: MeshError | None = None
        #: Shards whose tail it follows, and those that it does not follow yet.
        self.attached: set[str] = set()
        self.pending: set[str] = set()

    def post(self, event: Placed) -> None:
        """Take an event of its namespace, if it is wanted; nothing more once one did not fit."""
        if self.failure is None and self.filter.wants(event.type, event.state, event.labels):
            if len(self.outbox) + len(self.held) >= self.limit:
                self.failure = SlowConsumer()
            else:
                self._queue_of(event).append(event)
            self.wake.set()

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
