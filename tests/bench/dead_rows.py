"""What each statement of a shard costs when a transaction has been held open for ten minutes.

    python -m tests.bench.dead_rows [--jobs 200000] [--calls 5]

Two shards go through the same: as many jobs as ten minutes at 333 per second bring, most of them
plain, some started apart, retried, due later or to expire, all of them ended, and the first half
purged, while their keepers look at them every two seconds. On one of them a transaction was begun
before, so that nothing of it could be vacuumed away.
Then everything that the mesh asks a shard regularly is asked on both, in turn. Per call: the
server's time and the blocks that were touched, by pg_stat_statements, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from localmesh.harness import RunningMesh, running_mesh

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import Claimed, JobFilter, NewJob, Payload, Position
from services.mesh.jobs.reports import Failed, Started, Succeeded, Successes
from services.mesh.jobs.retry import Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import LIVE, JobState
from services.mesh.jobs.type_settings import Retention, RetentionRules
from services.mesh.store.floors import FloorPace, FloorRules
from services.mesh.store.postgres import PostgresShard
from tests.bench.ground import say
from tests.soak.probes import remember_statements

BATCH = 500
#: Of a batch, the first that are due a moment later, the first that may expire, the started apart
#: and the ones that fail at first.
LATER, EXPIRING, BRIEF, FLAKY = 50, 50, 75, 75
TYPES = ("noop", "brief", "flaky")
WORKERS = 4
#: Jobs of one measured statement, and jobs that are on their way all the time.
FEW, UNDER_WAY = 50, 30
MARGIN = timedelta(seconds=1.2)
#: Of a shard's keeper, in seconds.
TICK = 2.0
NOW = timedelta(0)
DAY = timedelta(days=1)
SLOT, DISPATCH = timedelta(seconds=4), timedelta(seconds=1.6)
AT_ONCE = RetentionRules(Retention(NOW, NOW, NOW, NOW), {})
_AGAIN = RetryPolicy(Backoff.FIXED, 3, timedelta(milliseconds=1))
_WORSE = Failure("ValueError", "it was told to fail")
_SPENT = """
SELECT coalesce(sum(total_exec_time), 0), coalesce(sum(shared_blks_hit + shared_blks_read), 0)
  FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"""
_TABLES = "queue, in_flight, jobs, event_rows, commits, job_terms"

Figures = dict[str, list[tuple[float, float]]]


class Place:
    """One shard, its history, and what its statements cost."""

    def __init__(self, shard: PostgresShard, dsn: str) -> None:
        self.figures: Figures = defaultdict(list)
        self._shard, self._dsn = shard, dsn
        self._random = random.Random(3)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._numbers = iter(range(10**9))
        self._half: Position | None = None
        self._half_time = datetime.now(UTC)

    async def close(self) -> None:
        self._connection.close()
        await self._shard.close()

    # --- its history

    def snapshot(self) -> psycopg.Connection[Any]:
        """A transaction that sees the shard as it is now, for as long as it is open."""
        held = psycopg.connect(self._dsn)
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM queue")
        return held

    async def live_through(self, jobs: int) -> None:
        """So many jobs come and go; those of the first half are purged."""
        keeper = asyncio.create_task(self._keep(), name="keeper")
        await self._come_and_go(jobs // 2)
        self._half_time = datetime.now(UTC)
        while await self._shard.purge_order(NOW, BATCH) == BATCH:
            pass
        self._half = (await self._shard.events_since(None, 1)).next
        await self._come_and_go(jobs // 2)
        # All but those that ended within the last ten seconds of their half.
        while not (await self._shard.purge_jobs(AT_ONCE, BATCH)).done:
            pass
        await asyncio.sleep(3 * TICK)
        keeper.cancel()
        await self._settle()

    async def _keep(self) -> None:
        """Look as a keeper does, which is what makes room for all looks."""
        while True:
            await self._shard.pulse(None, SLOT, 5000, DISPATCH)
            await asyncio.sleep(TICK)

    async def _come_and_go(self, jobs: int) -> None:
        for _ in range(jobs // BATCH):
            await self.bring(list(self._batch()))
            await self._run_all()
        await asyncio.sleep(0.2)  # until the last ones are due
        await self._run_all()

    async def _settle(self) -> None:
        """What autovacuum would have done by now, and what a busy shard always has under way."""
        await asyncio.to_thread(self._connection.execute, f"VACUUM ANALYZE {_TABLES}")
        later = datetime.now(UTC) + timedelta(hours=1)
        jobs = [self._job("noop", due_time=later) for _ in range(UNDER_WAY)]
        await self.bring([*jobs, *(self._job("brief") for _ in range(UNDER_WAY))])
        await self._shard.claim("brief", self._worker(), UNDER_WAY)

    def _batch(self) -> Iterator[NewJob]:
        now = datetime.now(UTC)
        soon, end = now + timedelta(milliseconds=100), now + timedelta(hours=1)
        for number in range(BATCH):
            if number < BRIEF:
                yield self._job("brief")
            elif number < BRIEF + FLAKY:
                yield self._job("flaky", retry=_AGAIN)
            else:
                plain = number - BRIEF - FLAKY
                yield self._job(
                    "noop",
                    due_time=soon if plain < LATER else None,
                    expire_time=end if LATER <= plain < LATER + EXPIRING else None,
                )

    def _job(self, type_: str, **fields: Any) -> NewJob:
        now_ms = int(time.time() * 1000)
        job_id = new_job_id(self._random.randrange(4096), now_ms, self._random)
        return NewJob(job_id, "blue", type_, Payload.inline(b"x" * 200), **fields)

    def _worker(self) -> str:
        return f"worker-{next(self._numbers) % WORKERS:016x}"

    async def bring(self, jobs: Sequence[NewJob]) -> None:
        await self._shard.put_jobs(jobs, 1)

    async def _run_all(self) -> None:
        worker = self._worker()
        for type_ in (*TYPES, "flaky"):
            held = (await self._shard.claim(type_, worker, BATCH, recent=MARGIN)).jobs
            if type_ == "flaky" and held and held[0].attempt == 1:
                failed = [Failed(job.id, job.fence, worker, _WORSE) for job in held]
                await self._shard.report(failed)
                await asyncio.sleep(0.002)
            elif held:
                await self.end(worker, held, apart=type_ == "brief")

    async def end(self, worker: str, held: Sequence[Claimed], *, apart: bool = False) -> None:
        if apart:
            await self._shard.report([Started(job.id, job.fence, worker) for job in held])
            await self._shard.report([Succeeded(job.id, job.fence, worker) for job in held])
            return
        keys, fences = [job.id.bytes for job in held], [job.fence for job in held]
        ended = Successes(worker, keys, fences, [0] * len(held), None, "")
        await self._shard.report([], [ended])

    # --- what it costs

    @asynccontextmanager
    async def measured(self, name: str) -> AsyncIterator[None]:
        before = self._spent()
        yield
        ms, blocks = (after - since for after, since in zip(self._spent(), before, strict=True))
        self.figures[name].append((ms, blocks))

    def _spent(self) -> tuple[float, float]:
        row = self._connection.execute(_SPENT).fetchone()
        return (float(row[0]), float(row[1])) if row else (0.0, 0.0)

    async def round(self) -> None:
        """Everything that is asked regularly, once."""
        await self._job_by_job()
        await self._keeping()
        await self._reading()
        await self._purging()

    async def _job_by_job(self) -> None:
        shard = self._shard
        for depth, recent in (("shallow", MARGIN), ("deep", None)):
            async with self.measured(f"put {FEW} jobs"):
                await self.bring([self._job("noop") for _ in range(FEW)])
            worker = self._worker()
            async with self.measured(f"claim {FEW}, {depth}"):
                held = (await shard.claim("noop", worker, FEW, recent=recent)).jobs
            assert len(held) == FEW, f"claimed {len(held)} of {FEW}"
            async with self.measured(f"report {FEW} successes"):
                await self.end(worker, held)
            async with self.measured(f"claim none, {depth}"):
                await shard.claim("noop", worker, FEW, recent=recent)

    async def _keeping(self) -> None:
        shard = self._shard
        async with self.measured("pulse, slot only"):
            await shard.pulse(None, SLOT, 5000, DISPATCH, deep=False)
        shard._floors = FloorPace(FloorRules())
        for name in ("pulse, at everything", "pulse, deep"):  # the first one paces itself
            async with self.measured(name):
                await shard.pulse(None, SLOT, 5000, DISPATCH)
        async with self.measured("overdue dispatches"):
            await shard.overdue_dispatches(timedelta(seconds=4), 5000)
        async with self.measured("workers in flight"):
            await shard.inflight_workers()
        async with self.measured("rescue from a lost worker"):
            await shard.rescue(["worker-of-nobody"])
        async with self.measured("expire"):
            await shard.expire_overdue()
        async with self.measured("backlog"):
            await shard.backlog()
        async with self.measured("fire schedules"):
            await shard.fire_due_schedules()
        async with self.measured("release, check blocked"):
            await shard.take_ended_parents()
            await shard.check_blocked()

    async def _reading(self) -> None:
        shard = self._shard
        living, ended = frozenset(LIVE), frozenset({JobState.SUCCEEDED})
        async with self.measured("list what lives"):
            found = await shard.list_jobs(JobFilter("blue", living), None, 50)
        async with self.measured("list what is in flight"):
            await shard.list_jobs(JobFilter("blue", frozenset({JobState.DISPATCHED})), None, 50)
        async with self.measured("count what lives"):
            await shard.count_jobs(JobFilter("blue", living))
        async with self.measured("list what succeeded"):
            await shard.list_jobs(JobFilter("blue", ended), None, 50)
        async with self.measured("explain: place in queue"):
            await shard.place_in_queue(found[0])
            await shard.claims_per_second("noop")
        async with self.measured("read a page of events"):
            await shard.events_since(self._half, 500)

    async def _purging(self) -> None:
        """A round that meets what was purged before, and nothing else."""
        span = datetime.now(UTC) - self._half_time
        rules = RetentionRules(Retention(span, span, span, span), {})
        async with self.measured("purge the order, a step"):
            await self._shard.purge_order(DAY, BATCH)
        async with self.measured("purge jobs, a round"):
            while not (await self._shard.purge_jobs(rules, BATCH)).done:
                pass


def _middle(figures: Sequence[tuple[float, float]]) -> tuple[float, float]:
    ms, blocks = zip(*figures, strict=True)
    return statistics.median(ms), statistics.median(blocks)


def tell(free: Figures, held: Figures) -> None:
    say(f"{'per call':28}{'ms free':>9}{'held':>9}{'ratio':>7}{'blocks free':>13}{'held':>9}")
    for name in free:
        (ms, blocks), (held_ms, held_blocks) = _middle(free[name]), _middle(held[name])
        ratio = held_ms / ms
        say(f"{name:28}{ms:9.2f}{held_ms:9.2f}{ratio:7.1f}{blocks:13.0f}{held_blocks:9.0f}")


async def compared(jobs: int, calls: int) -> None:
    folder = tempfile.TemporaryDirectory(prefix="jobmesh-dead-")
    with folder as home, _two_shards(Path(home)) as mesh:
        await asyncio.to_thread(remember_statements, mesh)
        places = [await _opened(name, dsn) for name, dsn in mesh.shard_dsns.items()]
        free, held = places
        transaction = held.snapshot()
        began = time.monotonic()
        await asyncio.gather(*(place.live_through(jobs) for place in places))
        say(f"{jobs:,} jobs came and went on each, in {time.monotonic() - began:.0f} s")
        for number in range(calls + 1):
            for place in places:
                await place.round()
                if number == 0:
                    place.figures.clear()  # plans
        tell(free.figures, held.figures)
        transaction.close()
        for place in places:
            await place.close()


def _two_shards(home: Path) -> RunningMesh:
    return running_mesh(home, shards=2, enqueues=0, orchestrators=0, schedulers=0, scalers=0)


async def _opened(name: str, dsn: str) -> Place:
    shard = PostgresShard(name, dsn)
    await shard.migrate()
    await shard.open()
    return Place(shard, dsn)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dead_rows")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--calls", type=int, default=5, help="of each statement; the middle counts")
    given = parser.parse_args()
    asyncio.run(compared(given.jobs, given.calls))


if __name__ == "__main__":
    main()
