"""The workloads on one mesh, and what is said about each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from localmesh.harness import RunningMesh

from tests.bench import cpu
from tests.bench.ground import make_pools, percentile, say, wal_bytes
from tests.bench.load import Load, Run
from tests.bench.watchers import Watchers

BATCH = 500
CALLERS = 64
LARGE_BYTES = 1024 * 1024
LARGE_JOBS = 24
WATCHERS = 1000
#: A mesh that was just started and warmed is at rest after so long: connections, unlocks, garbage.
SETTLE_SECONDS = 10.0
#: In this order; `make bench` may be asked for some of them.
WORKLOADS = (
    "idle",
    "batch",
    "stream",
    "drain",
    "unary",
    "client",
    "many",
    "plain",
    "latency",
    "latency_singles",
    "latency_half_peak",
    "lateness",
    "watchers",
    "large",
)


class Bench:
    """Runs workloads and keeps what they found, under the names of the results file."""

    def __init__(self, mesh: RunningMesh, load: Load, jobs: int) -> None:
        self._mesh, self._load, self._jobs = mesh, load, jobs
        self.results: dict[str, Any] = {}

    async def run(self, names: Sequence[str]) -> None:
        await self._load.batches(BATCH, 100)  # warm: connections, prepared statements
        await self._load.singles(64, 8)
        for name in names:
            await getattr(self, f"_{name}")()
        rss = cpu.read(self._mesh).rss
        self.results["rss_mb"] = {k: round(v) for k, v in sorted(rss.items())}

    async def _idle(self, seconds: float = 15.0) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        before = cpu.read(self._mesh)
        await asyncio.sleep(seconds)
        spent = cpu.read(self._mesh).since(before)
        self.results["idle_percent_of_a_core"] = {
            stage: round(100 * value / seconds, 2) for stage, value in sorted(spent.items())
        }
        ours = 100 * spent.pop("client", 0.0) / seconds
        total = 100 * sum(spent.values()) / seconds
        say(f"{'idle':28}{total:8.1f} % of one core, workers included ({ours:.1f} this benchmark)")

    async def _batch(self) -> None:
        before, wal = cpu.read(self._mesh), await wal_bytes(self._mesh)
        run = await self._load.batches(self._jobs, BATCH)
        self._told("throughput_batch_jobs_per_s", run, before, "cpu_us_per_job")
        written = (await wal_bytes(self._mesh) - wal) / run.jobs
        self.results["wal_bytes_per_job"] = round(written)
        say(f"{'wal_bytes_per_job':28}{written:8.0f} bytes")

    async def _stream(self) -> None:
        before = cpu.read(self._mesh)
        run = await self._load.stream(self._jobs, BATCH)
        self._told("throughput_stream_jobs_per_s", run, before, "cpu_us_per_job_stream")

    async def _drain(self) -> None:
        scheduler = self._mesh.targets("scheduler")[0]
        ids = await self._load.store_paused(self._jobs, BATCH, scheduler)
        before = cpu.read(self._mesh)
        run = await self._load.drain(ids, scheduler)
        self._told("drain_jobs_per_s", run, before, "cpu_us_per_job_drain")

    async def _unary(self) -> None:
        before = cpu.read(self._mesh)
        run = await self._load.singles(max(self._jobs // 10, 500), CALLERS)
        self._told("throughput_unary_jobs_per_s", run, before, "cpu_us_per_job_unary")

    async def _client(self) -> None:
        before = cpu.read(self._mesh)
        run = await self._load.singles_by_client(max(self._jobs // 10, 500), CALLERS)
        self._told("throughput_client_jobs_per_s", run, before, "cpu_us_per_job_client")

    async def _many(self) -> None:
        before = cpu.read(self._mesh)
        run = await self._load.many_by_client(self._jobs)
        self._told("throughput_many_jobs_per_s", run, before, "cpu_us_per_job_many")

    async def _plain(self) -> None:
        await make_pools(self._mesh, 1, ["plain"])  # now: its worker shall not count before
        await self._load.batches(100, 100, type_="plain")
        before = cpu.read(self._mesh)
        run = await self._load.batches(max(self._jobs // 10, 500), 100, type_="plain")
        self._told("throughput_plain_jobs_per_s", run, before, "cpu_us_per_job_plain")

    async def _latency(self) -> None:
        values = await self._load.stamped(200, 50)
        self._percentiles("latency_start", values, "submit -> handler start at 50/s")

    async def _latency_singles(self, rate: int = 400, seconds: int = 4) -> None:
        """Between a lone job and callers that fill batches by themselves."""
        before = cpu.read(self._mesh)
        values = await self._load.stamped(rate * seconds, rate)
        spent = cpu.read(self._mesh).since(before)
        self._percentiles("latency_start_singles", values, f"the same at {rate}/s, by single calls")
        per_job = 1e6 * sum(spent.values()) / len(values)
        self.results["cpu_us_per_job_singles"] = round(per_job)
        say(f"{'':28}{per_job:8.0f} µs CPU per job")

    async def _latency_half_peak(self) -> None:
        rate = self.results.get("throughput_batch_jobs_per_s", 2000.0) / 2
        values = await self._load.stamped_batches(rate, 5.0)
        self._percentiles("latency_start_half_peak", values, f"the same at {rate:.0f}/s")

    async def _lateness(self) -> None:
        values = await self._load.late(200, 4.0)
        self._percentiles("lateness", values, "due -> handler start")
        self.results["early_starts"] = sum(value < 0 for value in values)

    async def _watchers(self) -> None:
        before = cpu.read(self._mesh).rss["enqueue"]
        async with Watchers(self._mesh.enqueue_target) as watchers:
            await watchers.open(WATCHERS)
            each = (cpu.read(self._mesh).rss["enqueue"] - before) * 1000 / WATCHERS
            usage = cpu.read(self._mesh)
            run = await self._load.batches(self._jobs, BATCH)
            self._told("throughput_watched_jobs_per_s", run, usage, "cpu_us_per_job_watched")
            heard = await watchers.cancel_all()
        self.results["watcher_kb"] = round(each, 1)
        self.results["watchers_told"] = heard
        say(f"{'watcher_kb':28}{each:8.1f} kB each; {heard} of {WATCHERS} were told of the end")

    async def _large(self) -> None:
        run = await self._load.large(LARGE_JOBS, LARGE_BYTES)
        self.results["large_jobs_per_s"] = round(run.rate, 1)
        say(f"{'large_jobs_per_s':28}{run.rate:8.1f} jobs/s with 1 MB in and 1 MB out through S3")

    def _told(self, name: str, run: Run, before: cpu.Usage, cpu_name: str) -> None:
        self.results[name] = round(run.rate, 1)
        spent = cpu.read(self._mesh).since(before)
        per_job = {k: round(1e6 * v / run.jobs, 1) for k, v in sorted(spent.items())}
        self.results[cpu_name] = per_job
        stages = ", ".join(f"{k} {v:.0f}" for k, v in per_job.items() if v >= 0.5)
        say(f"{name:28}{run.rate:8.0f} jobs/s ({run.jobs} jobs in {run.ended - run.began:.1f} s)")
        say(f"{'':28}{sum(per_job.values()):8.0f} µs CPU per job: {stages}")

    def _percentiles(self, name: str, values: Sequence[float], what: str) -> None:
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        self.results[f"{name}_p50_ms"] = round(p50, 2)
        self.results[f"{name}_p99_ms"] = round(p99, 2)
        say(f"{name:28}{p50:8.1f} ms p50, {p99:.1f} ms p99 ({what})")
