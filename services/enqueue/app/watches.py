"""Open watches: hints fan out to them, gaps are re-read, and nothing is delivered twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from services.enqueue.app.watch import Delivery, Kind, Watch, by_key
from services.enqueue.domain.tokens import read_resume_token
from services.enqueue.ports import Change, HintFeed, JobSource, ProgressFeed
from services.mesh.clock import Clock
from services.mesh.errors import JobNotFound, ShardUnavailable
from services.mesh.runtime import Counts, DrainSignal, Loop
from services.mesh.telemetry.metrics import Metrics

T = TypeVar("T")

#: Jobs per re-read.
CHUNK = 1000
#: How long a gap may close by itself before it is read.
GAP_SECONDS = 0.05
#: Comparing all watched jobs with their rows is followed by a rest of so many times its duration,
#: but for no longer than this: meanwhile nobody finds what a lost hint would have told.
COMPARE_REST = 9.0
MOST_REST_SECONDS = 15.0
#: In every so many comparisons all jobs are asked for by name: one that was deleted has no events
#: any more that a comparison could miss.
ROLL_CALL = 15
#: Watches that read their beginning at once: a thousand may come back together.
BEGINNING_AT_ONCE = 32


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
        #: By their 16 bytes.
        self._wanted: dict[bytes, str] = {}
        self._all: set[Watch] = set()
        #: How many of them want more than ends.
        self._full_watches = 0
        self._fed = False
        self._feeding = asyncio.Lock()
        self._waker: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(BEGINNING_AT_ONCE)
        self._closing: asyncio.TimerHandle | None = None
        self._lagging: list[str] = []
        self._next_full = self._next_roll_call = 0.0
        #: How long the last comparison took.
        self._lasted = 0.0
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
        ends_only: bool = False,
    ) -> AsyncGenerator[Delivery, None]:
        """What is, then what happens; ends when all jobs have ended, or with a drain.

        With `most` above one, up to that many deliveries come as one BATCH. With `progress`, what
        handlers say while they run comes in between. With `ends_only`, one event comes per job: its
        end, whenever that was.
        """
        seen = read_resume_token(token, job_ids) if token else dict.fromkeys(job_ids, 0)
        watch = Watch(
            job_ids, seen, self._backlog, most=most, advances=progress, ends_only=ends_only
        )
        self._enter(watch)
        try:
            await self._feed_hints()
            await self._begin(watch, namespace, resumed=bool(token))
            if token and not watch.outbox and not watch.progress.done:
                # Whoever resumes where nothing happened should not wait to hear that it worked.
                yield Delivery(Kind.HEARTBEAT, None, watch.token(), tuple(self._lagging))
            while True:
                # Those there are now: handlers may say more than a slow reader takes.
                for _ in range(len(watch.advances)):
                    yield watch.take_advance()
                while watch.outbox:
                    yield watch.take()
                if watch.failure is not None:
                    raise watch.failure
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
        self._gaps_close(self._offer(changes))

    def _gaps_close(self, gap: bool) -> None:
        if gap:
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
        read, lagging = await self._read(
            list(wanted.items()), lambda part: self._source.changes_after(dict(part))
        )
        if full:
            ended, away = await self._read_ends(began, roll_call=began >= self._next_roll_call)
            read, lagging = read + ended, lagging | away
            self._plan(began, self._clock.monotonic())
        self._lagging = sorted(lagging)
        return {"events": read}

    def _plan(self, began: float, now: float) -> None:
        """When to compare all, after a comparison that took from `began` to `now`.

        One that lasted long because it waited for somebody who was frozen or away cost nothing:
        only if the one before was as long, all the watched jobs are more than can be read often.
        """
        lasted = now - began
        rest = min(COMPARE_REST * min(lasted, self._lasted), MOST_REST_SECONDS)
        self._next_full, self._lasted = max(began + self._reread, now + rest), lasted
        if began >= self._next_roll_call:
            self._next_roll_call = began + ROLL_CALL * (self._next_full - began)

    async def _read(
        self,
        wanted: Sequence[T],
        ask: Callable[[Sequence[T]], Awaitable[tuple[list[Change], list[str]]]],
    ) -> tuple[int, set[str]]:
        """Offer what the source says, part by part: how much, and which shards are away."""
        read, lagging = 0, set[str]()
        for start in range(0, len(wanted), CHUNK):
            changes, away = await ask(wanted[start : start + CHUNK])
            read += len(changes)
            lagging.update(away)
            self._offer(changes)
        return read, lagging

    async def _read_ends(self, now: float, *, roll_call: bool) -> tuple[int, set[str]]:
        """As `_read`. A job that is there no more ends the watches of it, and hurts no others."""
        while True:
            try:
                return await self._read(
                    self._awaited(now, everybody=roll_call),
                    lambda part: self._source.ends("", by_key(part)),
                )
            except JobNotFound as error:
                job_id = error.metadata["job_id"]
                waiting = [w for w in self._watches.get(job_id, ()) if job_id in w.progress.live()]
                for watch in waiting:
                    watch.fail(error)
                if not waiting:
                    raise

    def _awaited(self, now: float, *, everybody: bool) -> Sequence[str]:
        """The jobs whose end is awaited, and may have been missed: by those who want nothing else,
        or by everybody.
        """
        watches = (
            watch
            for watch in self._all
            if (everybody or watch.ends_only) and watch.is_open and now >= watch.read_until
        )
        return list({job_id for watch in watches for job_id in watch.progress.live()})

    def _offer(self, changes: Iterable[Change]) -> bool:
        gap = False
        for change in changes:
            for watch in self._watches.get(change.job_id, ()):
                if watch.began:
                    gap = watch.offer(change) or gap
                else:
                    watch.hold(change)
        return gap

    def _cursors(self, jobs_of: Callable[[Watch], Iterable[str]]) -> dict[str, int]:
        """The least version seen of each job, over the watches that want it read."""
        cursors: dict[str, int] = {}
        for watch in self._all:
            if watch.is_open and not watch.ends_only:
                for job_id in jobs_of(watch):
                    version = watch.progress.seen()[job_id]
                    cursors[job_id] = min(version, cursors.get(job_id, version))
        return cursors

    async def _begin(self, watch: Watch, namespace: str, *, resumed: bool) -> None:
        """Hints are subscribed to before the rows are read: what is committed after that comes as
        one, and is held. So the events need not be read, too.
        """
        if watch.ends_only:
            await self._begin_with_ends(watch, namespace)
            return
        began = self._clock.monotonic()
        async with self._room:
            snapshots = await self._source.snapshots(namespace, watch.job_ids)
        for change in snapshots:
            if resumed:
                watch.progress.resume(change.job_id, change.version, change.terminal)
            else:
                watch.snapshot(change)
        watch.read_until = began + self._reread
        held = watch.begin()
        if resumed or held is None:
            await self._catch_up(watch)
        gaps = [watch.offer(change) for change in held or ()]
        self._gaps_close(any(gaps))

    async def _begin_with_ends(self, watch: Watch, namespace: str) -> None:
        """As `_begin`. Nothing need be held: of each job one event comes, whoever brings it."""
        watch.begin()
        began = self._clock.monotonic()
        live = watch.progress.live()
        if jobs := {key: job_id for key, job_id in watch.keys.items() if job_id in live}:
            async with self._room:
                ended, away = await self._source.ends(namespace, jobs)
            if away:
                raise ShardUnavailable(away[0])
            for change in ended:
                watch.offer(change)
        watch.read_until = began + self._reread

    async def _catch_up(self, watch: Watch) -> None:
        """Read what happened since the token, or while too many hints came to be held."""
        began = self._clock.monotonic()
        async with self._room:
            changes, _ = await self._source.changes_after(
                {job_id: watch.progress.seen()[job_id] for job_id in watch.progress.live()}
            )
        watch.read_until = began + self._reread
        for change in changes:
            watch.offer(change)

    async def _news(self, watch: Watch) -> bool:
        """Wait for something to deliver; False if nothing came for a heartbeat's time."""
        watch.wake.clear()
        if watch.has_news:
            return True
        try:
            async with asyncio.timeout(self._heartbeat):
                await watch.wake.wait()
        except TimeoutError:
            # Something may come at this very moment: the heartbeat's token would cover it.
            return watch.has_news
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
        self._wanted.update(watch.keys)
        self._full_watches += not watch.ends_only
        self._gauge.set(len(self._all))

    def _leave(self, watch: Watch) -> None:
        self._all.discard(watch)
        self._full_watches -= not watch.ends_only
        for key, job_id in watch.keys.items():
            watches = self._watches.get(job_id, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(job_id, None)
                self._wanted.pop(key, None)
        self._gauge.set(len(self._all))

    async def _feed_hints(self) -> None:
        """Have hints while somebody watches, and only then."""
        async with self._feeding:
            wanted = bool(self._all)
            if wanted and not self._fed:
                await self._feed.open(
                    self._wanted, self.hinted, ends_only=lambda: not self._full_watches
                )
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
