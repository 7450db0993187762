"""What a shard costs: rows per second and CPU microseconds per job, client and server apart.

    python tests/bench/store_bench.py --dsn postgresql://postgres@127.0.0.1:5432/postgres

Makes a database of its own beside the given one, and drops it. The server's CPU time is that of its
processes on this machine (found by the port), so the server must be local.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import Claimed, NewJob, Payload
from services.mesh.jobs.reports import Started, Succeeded
from services.mesh.store.postgres import PostgresShard

WORKER = "worker-0123456789abcdef"


@dataclass
class Stage:
    """One kind of statement, measured."""

    name: str
    jobs: int = 0
    wall: float = 0.0
    client: float = 0.0
    server: float = 0.0

    def line(self) -> str:
        """Rates and costs for people."""
        per_job = 1e6 / max(1, self.jobs)
        return (
            f"{self.name:<28} {self.jobs / self.wall:>9,.0f} jobs/s"
            f"   client {self.client * per_job:6.1f} µs   server {self.server * per_job:6.1f} µs"
        )


class Meter:
    """Adds up wall time and CPU time of stages."""

    def __init__(self, server: psutil.Process) -> None:
        self._server = server
        self.stages: dict[str, Stage] = {}

    @asynccontextmanager
    async def measure(self, name: str, jobs: int) -> AsyncIterator[None]:
        """Count what happens inside as `jobs` jobs of stage `name`."""
        stage = self.stages.setdefault(name, Stage(name))
        server, client, wall = self._server_cpu(), time.process_time(), time.perf_counter()
        yield
        stage.wall += time.perf_counter() - wall
        stage.client += time.process_time() - client
        # What ended meanwhile (an autovacuum worker) is not counted.
        stage.server += sum(cpu - server.get(pid, 0.0) for pid, cpu in self._server_cpu().items())
        stage.jobs += jobs

    def _server_cpu(self) -> dict[int, float]:
        return {p.pid: _cpu_seconds(p.pid) for p in (self._server, *self._server.children())}


def _cpu_seconds(pid: int) -> float:
    """Time on a CPU, to the nanosecond; the tick counters are too coarse for short stages."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def new_jobs(count: int, randomness: random.Random) -> list[NewJob]:
    """Jobs with 200 bytes of input, due now."""
    now_ms = int(time.time() * 1000)
    payload = Payload.inline(b"x" * 200, "application/json")
    return [
        NewJob(new_job_id(randomness.randrange(4096), now_ms, randomness), "bench", "noop", payload)
        for _ in range(count)
    ]


async def run_batches(
    shard: PostgresShard, meter: Meter, total: int, batch: int, start_first: bool
) -> None:
    """Put, claim and complete `total` jobs, a stage at a time, so that each can be measured."""
    randomness = random.Random(7)
    label = f"{batch}" + (" (start apart)" if start_first else "")
    rounds = total // batch
    batches = [new_jobs(batch, randomness) for _ in range(rounds)]
    async with meter.measure(f"put {label}", rounds * batch):
        for jobs in batches:
            await shard.put_jobs(jobs, 1)
    claimed: list[list[Claimed]] = []
    async with meter.measure(f"claim {label}", rounds * batch):
        claimed += [(await shard.claim("noop", WORKER, batch)).jobs for _ in range(rounds)]
    if start_first:
        async with meter.measure(f"start {label}", rounds * batch):
            for held in claimed:
                await shard.report([Started(job.id, job.fence, WORKER) for job in held])
    output = Payload.inline(b"y" * 50, "application/json")
    async with meter.measure(f"succeed {label}", rounds * batch):
        for held in claimed:
            await shard.report([Succeeded(job.id, job.fence, WORKER, output) for job in held])


async def run_concurrently(shard: PostgresShard, meter: Meter, total: int, batch: int) -> None:
    """All stages at once on four connections, as in the mesh."""
    randomness = random.Random(11)
    batches = [new_jobs(batch, randomness) for _ in range(total // batch)]
    waiting: asyncio.Queue[list[Claimed]] = asyncio.Queue()
    done = 0

    async def putter(part: list[list[NewJob]]) -> None:
        for jobs in part:
            await shard.put_jobs(jobs, 1)

    async def claimer() -> None:
        taken = 0
        while taken < total:
            held = (await shard.claim("noop", WORKER, batch)).jobs
            taken += len(held)
            waiting.put_nowait(held)

    async def reporter() -> None:
        nonlocal done
        while done < total:
            held = await waiting.get()
            if held:
                await shard.report([Succeeded(job.id, job.fence, WORKER) for job in held])
                done += len(held)

    async with meter.measure(f"all at once, {batch}", total), asyncio.TaskGroup() as group:
        group.create_task(putter(batches[::2]), name="putter-0")
        group.create_task(putter(batches[1::2]), name="putter-1")
        group.create_task(claimer(), name="claimer")
        group.create_task(reporter(), name="reporter")


async def with_database(dsn: str, body: Callable[[str], Awaitable[None]]) -> None:
    """Run `body` with a database of its own."""
    name = f"bench_{uuid.uuid4().hex[:8]}"
    admin = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        await body(make_conninfo(dsn, dbname=name))
    finally:
        await admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        await admin.close()


def postmaster(dsn: str) -> psutil.Process:
    """The server process that listens on the DSN's port."""
    port = int(conninfo_to_dict(dsn)["port"] or 5432)
    for connection in psutil.net_connections("tcp"):
        listening = connection.status == psutil.CONN_LISTEN and connection.laddr
        if listening and listening.port == port:
            return psutil.Process(connection.pid)
    raise SystemExit(f"nobody listens on port {port} of this machine")


async def main(dsn: str, total: int, sizes: list[int]) -> None:
    """Measure and print."""
    meter = Meter(postmaster(dsn))

    async def body(database: str) -> None:
        shard = PostgresShard("bench", database)
        await shard.migrate()
        await shard.open()
        await run_batches(shard, Meter(meter._server), 1000, 500, start_first=True)
        for size in sizes:
            await run_batches(shard, meter, min(total, size * 200), size, start_first=False)
        await run_batches(shard, meter, total, 500, start_first=True)
        await run_concurrently(shard, meter, total, 500)
        await shard.close()

    await with_database(dsn, body)
    for stage in meter.stages.values():
        print(stage.line())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 100, 10, 1])
    options = parser.parse_args()
    asyncio.run(main(options.dsn, options.jobs, options.sizes))
