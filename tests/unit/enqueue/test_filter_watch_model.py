"""Whatever happens in whatever order, a reader that comes and goes misses nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.enqueue.app.watch import Kind
from tests.unit.enqueue.filter_stand import (
    ENDED,
    Shard,
    Source,
    Stand,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 1)),
        st.tuples(st.just("write"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("commit"), st.integers(0, 1), st.integers(0, 2)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("break")),
        st.tuples(st.just("crash"), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("blink"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("away"), st.integers(0, 1), st.booleans()),
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
        for number in range(3):
            shard.change(f"{name}-{number}")
    reader = Reader(source)
    await reader.connect()
    for step in steps:
        await _step(source, reader, step)
    for shard in source.by_name.values():
        shard.away = False
        for xid in list(shard.open):
            shard.commit(xid)
    async with asyncio.timeout(10):
        while not reader.knows_all():
            await reader.read(1)
    await reader.disconnect()


async def _step(source: Source, reader: Reader, step) -> None:
    kind, *values = step
    if kind == "read":
        await reader.read(values[0])
    elif kind == "break":
        await reader.disconnect()
        await reader.connect()
    elif kind == "blink":
        source.blinks[f"s{values[0]}"] = values[1]
    elif kind == "away":
        source.by_name[f"s{values[0]}"].away = values[1]
    else:
        _write(source.by_name[f"s{values[0]}"], kind, values[1:])


def _write(shard: Shard, kind: str, values) -> None:
    if kind == "begin" and len(shard.open) < 3:
        shard.begin()
    elif kind == "commit" and shard.open:
        shard.commit(sorted(shard.open)[values[0] % len(shard.open)])
    elif kind == "crash":
        shard.crash()
    elif kind in ("write", "end") and shard.open:
        job = f"{shard.name}-{values[0]}"
        if not shard.has_ended(job):
            with suppress(AssertionError):  # another transaction has locked the row
                shard.write(max(shard.open), job, ENDED if kind == "end" else 1)


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

    def knows_all(self) -> bool:
        """Whether it has seen the newest of each job, but for those that ended before it came."""
        return all(
            self.seen.get(job, version if shard.has_ended(job) else 0) == version
            for shard in self.source.by_name.values()
            for job, (version, _, _) in shard.rows.items()
        )

    def _observe(self, kind: Kind, job: str, version: int) -> None:
        ended = self.source.by_name[job[:2]].has_ended(job)
        if kind is Kind.SNAPSHOT:
            assert job not in self.seen, f"{job}: shown again"
        elif job in self.seen or not ended:  # else it ended before it was listed
            assert version == self.seen.get(job, 0) + 1, f"{job}: {version} after {self.seen}"
        self.seen[job] = version
