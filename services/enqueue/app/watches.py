"""Open watches: hints fan out to them, gaps are re-read, and nothing is delivered twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from enum import Enum, unique
from typing import Any

from services.enqueue.domain.tokens import ResumeTokens, read_resume_token
from services.enqueue.domain.watching import Progress, Step
from services.enqueue.ports import Change, HintFeed, JobSource, ProgressFeed
from services.mesh.clock import Clock
from services.mesh.errors import SlowConsumer
from services.mesh.jobs import ids
from services.mesh.jobs.record import record
from services.mesh.runtime import Counts, DrainSignal, Loop
from services.mesh.telemetry.metrics import Metrics

#: Jobs per re-read.
CHUNK = 1000
#: Watches of more jobs than this get their (longer) token with heartbeats and now and then only.
TOKEN_EACH_TIME = 32
TOKEN_EVERY = 64
#: How long a gap may close by itself before it is read.
GAP_SECONDS = 0.05
#: Comparing all watched jobs with their rows is followed by a rest of so many times its duration.
COMPARE_REST = 9.0
#: Watches that read their beginning at once: a thousand may come back together.
BEGINNING_AT_ONCE = 32


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
    ) -> None:
        self.job_ids = job_ids
        self.most = most
        self.wants_advances = advances
        #: The newest that each job's handler said about its advance: replaced, never queued.
        self.advances: dict[str, Any] = {}
        self.progress = Progress(seen)
        self._tokens = ResumeTokens(job_ids)
        self.outbox: deque[Delivery] = deque()
        self.wake = asyncio.Event()
        self.slow = False
        self.began = False
        #: By the monotonic clock: before then there is no need to compare its jobs with their rows.
        self.read_until = 0.0
        #: Changes that came before those they continue, by job and version.
        self._early: dict[str, dict[int, Change]] = {}
        self._limit = limit

    def snapshot(self, change: Change) -> None:
        self.progress.snapshot(change.job_id, change.version, change.terminal)
        self._post(Delivery(Kind.SNAPSHOT, change.message, self._token()))

    def offer(self, change: Change) -> bool:
        """Take a change; True if it shows a gap that must be read, unless it closes by itself."""
        step = self.progress.offer(change.job_id, change.version, change.terminal)
        if step is Step.DELIVER:
            self._post(Delivery(Kind.EVENT, change.message, self._token()))
            if self._early:
                self._continue(change)
        elif step is Step.GAP:
            self._early.setdefault(change.job_id, {})[change.version] = change
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

    def _post(self, delivery: Delivery) -> None:
        # Nothing follows what did not fit, even if there is room again: its token would cover that.
        if self.slow or len(self.outbox) >= self._limit:
            self.slow = True
        else:
            self.outbox.append(delivery)
        self.wake.set()


class WatchHub(Loop):
    """All watches of this process. As a loop it re-reads what hints may have missed."""

    def __init__(
        self,
        source: JobSource,
        feed: HintFeed,
        advances: ProgressFeed,
        clock: Clock,
        drain: DrainSignal,
        metrics: Metrics,
        *,
        reread: float,
        heartbeat: float,
        backlog: int,
    ) -> None:
        super().__init__("watch re-read", interval=reread)
        self._source, self._feed, self._clock, self._drain = source, feed, clock, drain
        self._advances, self._advancing = advances, False
        self._reread, self._heartbeat, self._backlog = reread, heartbeat, backlog
        self._watches: dict[str, set[Watch]] = {}
        self._wanted: set[bytes] = set()
        self._all: set[Watch] = set()
        self._fed = False
        self._feeding = asyncio.Lock()
        self._waker: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(BEGINNING_AT_ONCE)
        self._closing: asyncio.TimerHandle | None = None
        self._lagging: list[str] = []
        self._next_full = 0.0
        self._gauge = metrics.gauge("watches", "Open watches.")
        self._gaps = metrics.counter(
            "watch_gaps", "Hints that did not continue what was delivered."
        )

    async def watch(
        self,
        namespace: str,
        job_ids: Sequence[str],
        token: str,
        *,
        most: int = 1,
        progress: bool = False,
    ) -> AsyncGenerator[Delivery, None]:
        """What is, then what happens; ends when all jobs have ended, or with a drain.

        With `most` above one, up to that many deliveries come as one BATCH. With `progress`, what
        handlers say while they run comes in between.
        """
        seen = read_resume_token(token, job_ids) if token else dict.fromkeys(job_ids, 0)
        watch = Watch(job_ids, seen, self._backlog, most=most, advances=progress)
        self._enter(watch)
        try:
            await self._feed_hints()
            await self._begin(watch, namespace, resumed=bool(token))
            while True:
                while watch.advances:
                    yield watch.take_advance()
                while watch.outbox:
                    yield watch.take()
                if watch.slow:
                    raise SlowConsumer
                if watch.progress.done:
                    return
                if self._drain.is_set():
                    yield Delivery(Kind.DRAIN, token=watch.token())
                    return
                if not await self._news(watch):
                    yield Delivery(Kind.HEARTBEAT, None, watch.token(), tuple(self._lagging))
        finally:
            self._leave(watch)
            await self._feed_hints()

    def hinted(self, changes: Sequence[Change]) -> None:
        """The broker brought transitions."""
        if self._offer(changes):
            self._gaps.inc()
            # Two publishers may overtake each other; what is late is mostly here in no time.
            if self._closing is None:
                loop = asyncio.get_running_loop()
                self._closing = loop.call_later(GAP_SECONDS, self._close_gaps)

    def _close_gaps(self) -> None:
        self._closing = None
        if any(watch.progress.missing() for watch in self._all):
            self.nudge()

    def advanced(self, said: Sequence[tuple[str, Any]]) -> None:
        """The broker brought progress of jobs, by id."""
        for job_id, message in said:
            for watch in self._watches.get(job_id, ()):
                if watch.wants_advances:
                    watch.advance(job_id, message)

    async def run_once(self) -> Counts:
        """Close the gaps; every now and then, compare every watched job with its row."""
        began = self._clock.monotonic()
        full = began >= self._next_full
        wanted = self._cursors(lambda watch: _to_read(watch, began if full else None))
        read = 0
        lagging: set[str] = set()
        items = list(wanted.items())
        for start in range(0, len(items), CHUNK):
            changes, away = await self._source.changes_after(dict(items[start : start + CHUNK]))
            read += len(changes)
            lagging.update(away)
            self._offer(changes)
        self._lagging = sorted(lagging)
        if full:
            now = self._clock.monotonic()
            self._next_full = max(began + self._reread, now + COMPARE_REST * (now - began))
        return {"events": read}

    def _offer(self, changes: Iterable[Change]) -> bool:
        gap = False
        for change in changes:
            for watch in self._watches.get(change.job_id, ()):
                gap = (watch.began and watch.offer(change)) or gap
        return gap

    def _cursors(self, jobs_of: Callable[[Watch], Iterable[str]]) -> dict[str, int]:
        """The least version seen of each job, over the watches that want it read."""
        cursors: dict[str, int] = {}
        for watch in self._all:
            if watch.began:
                for job_id in jobs_of(watch):
                    version = watch.progress.seen()[job_id]
                    cursors[job_id] = min(version, cursors.get(job_id, version))
        return cursors

    async def _begin(self, watch: Watch, namespace: str, *, resumed: bool) -> None:
        async with self._room:
            snapshots = await self._source.snapshots(namespace, watch.job_ids)
        for change in snapshots:
            if resumed:
                watch.progress.resume(change.job_id, change.version, change.terminal)
            else:
                watch.snapshot(change)
        watch.began = True
        # Hints that came before the snapshot were not looked at; a resumed watch has catching up.
        async with self._room:
            changes, _ = await self._source.changes_after(
                {job_id: watch.progress.seen()[job_id] for job_id in watch.progress.live()}
            )
        watch.read_until = self._clock.monotonic() + self._reread
        for change in changes:
            watch.offer(change)

    async def _news(self, watch: Watch) -> bool:
        """Wait for something to deliver; False if nothing came for a heartbeat's time."""
        watch.wake.clear()
        if watch.outbox or watch.slow or watch.advances:
            return True
        try:
            async with asyncio.timeout(self._heartbeat):
                await watch.wake.wait()
        except TimeoutError:
            return False
        return True

    async def _wake_on_drain(self) -> None:
        """One task for all watches: two for each of a thousand would cost more than the watches."""
        await self._drain.wait()
        for watch in self._all:
            watch.wake.set()

    def _enter(self, watch: Watch) -> None:
        self._all.add(watch)
        for job_id in watch.job_ids:
            self._watches.setdefault(job_id, set()).add(watch)
            self._wanted.add(ids.to_bytes(job_id))
        self._gauge.set(len(self._all))

    def _leave(self, watch: Watch) -> None:
        self._all.discard(watch)
        for job_id in watch.job_ids:
            watches = self._watches.get(job_id, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(job_id, None)
                self._wanted.discard(ids.to_bytes(job_id))
        self._gauge.set(len(self._all))

    async def _feed_hints(self) -> None:
        """Have hints while somebody watches, and only then."""
        async with self._feeding:
            wanted = bool(self._all)
            if wanted and not self._fed:
                await self._feed.open(self._wanted, self.hinted)
                self._waker = asyncio.create_task(self._wake_on_drain(), name="watches-drain")
            elif self._fed and not wanted:
                await self._feed.close()
                if self._waker is not None:
                    self._waker.cancel()
            self._fed = wanted
            await self._feed_advances(any(watch.wants_advances for watch in self._all))

    async def _feed_advances(self, wanted: bool) -> None:
        if wanted and not self._advancing:
            await self._advances.open(self._wanted, self.advanced)
        elif self._advancing and not wanted:
            await self._advances.close()
        self._advancing = wanted


def _to_read(watch: Watch, now: float | None) -> Iterable[str]:
    """The jobs with a gap; with a time, all that may have changed and were not read just now."""
    if now is None or now < watch.read_until:
        return watch.progress.missing()
    return watch.progress.live()
