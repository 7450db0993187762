"""One caller's watch: what it was shown, what waits to be sent, what came too early."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, unique
from typing import Any

from services.enqueue.domain.tokens import ResumeTokens
from services.enqueue.domain.watching import Progress, Step
from services.enqueue.ports import Change
from services.mesh.errors import MeshError, SlowConsumer
from services.mesh.jobs import ids
from services.mesh.jobs.record import record

#: Watches of more jobs than this get their (longer) token with heartbeats and now and then only.
TOKEN_EACH_TIME = 32
TOKEN_EVERY = 64
#: Changes of one job that are kept though they came too early; those beyond are read.
MOST_EARLY = 32


def by_key(job_ids: Iterable[str]) -> dict[bytes, str]:
    """Job ids as 16 bytes, and as text."""
    return {ids.to_bytes(job_id): job_id for job_id in job_ids}


@unique
class Kind(Enum):
    """What a delivery is."""

    SNAPSHOT = "snapshot"
    EVENT = "event"
    HEARTBEAT = "heartbeat"
    DRAIN = "drain"
    BATCH = "batch"
    PROGRESS = "progress"


@record
class Delivery:
    """One message of a watch. `lagging` are shards that are away (heartbeats only)."""

    kind: Kind
    message: Any = None
    token: str = ""
    lagging: Sequence[str] = ()


class Watch:
    """One caller's watch: an outbox, and how far its jobs were delivered."""

    def __init__(
        self,
        job_ids: Sequence[str],
        seen: Mapping[str, int],
        limit: int,
        *,
        most: int = 1,
        advances: bool = False,
        ends_only: bool = False,
    ) -> None:
        self.job_ids = job_ids
        #: By their 16 bytes, as hints name them.
        self.keys = by_key(job_ids)
        self.most = most
        self.wants_advances = advances
        self.ends_only = ends_only
        #: The newest that each job's handler said about its advance: replaced, never queued.
        self.advances: dict[str, Any] = {}
        self.progress = Progress(seen, ends_only=ends_only)
        self._tokens = ResumeTokens(job_ids)
        self.outbox: deque[Delivery] = deque()
        self.wake = asyncio.Event()
        #: Why it must end, once the outbox is empty.
        self.failure: MeshError | None = None
        self.began = False
        #: By the monotonic clock: before then there is no need to compare its jobs with their rows.
        self.read_until = 0.0
        #: Changes that came while the beginning was read.
        self._held: list[Change] = []
        #: More of them came than may be held: what came meanwhile has to be read.
        self._overrun = False
        #: Changes that came before those they continue, by job and version.
        self._early: dict[str, dict[int, Change]] = {}
        self._limit = limit

    @property
    def has_news(self) -> bool:
        """Whether there is something to deliver, or an end to make."""
        return bool(self.outbox or self.failure or self.advances)

    @property
    def is_open(self) -> bool:
        """Whether it takes what is read: it has begun, and need not end."""
        return self.began and self.failure is None

    def fail(self, error: MeshError) -> None:
        """End it, once the outbox is empty."""
        self.failure = self.failure or error
        self.wake.set()

    def snapshot(self, change: Change) -> None:
        if self._is_too_slow_for(change):
            return
        self.progress.snapshot(change.job_id, change.version, change.terminal)
        self._post(Delivery(Kind.SNAPSHOT, change.message, self._token()))

    def hold(self, change: Change) -> None:
        """Keep a change that came before the watch began; no more than its outbox may have."""
        if self._overrun or len(self._held) >= self._limit:
            self._overrun, self._held = True, []
        else:
            self._held.append(change)

    def begin(self) -> Sequence[Change] | None:
        """From now on changes are delivered. Those that came before; None if some were let go."""
        self.began = True
        held, self._held = self._held, []
        return None if self._overrun else held

    def offer(self, change: Change) -> bool:
        """Take a change; True if it shows a gap that must be read, unless it closes by itself."""
        if self._is_too_slow_for(change):
            return False
        if self.ends_only:
            if change.terminal and self.progress.offer_end(change.job_id, change.version):
                self._post(Delivery(Kind.EVENT, change.message, self._token()))
            return False
        step = self.progress.offer(change.job_id, change.version, change.terminal)
        if step is Step.DELIVER:
            self._post(Delivery(Kind.EVENT, change.message, self._token()))
            if self._early:
                self._continue(change)
        elif step is Step.GAP:
            early = self._early.setdefault(change.job_id, {})
            if len(early) < MOST_EARLY:
                early[change.version] = change
        return step is Step.GAP

    def _continue(self, change: Change) -> None:
        """Deliver what waited for this change."""
        early = self._early.get(change.job_id)
        if early is None:
            return
        following = early.pop(change.version + 1, None)
        if not early or change.terminal:
            del self._early[change.job_id]
        if following is not None:
            self.offer(following)

    def advance(self, job_id: str, message: Any) -> None:
        """A running handler said how far it is; of a job that has ended, nobody wants to know."""
        if self.began and job_id in self.progress.live():
            self.advances[job_id] = message
            self.wake.set()

    def take_advance(self) -> Delivery:
        return Delivery(Kind.PROGRESS, self.advances.pop(next(iter(self.advances))))

    def take(self) -> Delivery:
        """The next delivery, or up to `most` as one."""
        if self.most == 1:
            return self.outbox.popleft()
        taken = [self.outbox.popleft() for _ in range(min(self.most, len(self.outbox)))]
        # What was posted is all delivered with this, so that a token may cover it.
        return Delivery(Kind.BATCH, taken, "" if self.outbox else self.token())

    def token(self) -> str:
        return self._tokens.token(self.progress.seen())

    def _token(self) -> str:
        """A token covers all that is posted up to its message, for the outbox is in order."""
        if self.most > 1:
            return ""  # whoever takes several at once gets one for all of them
        often = len(self.job_ids) <= TOKEN_EACH_TIME or len(self.outbox) % TOKEN_EVERY == 0
        return self.token() if often else ""

    def _is_too_slow_for(self, change: Change) -> bool:
        """Whether there is no room for it. Then it is noted nowhere, nor is anything after it, even
        if there is room again: else tokens would cover what was not delivered.
        """
        if self.failure is None and len(self.outbox) >= self._limit:
            wanted = change.terminal or not self.ends_only
            if wanted and change.version > self.progress.seen().get(change.job_id, 0):
                self.fail(SlowConsumer())
        return self.failure is not None

    def _post(self, delivery: Delivery) -> None:
        self.outbox.append(delivery)
        self.wake.set()
