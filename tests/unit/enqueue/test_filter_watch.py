"""Watches by filter over shards whose transactions commit in any order, and hints that get lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.enqueue.app.filter_hub import FilterHub
from services.enqueue.app.watch import Kind
from services.enqueue.domain.filtering import WatchFilter
from services.enqueue.ports import Change, LivePage, OrderPage, Placed
from services.mesh.clock import ManualClock
from services.mesh.errors import (
    ResumeTokenExpired,
    ResumeTokenInvalid,
    ShardUnavailable,
    SlowConsumer,
)
from services.mesh.jobs.model import Position
from services.mesh.runtime import DrainSignal, Tasks
from services.mesh.telemetry.metrics import Metrics
from services.mesh.testing.waiting import eventually

NS, ANY = "n", WatchFilter("n")
ENDED = 4


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

    @property
    def horizon(self) -> int:
        return min(self.open, default=self.next_xid)

    def page(self, after: Position | None, limit: int = 3) -> OrderPage:
        if after is None:
            return OrderPage([], Position(self.horizon, 0), False, False, self.next_xid)
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
        return OrderPage(
            events,
            Position(last + 1, 0) if more else max(after, Position(self.horizon, 0)),
            more,
            0 < self.purged >= after.xid,
            self.next_xid,
        )


class Source:
    def __init__(self, *names: str) -> None:
        self.by_name = {name: Shard(name) for name in names}
        self.during_list = lambda: None

    async def shards(self):
        return list(self.by_name)

    async def page(self, shard, after, namespaces=(), types=()):
        found = self.by_name[shard]
        if found.away:
            raise ShardUnavailable(shard)
        page = found.page(after)
        kept = [e for e in page.events if not types or e.type in set(types)]
        return OrderPage(kept, page.next, page.more, page.truncated, page.next_xid)

    async def live_jobs(self, namespace, matching, before):
        self.during_list()
        jobs = sorted(
            (
                (shard.name, Change(job, version, False, (job, version)))
                for shard in self.by_name.values()
                if not shard.away
                for job, (version, state, _) in shard.rows.items()
                if state != ENDED and (not before or job < before)
            ),
            key=lambda found: found[1].job_id,
            reverse=True,
        )
        away = [shard.name for shard in self.by_name.values() if shard.away]
        return LivePage(jobs[:2], len(jobs) > 2, away)


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


async def test_a_watch_is_what_lives_and_then_every_transition():
    source = Source("s0", "s1")
    source.by_name["s0"].change("a")
    source.by_name["s1"].change("b")
    source.by_name["s1"].change("b", ENDED)
    async with Stand(source).watch() as watch:
        snapshot, token = await until_beat(watch)
        assert snapshot == [(Kind.SNAPSHOT, ("a", 1))]
        assert token
        source.by_name["s0"].change("a", 2)
        source.by_name["s0"].change("a", ENDED)
        assert [(d.kind, d.message) for d in await take(watch, 2)] == [
            (Kind.EVENT, ("a", 2)),
            (Kind.EVENT, ("a", 3)),
        ]


async def test_what_was_listed_already_does_not_come_again():
    source = Source("s0")
    shard = source.by_name["s0"]
    shard.change("a")

    def meanwhile():
        shard.change("a", 2)
        source.during_list = lambda: None

    source.during_list = meanwhile  # after the place was taken, before the row is read
    async with Stand(source).watch() as watch:
        found, _ = await until_beat(watch)
        shard.change("a", 3)
        (last,) = await take(watch, 1)
    assert found == [(Kind.SNAPSHOT, ("a", 2))]
    assert last.message == ("a", 3)


async def test_a_transaction_that_commits_late_is_not_skipped():
    source = Source("s0")
    shard = source.by_name["s0"]
    async with Stand(source).watch() as watch:
        await until_beat(watch)
        late = shard.begin()
        shard.write(late, "slow")
        shard.change("quick")
        pending = asyncio.ensure_future(anext(watch))
        done, _ = await asyncio.wait({pending}, timeout=0.1)
        assert not done, "what began later waits, or a token could pass the late one"
        shard.commit(late)
        assert (await pending).message == ("slow", 1)
        assert (await take(watch, 1))[0].message == ("quick", 1)


async def test_there_is_no_token_while_the_snapshot_may_hold_more_than_the_order_has_shown():
    source = Source("s0")
    shard = source.by_name["s0"]
    late = shard.begin()
    shard.change("a")
    async with Stand(source).watch() as watch:
        (first,) = await take(watch, 1)
        assert (first.message, first.token) == (("a", 1), "")
        pending = asyncio.ensure_future(until_beat(watch))
        done, _ = await asyncio.wait({pending}, timeout=0.1)
        assert not done
        shard.commit(late)
        found, token = await pending
        assert found == []
        assert token


async def test_a_watch_that_resumes_where_nothing_happened_hears_so_at_once():
    source = Source("s0", "s1")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    stand = Stand(source)
    stand.hub._heartbeat = 3600
    async with stand.watch(token) as watch:
        assert (await until_beat(watch))[0] == []


async def test_a_watch_resumes_after_any_of_its_tokens_on_another_replica():
    source = Source("s0", "s1")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
        tokens = [token]
        for number in range(6):
            source.by_name[f"s{number % 2}"].change(f"j{number % 2}", 2)
            tokens.append((await take(watch, 1))[0].token)
    for place, token in enumerate(tokens):
        async with Stand(source).watch(token) as watch:
            rest = [d.message for d in await take(watch, 6 - place)]
            expected = {(f"j{n % 2}", n // 2 + 1) for n in range(place, 6)}
            assert set(rest) == expected
            assert len(rest) == len(expected)


async def test_a_token_is_for_its_filter_and_nothing_else():
    source = Source("s0")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    for wanted, given_token in [
        (WatchFilter(NS, types=frozenset({"x"})), token),
        (WatchFilter("other"), token),
        (ANY, "garbage"),
    ]:
        async with Stand(source).watch(given_token, wanted) as watch:
            with pytest.raises(ResumeTokenInvalid):
                await anext(watch)
    async with Stand(Source("s9")).watch(token) as watch:
        with pytest.raises(ResumeTokenInvalid):
            await anext(watch)


async def test_a_token_older_than_what_is_kept_has_expired():
    source = Source("s0")
    async with Stand(source).watch() as watch:
        _, token = await until_beat(watch)
    shard = source.by_name["s0"]
    shard.change("a")
    shard.change("b")
    shard.purged = shard.next_xid - 1
    async with Stand(source).watch(token) as watch:
        with pytest.raises(ResumeTokenExpired):
            await anext(watch)


async def test_a_slow_reader_is_cut_off_and_its_last_token_is_valid():
    source = Source("s0")
    shard = source.by_name["s0"]
    stand = Stand(source, backlog=5)
    received = []
    token = ""
    async with stand.watch() as watch:
        await until_beat(watch)
        for _ in range(20):
            shard.change("a")
        await eventually(lambda: all(one.failure for one in stand.hub._all))
        for delivery in await take(watch, 5):
            received.append(delivery.message)
            token = delivery.token
        with pytest.raises(SlowConsumer):
            await anext(watch)
    async with Stand(source).watch(token) as watch:
        received += [d.message for d in await take(watch, 20 - len(received))]
    assert received == [("a", version) for version in range(1, 21)]


async def test_a_shard_that_is_away_lags_and_follows_when_it_is_back():
    source = Source("s0", "s1")
    source.by_name["s1"].change("b")
    source.by_name["s1"].away = True
    stand = Stand(source)
    async with stand.watch() as watch:
        source.by_name["s0"].change("a")
        (first,) = await take(watch, 1)
        assert (first.message, first.token) == (("a", 1), "")
        source.by_name["s1"].away = False
        found, token = await until_beat(watch)
        assert found == [(Kind.SNAPSHOT, ("b", 1))]
        assert token


async def test_a_heartbeat_names_the_shards_that_are_away():
    source = Source("s0", "s1")
    stand = Stand(source)
    async with stand.watch() as watch:
        await until_beat(watch)
        source.by_name["s1"].away = True
        pending = asyncio.ensure_future(anext(watch))
        await eventually(lambda: stand.hub._tails["s1"].lagging)
        stand.clock.advance(6)
        for one in stand.hub._all:
            one.wake.set()
        beat = await pending
        assert (beat.kind, beat.lagging) == (Kind.HEARTBEAT, ("s1",))


async def test_a_drain_ends_a_watch_with_its_token():
    stand = Stand(Source("s0"))
    await stand.hub.start()
    async with stand.watch() as watch:
        _, token = await until_beat(watch)
        stand.drain.set()
        (last,) = await take(watch, 1)
        assert (last.kind, last.token) == (Kind.DRAIN, token)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_only_what_matches_is_delivered_and_many_come_as_one():
    source = Source("s0")
    wanted = WatchFilter(NS, types=frozenset({"echo"}), states=frozenset({2}))
    async with Stand(source).watch(wanted=wanted, most=100) as watch:
        await until_beat(watch)
        shard = source.by_name["s0"]
        xid = shard.begin()
        for number in range(4):
            shard.write(xid, f"j{number}", 2, "echo" if number % 2 else "other")
            shard.write(xid, f"k{number}", 1, "echo")
        shard.commit(xid)
        (batch,) = await take(watch, 1)
        assert [part.message for part in batch.message] == [("j1", 1), ("j3", 1)]


# --- the model: whatever happens in whatever order, a reader that comes and goes misses nothing

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 1)),
        st.tuples(st.just("write"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("commit"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("break")),
    ),
    max_size=40,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(STEPS)
def test_a_reader_that_comes_and_goes_sees_every_version_once_and_in_order(steps):
    asyncio.run(_play(steps))


async def _play(steps) -> None:
    source = Source("s0", "s1")
    for name, shard in source.by_name.items():
        shard.change(f"{name}-0")
    reader = Reader(source)
    await reader.connect()
    for step in steps:
        await _step(source, reader, step)
    for shard in source.by_name.values():
        for xid in list(shard.open):
            shard.commit(xid)
    truth = {job: row[0] for shard in source.by_name.values() for job, row in shard.rows.items()}
    async with asyncio.timeout(10):
        while reader.seen != truth:
            await reader.read(1)
    await reader.disconnect()


async def _step(source: Source, reader: Reader, step) -> None:
    kind, *values = step
    if kind == "read":
        await reader.read(values[0])
    elif kind == "break":
        await reader.disconnect()
        await reader.connect()
    else:
        _write(source.by_name[f"s{values[0]}"], kind, values[1:])


def _write(shard: Shard, kind: str, values) -> None:
    if kind == "begin" and len(shard.open) < 3:
        shard.begin()
    elif kind == "commit" and shard.open:
        shard.commit(sorted(shard.open)[values[0] % len(shard.open)])
    elif kind == "write" and shard.open:
        with suppress(AssertionError):  # another transaction has locked the row
            shard.write(max(shard.open), f"{shard.name}-{values[0]}")


class Reader:
    """Follows by tokens; checks that each job's versions come once and without gaps."""

    def __init__(self, source: Source) -> None:
        self.source, self.token = source, ""
        self.seen: dict[str, int] = {}

    async def connect(self) -> None:
        self.context = Stand(self.source).watch(self.token)
        self.watch = await self.context.__aenter__()
        self.fresh = not self.token
        if self.fresh:
            self.seen = {}

    async def disconnect(self) -> None:
        await self.context.__aexit__(None, None, None)

    async def read(self, count: int) -> None:
        for _ in range(count):
            try:
                async with asyncio.timeout(0.03):
                    delivery = await anext(self.watch)
            except TimeoutError:
                # A cancelled generator is over: go on by token, as a client would.
                await self.disconnect()
                await self.connect()
                return
            self.token = delivery.token or self.token
            if delivery.message is not None:
                self._observe(delivery.kind, *delivery.message)

    def _observe(self, kind: Kind, job: str, version: int) -> None:
        if kind is Kind.EVENT:
            assert version == self.seen.get(job, 0) + 1, f"{job}: {version} after {self.seen}"
        self.seen[job] = version
