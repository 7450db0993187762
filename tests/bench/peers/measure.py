"""Drives one peer through the workloads and prints what it found as JSON.

Runs in the peers' environment: `python measure.py serve|run PEER`, told by PEER_URL, PEER_STAMPS
and PEER_SERVER_PID.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import stamps

PAYLOAD = "x" * 200
TICKS = os.sysconf("SC_CLK_TCK")
CALLERS = 64
BATCH = 500


def cpu_seconds(root: int) -> float:
    """CPU time of a process and all below it."""
    try:
        fields = Path(f"/proc/{root}/stat").read_text().rsplit(")", 1)[1].split()
        spent = (int(fields[11]) + int(fields[12])) / TICKS
        for task in Path(f"/proc/{root}/task").iterdir():
            spent += sum(cpu_seconds(int(c)) for c in (task / "children").read_text().split())
    except OSError:
        return 0.0
    return spent


def percentiles(name: str, values: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"{name}_p50_ms": round(parts[49], 2), f"{name}_p99_ms": round(parts[98], 2)}


class Measured:
    def __init__(self, client: Any, worker_pid: int, server_pid: int) -> None:
        self._client = client
        self._pids = (worker_pid, server_pid)

    def _cpu(self) -> float:
        times = os.times()
        return sum(cpu_seconds(pid) for pid in self._pids) + times.user + times.system

    async def _ended(self) -> None:
        async with asyncio.timeout(600):
            while await self._client.left() > 0:  # noqa: ASYNC110 - no peer tells
                await asyncio.sleep(0.02)

    async def bulk(self, jobs: int) -> dict[str, float]:
        before, began = self._cpu(), time.perf_counter()
        for start in range(0, jobs, BATCH):
            await self._client.submit_many([PAYLOAD] * min(BATCH, jobs - start))
        await self._ended()
        took = time.perf_counter() - began
        return {
            "throughput_batch_jobs_per_s": round(jobs / took, 1),
            "cpu_us_per_job": round((self._cpu() - before) / jobs * 1e6, 1),
        }

    async def single(self, jobs: int) -> dict[str, float]:
        turns = iter(range(jobs))

        async def caller() -> None:
            for _ in turns:
                await self._client.submit_one(PAYLOAD)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        await self._ended()
        rate = jobs / (time.perf_counter() - began)
        return {"throughput_unary_jobs_per_s": round(rate, 1)}

    async def latency(self, count: int, per_second: float) -> dict[str, float]:
        async def one(number: int) -> None:
            await asyncio.sleep(number / per_second)
            await self._client.submit_one(f"{stamps.MARK}{time.time_ns()}".ljust(200))

        known = len(stamps.read())
        await asyncio.gather(*(one(number) for number in range(count)))
        return percentiles("latency_start", await self._stamped(known, count))

    async def lateness(self, count: int, seconds: float) -> dict[str, float]:
        known = len(stamps.read())
        first = datetime.now(UTC) + timedelta(seconds=2)
        for number in range(count):
            due = first + timedelta(seconds=seconds * number / count)
            given = round(due.timestamp() * 1e9)
            await self._client.submit_at(f"{stamps.MARK}{given}".ljust(200), due)
        return percentiles("lateness", await self._stamped(known, count))

    async def _stamped(self, known: int, count: int) -> list[float]:
        async with asyncio.timeout(120):
            while len(stamps.read()) < known + count:  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.05)
        return [(start - given) / 1e6 for given, start in stamps.read()[known:]]


async def run(peer: str, jobs: int, singles: int) -> dict[str, float]:
    url = os.environ["PEER_URL"]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CALLERS))
    client = importlib.import_module(f"{peer}_peer").Client()
    await client.open(url)
    serve = [sys.executable, __file__, "serve", peer]
    worker = subprocess.Popen(serve, stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - once
    try:
        measured = Measured(client, worker.pid, int(os.environ["PEER_SERVER_PID"]))
        await measured.bulk(100)  # warm, and the worker is up
        results = await measured.bulk(jobs)
        results |= await measured.single(singles)
        results |= await measured.latency(100, 50)
        results |= await measured.lateness(100, 3.0)
        await client.close()
    finally:
        worker.terminate()
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.kill()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["serve", "run"])
    parser.add_argument("peer")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--singles", type=int, default=1_000)
    given = parser.parse_args()
    if given.role == "serve":
        importlib.import_module(f"{given.peer}_peer").serve(os.environ["PEER_URL"])
        return
    found = asyncio.run(run(given.peer, given.jobs, given.singles))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
