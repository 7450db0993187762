"""Watches by filter: the jobs that live, then every transition, over all shards.

    snapshot   place in each shard's order ▸ list the live jobs ▸ events after the place, less those
               whose version the list had already ▸ settled: from here on every response has a token
    resumed    events after the token's place, page by page, until the tail is reached ▸ the tail

One tail per shard reads for all watches (`app.tails`); hints from the broker only say when. A watch
has an outbox of what the tails brought and it was not sent yet. What was sent is noted when it is
sent, so the last token a reader has is right whatever happens to the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import Any

from services.enqueue.app.filter_watch import FilterWatch
from services.enqueue.app.tails import ShardTail, Wanted
from services.enqueue.app.watch import Delivery, Kind
from services.enqueue.domain.filtering import BEGINNING, WatchFilter
from services.enqueue.domain.tokens import read_places_token
from services.enqueue.ports import HintBell, OrderPage, OrderSource
from services.mesh.clock import Clock
from services.mesh.errors import (
    MeshError,
    ResumeTokenExpired,
    ResumeTokenInvalid,
)
from services.mesh.runtime import DrainSignal, Tasks
from services.mesh.telemetry.metrics import Metrics

#: Jobs in a snapshot; the contract names it.
SNAPSHOT_JOBS = 10_000
#: Lists and catch-up pages under way at once: a thousand watches may come back together.
READS_AT_ONCE = 8

Deliveries = AsyncGenerator[Delivery, None]


class FilterHub:
    """All watches by filter of this process."""

    name = "filter watches"

    def __init__(
        self,
        source: OrderSource,
        bell: HintBell,
        clock: Clock,
        drain: DrainSignal,
        tasks: Tasks,
        metrics: Metrics,
        *,
        reread: float,
        heartbeat: float,
        backlog: int,
    ) -> None:
        self._source, self._bell, self._clock = source, bell, clock
        self._drain, self._tasks = drain, tasks
        self._reread, self._heartbeat, self._backlog = reread, heartbeat, backlog
        self._all: set[FilterWatch] = set()
        self._unsettled: set[FilterWatch] = set()
        #: The watches by what they want: namespace, and type or "" for all.
        self._index: dict[tuple[str, str], set[FilterWatch]] = {}
        self._wanted = Wanted()
        self._tails: dict[str, ShardTail] = {}
        self._reading: list[asyncio.Task[None]] = []
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(READS_AT_ONCE)
        self._gauge = metrics.gauge("filter_watches", "Open watches by filter.")

    async def start(self) -> None:
        self._tasks.spawn(self._wake_on_drain(), "filter watches drain", vital=False)

    async def stop(self) -> None:
        """Its tasks end with the process's; its watches ended with the drain."""

    async def watch(
        self, wanted: WatchFilter, matching: Any, token: str, *, most: int = 1
    ) -> Deliveries:
        """What lives, then what happens; never ends but by a drain.

        `matching` is the same filter as the wire says it, for lists.
        """
        watch = FilterWatch(wanted, matching, self._backlog, most)
        places = read_places_token(token, watch.digest) if token else None
        self._enter(watch)
        try:
            shards = await self._open()
            watch.pending = set(shards)
            if places is None:
                self._unsettled.add(watch)
            for shard in shards:
                if places is None:
                    watch.progress.expect(shard)
                else:
                    # A shard that the token does not know came later: all of it is news.
                    watch.progress.begin(shard, places.pop(shard, BEGINNING))
            if places:
                raise ResumeTokenInvalid
            async with aclosing(self._deliver(watch, resumed=bool(token))) as deliveries:
                async for delivery in deliveries:
                    watch.is_delivering = True
                    yield delivery
                    watch.is_delivering = False
        finally:
            self._leave(watch)
            await self._close_if_idle()

    async def _deliver(self, watch: FilterWatch, *, resumed: bool) -> Deliveries:
        told = False
        next_join, loop = 0.0, asyncio.get_running_loop()
        next_beat = self._clock.monotonic() + self._heartbeat
        while True:
            # News of other shards must not make us ask again for those that are away.
            if watch.pending and loop.time() >= next_join:
                async with aclosing(self._joined(watch, resumed=resumed)) as deliveries:
                    async for delivery in deliveries:
                        yield delivery
                        # Whoever resumes where nothing happened is told so, by a heartbeat.
                        told = told or resumed
                next_join = loop.time() + self._reread
            while watch.outbox:
                if (news := watch.take()) is not None:
                    yield news
                    next_beat = self._clock.monotonic() + self._heartbeat
            if watch.failure is not None:
                raise watch.failure
            self._catch_place(watch)
            settles = not told and watch.progress.is_settled
            if settles or self._clock.monotonic() >= next_beat:
                if settles:
                    told = True
                    self._unsettled.discard(watch)
                yield Delivery(Kind.HEARTBEAT, None, watch.token(), self._lagging(watch))
                next_beat = self._clock.monotonic() + self._heartbeat
            elif self._drain.is_set():
                yield Delivery(Kind.DRAIN, token=watch.token())
                return
            else:
                await self._news(watch, next_beat)

    async def _news(self, watch: FilterWatch, next_beat: float) -> None:
        """Wait for something to deliver, or for the time to do something else."""
        left = max(next_beat - self._clock.monotonic(), 0.001)
        limit = min(left, self._reread) if watch.pending else left
        if watch.outbox or watch.failure is not None:
            return
        watch.wake.clear()
        try:
            async with asyncio.timeout(limit):
                await watch.wake.wait()
        except TimeoutError:
            return

    # --- joining the tails

    async def _joined(self, watch: FilterWatch, *, resumed: bool) -> Deliveries:
        """What `_join` brings, and what the tails bring while it waits for a shard's answer."""
        async with aclosing(self._join(watch, resumed=resumed)) as joining:
            while True:
                step = asyncio.create_task(_next_of(joining), name="watch-join")
                step.add_done_callback(lambda _: watch.wake.set())
                try:
                    # A delivery that is ready goes first: its token must not come after newer ones.
                    while not step.done():
                        if (news := await self._taken(watch)) is not None:
                            yield news
                    if (delivery := step.result()) is None:
                        return
                finally:
                    step.cancel()
                    await asyncio.wait({step})
                yield delivery

    async def _taken(self, watch: FilterWatch) -> Delivery | None:
        """The next of the outbox; None if that is no news, or after a wait for it."""
        if watch.outbox:
            return watch.take()
        if watch.failure is not None:
            raise watch.failure
        watch.wake.clear()
        await watch.wake.wait()
        return None

    async def _join(self, watch: FilterWatch, *, resumed: bool) -> Deliveries:
        """Follow the shards that are not followed yet; those that are away stay pending."""
        parts = [self._list(watch)]
        if resumed:
            parts = [self._catch_up(watch, shard) for shard in sorted(watch.pending)]
        for part in parts:
            async with aclosing(part):
                async for delivery in part:
                    yield delivery

    async def _list(self, watch: FilterWatch) -> Deliveries:
        """Take places, then deliver the live jobs of those shards.

        A shard that goes away meanwhile is listed again when it is back, and keeps its place: what
        was shown of it may end before that, and would not be in the second list.
        """
        begun = {shard for shard in watch.pending if await self._begin(watch, shard)}
        before, left, more = "", SNAPSHOT_JOBS, bool(begun)
        while more and left > 0 and begun and not self._drain.is_set():
            async with self._room:
                page = await self._source.live_jobs(watch.filter.namespace, watch.matching, before)
            begun.difference_update(page.missing)
            listed = [
                Delivery(Kind.SNAPSHOT, job.message)
                for shard, job in page.jobs[:left]
                if shard in begun and watch.progress.snapshot(job.job_id, job.version)
            ]
            for start in range(0, len(listed), watch.most):
                if (news := watch.packed(listed[start : start + watch.most])) is not None:
                    yield news
            left, more = left - len(page.jobs), page.more
            before = page.jobs[-1][1].job_id if page.jobs else ""
        if more and left > 0:
            return  # we drain, or all went away: no token may say that the list has an end
        for shard in begun:
            await self._settle(watch, shard)

    async def _begin(self, watch: FilterWatch, shard: str) -> bool:
        if shard in watch.attached:
            return True
        try:
            at = await self._tails[shard].begin()
        except MeshError:
            return False
        watch.progress.begin(shard, at)
        watch.attached.add(shard)
        return True

    async def _settle(self, watch: FilterWatch, shard: str) -> None:
        """Note what the list can have seen at most; until the tail is there, versions decide."""
        try:
            end = await self._source.page(shard, None)
        except MeshError:
            return
        watch.listed(shard, end.next_xid)
        self._tails[shard].read_again()

    async def _catch_up(self, watch: FilterWatch, shard: str) -> Deliveries:
        """Deliver what came after the token, until the tail is not ahead any more."""
        tail, wanted = self._tails[shard], watch.filter
        while not self._drain.is_set():
            after = watch.progress.at(shard)
            try:
                async with self._room:
                    page = await self._source.page(shard, after, [wanted.namespace], wanted.types)
            except MeshError:
                return
            if page.next_xid < after.xid:
                raise ResumeTokenInvalid
            if page.truncated:
                raise ResumeTokenExpired
            watch.post_page(page.events)
            while watch.outbox:
                if (news := watch.take()) is not None:
                    yield news
            watch.progress.reached(shard, page.lasting)
            if watch.failure is not None:
                return
            if tail.begin_at(page.lasting) <= page.lasting:
                watch.attached.add(shard)
                watch.pending.discard(shard)
                return

    def _catch_place(self, watch: FilterWatch) -> None:
        """The outbox is empty: the watch stands where its tails stand, but for what is held."""
        for shard in watch.attached:
            tail = self._tails[shard]
            if tail.at is not None and watch.progress.is_listed(shard):
                watch.progress.reached(shard, tail.at, tail.passed)

    # --- what the tails bring

    def rung(self, shard: str, names: Collection[str]) -> None:
        """A hint came from a shard."""
        tail = self._tails.get(shard)
        if tail is not None and self._wanted.among(names):
            tail.nudge()

    def published(self, shard: str, page: OrderPage) -> None:
        """A tail has read a page."""
        for event in page.events:
            for key in ((event.namespace, event.type), (event.namespace, "")):
                for watch in self._index.get(key, ()):
                    if shard in watch.attached:
                        watch.post(event)
        for watch in self._unsettled:
            watch.wake.set()
        if page.truncated:
            self._expire(shard)

    def _expire(self, shard: str) -> None:
        """The tail was away for longer than events are kept."""
        for watch in self._all:
            if shard in watch.attached:
                watch.failure = watch.failure or ResumeTokenExpired()
                watch.wake.set()

    def _lagging(self, watch: FilterWatch) -> tuple[str, ...]:
        away = {tail.shard for tail in self._tails.values() if tail.lagging}
        return tuple(sorted(away | watch.pending))

    # --- coming and going

    def _enter(self, watch: FilterWatch) -> None:
        self._all.add(watch)
        self._wanted.add(watch.filter)
        for key in _keys(watch.filter):
            self._index.setdefault(key, set()).add(watch)
        self._gauge.set(len(self._all))

    def _leave(self, watch: FilterWatch) -> None:
        self._all.discard(watch)
        self._unsettled.discard(watch)
        self._wanted.add(watch.filter, -1)
        for key in _keys(watch.filter):
            self._index[key].discard(watch)
            if not self._index[key]:
                del self._index[key]
        self._gauge.set(len(self._all))

    async def _open(self) -> Iterable[str]:
        """Have a tail for each shard while somebody watches."""
        async with self._opening:
            if not self._tails:
                shards = await self._source.shards()
                await self._bell.open(self.rung)
                for shard in shards:
                    self._start_tail(shard)
            return tuple(self._tails)

    def _start_tail(self, shard: str) -> None:
        tail = ShardTail(
            shard,
            self._source,
            self._wanted.selection,
            lambda page: self.published(shard, page),
            self._reread,
        )
        self._tails[shard] = tail
        self._reading.append(self._tasks.spawn(tail.run(), f"tail {shard}"))

    async def _close_if_idle(self) -> None:
        async with self._opening:
            if self._all or not self._tails:
                return
            for task in self._reading:
                task.cancel()
            self._tails.clear()
            self._reading.clear()
            await self._bell.close()

    async def _wake_on_drain(self) -> None:
        await self._drain.wait()
        for watch in self._all:
            watch.wake.set()


async def _next_of(deliveries: Deliveries) -> Delivery | None:
    return await anext(deliveries, None)


def _keys(wanted: WatchFilter) -> Iterable[tuple[str, str]]:
    return [(wanted.namespace, type_) for type_ in wanted.types or ("",)]
