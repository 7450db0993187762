"""`make bench-growth`: does a shard that holds a million jobs cost more per job than an empty one?

Puts, claims and completes batches on two shards in turn, so that what else the machine does hits
both: one that holds none, and one that holds many jobs: finished ones, some that are due next year,
or half of each; every kind on a shard of its own, grown from count to count. Then once more while a
transaction holds an old snapshot of the full one open, which keeps dead rows from being cleared
away. What counts is the server's CPU per job and the time of a claim, as ratios to the empty shard;
the goal is within 15 %, and 10 % for the snapshot. Ten million mixed jobs are 12 GB on disk:

    make bench-growth BENCH="--counts 1000000 10000000 --kinds mixed"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from localmesh.harness import RunningMesh, running_mesh

from services.mesh.jobs.alike import AlikeJobs
from services.mesh.jobs.ids import new_job_keys
from services.mesh.jobs.model import Claimed, JobFilter, NewJob, Payload
from services.mesh.jobs.reports import Successes
from services.mesh.jobs.states import JobState
from services.mesh.store.postgres import PostgresShard
from tests.bench.ground import described, say

RESULTS = Path("bench/results/growth.json")
WORKER = "worker-0123456789abcdef"
BATCH = 500
FILL_AT_ONCE = 100_000
SAY_EACH = 1_000_000
#: The first page of a list, as ListJobs asks each shard for it.
PAGE = 50
DONE = JobFilter("default", frozenset({JobState.SUCCEEDED}), frozenset({"noop"}))
TABLES = ("jobs", "event_rows", "queue", "in_flight", "commits")

_FINISHED = """
WITH made AS (
    INSERT INTO jobs (id, namespace, type, state, version, dispatch_no, attempt, create_time,
                      due_time, first_due_time, start_time, end_time, worker_id, input)
    SELECT uuidv7(), 'default', 'noop', 4, 4, 1, 1, now(), now(), now(), now(), now(), 'w', %s
      FROM generate_series(1, %s)
    RETURNING id
)
INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id,
                        dispatch_time, start_time)
SELECT m.id, 4, 4, 4, now(), 1, 1, 'w', now(), now() FROM made m"""
_FUTURE = """
WITH made AS (
    INSERT INTO jobs (id, namespace, type, state, version, create_time, due_time, first_due_time,
                      input)
    SELECT uuidv7(), 'default', 'noop', 1, 1, now(), d.due, d.due, %s
      FROM generate_series(1, %s) AS n
     CROSS JOIN LATERAL (SELECT now() + interval '1 year' + n * interval '1 ms') AS d (due)
    RETURNING id, type, priority, due_time
)
INSERT INTO queue (job_id, due_time, priority, later, type)
SELECT id, due_time, priority, true, type FROM made"""

#: What a shard is filled with, by equal parts.
KINDS = {"mixed": (_FINISHED, _FUTURE), "finished": (_FINISHED,), "future": (_FUTURE,)}


@dataclass
class Figures:
    """One measurement: milliseconds per statement of 500, and CPU of the server."""

    put: list[float] = field(default_factory=list)
    claim: list[float] = field(default_factory=list)
    report: list[float] = field(default_factory=list)
    page: list[float] = field(default_factory=list)
    cpu_us_per_job: float = 0.0
    wal_bytes_per_job: float = 0.0

    def told(self) -> dict[str, float]:
        named = {"put": self.put, "claim": self.claim, "report": self.report, "page": self.page}
        found = {f"{name}_ms": round(statistics.median(v), 2) for name, v in named.items()}
        found["cpu_us_per_job"] = round(self.cpu_us_per_job, 1)
        return found | {"wal_bytes_per_job": round(self.wal_bytes_per_job)}


class Grown:
    """One shard, and what its jobs cost."""

    def __init__(self, shard: PostgresShard, dsn: str, postmaster: int) -> None:
        self._shard, self._dsn, self._postmaster = shard, dsn, postmaster
        self._random = random.Random(5)
        self._like = NewJob(UUID(int=0), "default", "noop", Payload.inline(b""))
        self._figures = Figures()
        self._before: dict[int, float] = {}
        self._wal_before = 0

    def begin(self) -> None:
        self._figures = Figures()
        self._before, self._wal_before = self._cpu(), self._wal()

    def end(self) -> dict[str, float]:
        figures = self._figures
        jobs = len(figures.put) * BATCH
        spent = sum(cpu - self._before.get(pid, 0.0) for pid, cpu in self._cpu().items())
        figures.cpu_us_per_job = spent / jobs * 1e6
        figures.wal_bytes_per_job = (self._wal() - self._wal_before) / jobs
        return figures.told()

    async def round(self) -> None:
        figures = self._figures
        buckets = [self._random.randrange(4096) for _ in range(BATCH)]
        keys = new_job_keys(buckets, int(time.time() * 1000), self._random)
        jobs = AlikeJobs(self._like, keys, [b"x" * 200] * BATCH)
        times = [time.perf_counter()]
        await self._shard.put_jobs(jobs, 1)
        times.append(time.perf_counter())
        held = (await self._shard.claim("noop", WORKER, BATCH)).jobs
        times.append(time.perf_counter())
        await self._shard.report([], [_successes(held)])
        times.append(time.perf_counter())
        listed = await self._shard.list_jobs(DONE, None, PAGE)
        times.append(time.perf_counter())
        assert len(held) == BATCH, f"claimed {len(held)} of {BATCH}"
        assert len(listed) == PAGE, f"listed {len(listed)} of {PAGE}"
        series = (figures.put, figures.claim, figures.report, figures.page)
        for found, (begin, end) in zip(series, pairwise(times), strict=True):
            found.append((end - begin) * 1e3)

    async def close(self) -> None:
        await self._shard.close()

    def fill(self, count: int, kind: str) -> None:
        """So many more jobs of a kind; then as a vacuum leaves it."""
        statements = KINDS[kind]
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for start in range(0, count, FILL_AT_ONCE):
                part = min(FILL_AT_ONCE, count - start) // len(statements)
                for statement in statements:
                    connection.execute(statement, (b"x" * 200, part))
                if start % SAY_EACH == 0:
                    say(f"  {kind}: {start:,} of {count:,} filled in")
            connection.execute("VACUUM ANALYZE")

    def sizes(self) -> dict[str, int]:
        query = (
            "SELECT relname, pg_total_relation_size(oid) >> 20 FROM pg_class WHERE relkind = 'r'"
        )
        with psycopg.connect(self._dsn) as connection:
            found = dict(connection.execute(query).fetchall())
        return {name: found[name] for name in TABLES}

    def snapshot(self) -> psycopg.Connection[Any]:
        """A transaction that sees the shard as it is now, for as long as it is open."""
        held = psycopg.connect(self._dsn)
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM in_flight")
        return held

    def _wal(self) -> int:
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
            return int(row[0]) if row else 0

    def _cpu(self) -> dict[int, float]:
        """By backend, to the nanosecond; vacuum workers, which come and go, are not counted."""
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text()
        found: dict[int, float] = {}
        for pid in map(int, children.split()):
            try:
                stat = Path(f"/proc/{pid}/schedstat").read_text()
                if "autovacuum worker" not in Path(f"/proc/{pid}/cmdline").read_text():
                    found[pid] = int(stat.split()[0]) / 1e9
            except OSError:
                continue
        return found


def _successes(held: Sequence[Claimed]) -> Successes:
    keys, fences = [job.id.bytes for job in held], [job.fence for job in held]
    return Successes(WORKER, keys, fences, [0] * len(held), None, "")


async def in_turn(empty: Grown, full: Grown, rounds: int) -> tuple[dict[str, float], ...]:
    """The figures of both, measured round by round in turn."""
    for place in (empty, full):
        place.begin()
        await place.round()  # plans
        place.begin()
    for _ in range(rounds):
        await empty.round()
        await full.round()
    return empty.end(), full.end()


async def grown(counts: Sequence[int], kinds: Sequence[str], rounds: int) -> dict[str, Any]:
    none: dict[str, int] = {"enqueues": 0, "orchestrators": 0, "schedulers": 0, "scalers": 0}
    with (
        tempfile.TemporaryDirectory(prefix="jobmesh-bench-") as home,
        running_mesh(Path(home), shards=1 + len(kinds), **none) as mesh,
    ):
        empty, *others = [await _opened(mesh, number) for number in range(1 + len(kinds))]
        results = {
            kind: await _compared(empty, full, kind, counts, rounds)
            for kind, full in zip(kinds, others, strict=True)
        }
        for place in (empty, *others):
            await place.close()
    return results


async def _opened(mesh: RunningMesh, number: int) -> Grown:
    name = f"s{number}"
    shard = PostgresShard(name, mesh.shard_dsns[name])
    await shard.migrate()
    await shard.open()
    return Grown(shard, mesh.shard_dsns[name], mesh.process(f"shard-{number}").pid)


async def _compared(
    empty: Grown, full: Grown, kind: str, counts: Sequence[int], rounds: int
) -> dict[str, Any]:
    await in_turn(empty, full, rounds // 2)  # warm
    results: dict[str, Any] = {}
    results["0"] = told(f"{kind} 0", *await in_turn(empty, full, rounds))
    for before, count in pairwise((0, *sorted(counts))):
        await asyncio.to_thread(full.fill, count - before, kind)
        await in_turn(empty, full, 2)
        results[str(count)] = told(f"{kind} {count:,}", *await in_turn(empty, full, rounds))
        results[str(count)]["size_mb"] = full.sizes()
    held = full.snapshot()
    results["snapshot"] = told(f"{kind}, snapshot held", *await in_turn(empty, full, rounds))
    held.close()
    return results


def told(name: str, base: dict[str, float], found: dict[str, float]) -> dict[str, Any]:
    ratios = {key: round(value / base[key], 3) for key, value in found.items()}
    cells = ", ".join(f"{key} {found[key]:g} ({ratio:.2f} x)" for key, ratio in ratios.items())
    say(f"{name:24}{cells}")
    return {"empty": base, "full": found, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-growth", description=__doc__)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1_000_000], help="how many jobs a shard holds"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=40, help="batches of 500 per measurement")
    given = parser.parse_args()
    results = described() | asyncio.run(grown(given.counts, given.kinds, given.rounds))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    say(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
