"""Drives one peer through the workloads and prints what it found, one JSON line per workload.

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
PAGE = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 5.0
START_SECONDS = 60.0


def tree(root: int) -> list[int]:
    """A process and all below it."""
    try:
        lists = [(task / "children").read_text() for task in Path(f"/proc/{root}/task").iterdir()]
    except OSError:
        return []
    return [root, *(pid for line in lists for child in line.split() for pid in tree(int(child)))]


def cpu_seconds(pids: list[int]) -> float:
    return sum(_stat(pid, 11) + _stat(pid, 12) for pid in pids) / TICKS


def rss_mb(pids: list[int]) -> int:
    return round(sum(_stat(pid, 21) for pid in pids) * PAGE / 1e6)


def _stat(pid: int, field: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[field])
    except OSError:
        return 0


def percentiles(name: str, values: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"{name}_p50_ms": round(parts[49], 2), f"{name}_p99_ms": round(parts[98], 2)}


class Worker:
    """The peer's worker: a process of its own."""

    def __init__(self, peer: str) -> None:
        self._command = [sys.executable, __file__, "serve", peer]
        self._process: subprocess.Popen[bytes] | None = None

    def pids(self) -> list[int]:
        return tree(self._process.pid) if self._process else []

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._process = None


class Measured:
    def __init__(self, client: Any, worker: Worker, server_pid: int) -> None:
        self._client = client
        self._worker = worker
        self._server_pid = server_pid

    def _pids(self) -> dict[str, list[int]]:
        client = [os.getpid(), *getattr(self._client, "pids", [])]
        return {"client": client, "worker": self._worker.pids(), "server": tree(self._server_pid)}

    def _cpu(self) -> dict[str, float]:
        return {part: cpu_seconds(pids) for part, pids in self._pids().items()}

    async def _log_bytes(self) -> int | None:
        """How much the server has written to its log so far, where the peer can tell."""
        told = getattr(self._client, "log_bytes", None)
        return await told() if told else None

    async def warm(self) -> None:
        """A few jobs through all of it: connections, plans, caches."""
        self._worker.start()
        await self._client.submit_many([PAYLOAD] * 100)
        await self._ended()

    async def drain(self, jobs: int) -> dict[str, float]:
        """Jobs that wait for a worker; the clock runs from the first that ends."""
        self._worker.stop()
        await self._submit(jobs)
        waiting = left = await self._client.left()
        self._worker.start()
        async with asyncio.timeout(START_SECONDS):
            while (left := await self._client.left()) == waiting:  # noqa: ASYNC110 - no peer tells
                await asyncio.sleep(0.02)
        began = time.perf_counter()
        await self._ended()
        return {"drain_jobs_per_s": round(left / (time.perf_counter() - began), 1)}

    async def _submit(self, jobs: int) -> None:
        for start in range(0, jobs, BATCH):
            await self._client.submit_many([PAYLOAD] * min(BATCH, jobs - start))

    async def _ended(self) -> None:
        async with asyncio.timeout(600):
            while await self._client.left() > 0:  # noqa: ASYNC110 - no peer tells
                await asyncio.sleep(0.02)

    async def bulk(self, jobs: int) -> dict[str, Any]:
        before, logged = self._cpu(), await self._log_bytes()
        began = time.perf_counter()
        await self._submit(jobs)
        await self._ended()
        took = time.perf_counter() - began
        spent = {part: cpu - before[part] for part, cpu in self._cpu().items()}
        wrote = await self._log_bytes()
        return {
            "throughput_batch_jobs_per_s": round(jobs / took, 1),
            "cpu_us_per_job": {part: round(cpu / jobs * 1e6, 1) for part, cpu in spent.items()},
            "wal_bytes_per_job": None if wrote is None else round((wrote - logged) / jobs),
            "rss_mb": {part: rss_mb(pids) for part, pids in self._pids().items()},
        }

    async def single(self, jobs: int) -> dict[str, float]:
        each = getattr(self._client, "submit_each", self._submit_each)
        began = time.perf_counter()
        await each([PAYLOAD] * jobs, CALLERS)
        await self._ended()
        rate = jobs / (time.perf_counter() - began)
        return {"throughput_unary_jobs_per_s": round(rate, 1)}

    async def _submit_each(self, payloads: list[str], callers: int) -> None:
        waiting = iter(payloads)

        async def caller() -> None:
            for payload in waiting:
                await self._client.submit_one(payload)

        await asyncio.gather(*(caller() for _ in range(callers)))

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


async def run(peer: str, jobs: int, singles: int) -> None:
    url = os.environ["PEER_URL"]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CALLERS))
    client = importlib.import_module(f"{peer}_peer").Client()
    await client.open(url)
    worker = Worker(peer)
    try:
        measured = Measured(client, worker, int(os.environ["PEER_SERVER_PID"]))
        await measured.warm()
        # No peer has a stream of submits that are answered one by one.
        told({"throughput_stream_jobs_per_s": None})
        told(await measured.bulk(jobs))
        told(await measured.single(singles))
        told(await measured.latency(100, 50))
        told(await measured.lateness(100, 3.0))
        told(await measured.drain(jobs))
        await client.close()
    finally:
        worker.stop()


def told(found: dict[str, Any]) -> None:
    """At once: what is known stands, even if the rest takes too long."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


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
    asyncio.run(run(given.peer, given.jobs, given.singles))


if __name__ == "__main__":
    main()
