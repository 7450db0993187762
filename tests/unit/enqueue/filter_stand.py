"""Shards that commit in any order, hints that get lost, and a hub that watches them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from services.enqueue.app.filter_hub import FilterHub
from services.enqueue.app.watch import Kind
from services.enqueue.domain.filtering import WatchFilter
from services.enqueue.ports import Change, LivePage, OrderPage, Placed
from services.mesh.clock import ManualClock
from services.mesh.errors import (
    ShardUnavailable,
)
from services.mesh.jobs.model import Position
from services.mesh.runtime import DrainSignal, Tasks
from services.mesh.telemetry.metrics import Metrics

NS, ANY = "n", WatchFilter("n")
ENDED = 4
#: Behind all events of a transaction.
LAST = 1000


class Shard:
    """Transactions with numbers in the order of their beginning, committed in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_xid = 10
        self.open: dict[int, list[tuple[str, int, int, str]]] = {}
        self.committed: dict[int, list[tuple[str, int, int, str]]] = {}
        self.rows: dict[str, tuple[int, int, str]] = {}
        self.purged = 0
        self.away = False

    def begin(self) -> int:
        xid, self.next_xid = self.next_xid, self.next_xid + 1
        self.open[xid] = []
        return xid

    def write(self, xid: int, job: str, state: int = 1, type_: str = "echo") -> int:
        """One more version of a job; the row is locked until the end of the transaction."""
        locked = any(job == event[0] for events in self.open.values() for event in events)
        assert not locked
        version = self.rows.get(job, (0, 0, ""))[0] + 1
        self.open[xid].append((job, version, state, type_))
        return version

    def commit(self, xid: int) -> None:
        events = self.committed[xid] = self.open.pop(xid)
        for job, version, state, type_ in events:
            self.rows[job] = (version, state, type_)

    def change(self, job: str, state: int = 1, type_: str = "echo") -> None:
        xid = self.begin()
        self.write(xid, job, state, type_)
        self.commit(xid)

    def crash(self) -> None:
        """What is open comes to nothing; numbers that came to nothing are given out again."""
        self.open.clear()
        self.next_xid = self.last_xid + 1

    def has_ended(self, job: str) -> bool:
        return self.rows.get(job, (0, 0, ""))[1] == ENDED

    @property
    def horizon(self) -> int:
        return min(self.open, default=self.next_xid)

    @property
    def last_xid(self) -> int:
        """The last transaction below the horizon that is on disk."""
        return max((xid for xid in self.committed if xid < self.horizon), default=9)

    def page(self, after: Position | None, limit: int = 3) -> OrderPage:
        if after is None:
            return OrderPage(
                [], Position(self.horizon, 0), False, False, self.next_xid, self.lasting
            )
        events, last = [], None
        for xid in sorted(self.committed):
            if after.xid <= xid < self.horizon and len(events) < limit:
                last = xid
                for number, (job, version, state, type_) in enumerate(self.committed[xid], 1):
                    if (place := Position(xid, number)) > after:
                        message = (job, version)
                        events.append(
                            Placed(self.name, place, job, version, NS, type_, state, {}, message)
                        )
        more = len(events) >= limit
        full = Position(last, LAST) if more else None
        return OrderPage(
            events,
            full or max(after, Position(self.horizon, 0)),
            more,
            self.purged > 0 and after < Position(self.purged, LAST),
            self.next_xid,
            full or max(after, self.lasting),
        )

    @property
    def lasting(self) -> Position:
        return Position(max(self.last_xid, self.purged), LAST)


class Source:
    def __init__(self, *names: str) -> None:
        self.by_name = {name: Shard(name) for name in names}
        self.during_list = self.after_list = lambda: None
        #: Shards that will be away for one page of a list: the next one, or the one after it, ...
        self.blinks: dict[str, int] = {}

    async def shards(self):
        return list(self.by_name)

    async def page(self, shard, after, namespaces=(), types=()):
        found = self.by_name[shard]
        if found.away:
            raise ShardUnavailable(shard)
        page = found.page(after)
        kept = [e for e in page.events if not types or e.type in set(types)]
        return replace(page, events=kept)

    async def live_jobs(self, namespace, matching, before):
        self.during_list()
        away = [name for name, shard in self.by_name.items() if shard.away or self._blinks(name)]
        jobs = sorted(
            (
                (shard.name, Change(job, version, False, (job, version)))
                for shard in self.by_name.values()
                if shard.name not in away
                for job, (version, state, _) in shard.rows.items()
                if state != ENDED and (not before or job < before)
            ),
            key=lambda found: found[1].job_id,
            reverse=True,
        )
        self.after_list()
        return LivePage(jobs[:2], len(jobs) > 2, away)

    def _blinks(self, name: str) -> bool:
        """Whether a shard is away just for this page."""
        left = self.blinks.pop(name, 0)
        if left > 1:
            self.blinks[name] = left - 1
        return left == 1


class Bell:
    async def open(self, ring):
        pass

    async def close(self):
        pass


class Stand:
    """A hub whose tails are read by hand."""

    def __init__(self, source: Source, backlog: int = 100) -> None:
        self.source, self.drain, self.clock = source, DrainSignal(), ManualClock()
        self.tasks = Tasks()
        self.hub = FilterHub(
            source,
            Bell(),
            self.clock,
            self.drain,
            self.tasks,
            Metrics(),
            reread=0.01,
            heartbeat=5.0,
            backlog=backlog,
        )

    @asynccontextmanager
    async def watch(self, token: str = "", wanted: WatchFilter = ANY, most: int = 1):
        async with aclosing(self.hub.watch(wanted, None, token, most=most)) as deliveries:
            yield deliveries
        await self.tasks.stop()
        self.tasks = self.hub._tasks = Tasks()


async def until_beat(watch):
    """What comes up to the next heartbeat, and its token."""
    found = []
    async with asyncio.timeout(5):
        async for delivery in watch:
            if delivery.kind is Kind.HEARTBEAT:
                return found, delivery.token
            found.append((delivery.kind, delivery.message))
    raise AssertionError("the watch ended")


async def take(watch, count):
    async with asyncio.timeout(5):
        return [await anext(watch) for _ in range(count)]
