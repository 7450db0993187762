"""More work than the mesh can do, and a tenant that submits more than its share.

    python -m tests.bench.overload [--seconds 8] [--only overload noisy]

First the peak: batches from a caller that waits for answers. Then three times that rate, sent
whether or not answers come: what is stored and ended in that time, how soon the rest is refused and
whether it is told when to come again, how large the processes grow, and how soon a lone job starts
as before. Then, on a mesh with quotas, a namespace that sends ten times its own, and what another
one sees of it. All figures are ratios to the same mesh at rest, in one run.

The neighbour is heard in turn with silence, several times, and the medians of the turns are
compared: a machine is quicker in one minute than in the next. One of the turns is its control: the
same calls, of which the mesh hears nothing, for they go to a server that refuses them all (`bare`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psycopg
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub
from localmesh.harness import RunningMesh, running_mesh

from tests.bench import cpu
from tests.bench.bare import refusing_server
from tests.bench.ground import described, make_pools, percentile, say
from tests.bench.load import OPTIONS, Load, spec

RESULTS = Path("bench/results/overload.json")
BATCH = 500
OVERLOAD = 3.0
#: A lone job starts as before if that takes no longer than so many times as long.
AS_BEFORE = 2.0
QUOTA = 100
NOISE = 10
#: So many times without and with it.
TURNS = 5
#: What the noisy one may send at once, by its name: two seconds' worth, as by default, and little.
BURSTS = {"wide": 2 * QUOTA, "small": QUOTA // 5}
#: Batches a second that the control of the refusals sends under overload.
CONTROLS = 20


@dataclass
class Answers:
    """What an open loop was answered."""

    stored: int = 0
    refused: int = 0
    #: Milliseconds until a refusal was there.
    refusals: list[float] = field(default_factory=list)
    #: Refusals that say when to come again.
    hinted: int = 0
    others: dict[str, int] = field(default_factory=dict)

    def failed(self, error: grpc.aio.AioRpcError, began: float, jobs: int) -> None:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            name = error.code().name
            self.others[name] = self.others.get(name, 0) + 1
            return
        self.refused += jobs
        self.refusals.append((time.perf_counter() - began) * 1000)
        self.hinted += _says_when(error)


def _says_when(error: grpc.aio.AioRpcError) -> bool:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    if status is None:
        return False
    return any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)


async def sent_openly(
    stub: EnqueueServiceStub, namespace: str, rate: float, seconds: float, size: int = BATCH
) -> Answers:
    """Send batches at a steady rate, whether or not answers come."""
    answers = Answers()
    items = [pb.EnqueueItem(job=spec("noop"))] * size
    request = pb.EnqueueBatchRequest(namespace=namespace, items=items)

    async def one(number: int) -> None:
        await asyncio.sleep(number * size / rate)
        began = time.perf_counter()
        try:
            answer = await stub.EnqueueBatch(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            answers.failed(error, began, size)
        else:
            answers.stored += sum(1 for result in answer.results if result.job_id)

    await asyncio.gather(*(one(number) for number in range(round(rate * seconds / size))))
    return answers


async def sent_to(
    target: str, namespace: str, rate: float, seconds: float, size: int = BATCH
) -> Answers:
    async with grpc.aio.insecure_channel(target, OPTIONS) as channel:
        return await sent_openly(EnqueueServiceStub(channel), namespace, rate, seconds, size)


async def ended(mesh: RunningMesh) -> int:
    """Jobs that have succeeded so far, by the rows."""
    total = 0
    for dsn in mesh.shard_dsns.values():
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            found = await connection.execute("SELECT count(*) FROM jobs WHERE state = 4")
            row = await found.fetchone()
            total += int(row[0]) if row else 0
    return total


async def drained(mesh: RunningMesh, total: int) -> float:
    """When so many jobs had succeeded, to half a second: counting them costs, too."""
    while True:
        if await ended(mesh) >= total:
            return time.perf_counter()
        await asyncio.sleep(0.5)


async def back_to_normal(load: Load, usual: float) -> float:
    """Seconds until lone jobs start as quickly as before."""
    began = time.perf_counter()
    while percentile(await load.stamped(10, 50), 0.5) > AS_BEFORE * usual:
        if time.perf_counter() - began > 120:
            break
    return time.perf_counter() - began


async def overloaded(mesh: RunningMesh, load: Load, seconds: float) -> dict[str, Any]:
    """Three times the peak, for so long."""
    usual = percentile(await load.stamped(100, 50), 0.5)
    run = await load.batches(round(seconds * 2000 / BATCH) * BATCH, BATCH)
    say(f"peak {run.rate:.0f} jobs/s; a lone job starts in {usual:.1f} ms")
    before, began = await ended(mesh), time.perf_counter()
    with refusing_server() as bare:
        answers, control = await asyncio.gather(
            sent_to(mesh.enqueue_target, "", OVERLOAD * run.rate, seconds),
            sent_to(bare, "", CONTROLS * BATCH, seconds),
        )
    grown = cpu.read(mesh).rss
    took = time.perf_counter() - began
    goodput = (await ended(mesh) - before) / took
    total = before + answers.stored
    normal, last = await asyncio.gather(back_to_normal(load, usual), drained(mesh, total))
    to_the_last = answers.stored / (last - began)
    return {
        "peak_jobs_per_s": round(run.rate),
        "offered_jobs_per_s": round(OVERLOAD * run.rate),
        "ended_jobs_per_s": round(goodput),
        "ended_of_peak": round(goodput / run.rate, 2),
        "ended_of_peak_to_the_last": round(to_the_last / run.rate, 2),
        "stored": answers.stored,
        "refused": answers.refused,
        "refusal_p50_ms": _rounded(answers.refusals, 0.5),
        "refusal_p99_ms": _rounded(answers.refusals, 0.99),
        "bare_refusal_p50_ms": _rounded(control.refusals, 0.5),
        "bare_refusal_p99_ms": _rounded(control.refusals, 0.99),
        "refusals_that_say_when": answers.hinted,
        "refusals": len(answers.refusals),
        "other_errors": answers.others,
        "rss_mb": {name: round(value) for name, value in sorted(grown.items())},
        "normal_after_s": round(normal, 1),
    }


@dataclass
class Turns:
    """What a namespace saw, turn by turn, and what its neighbour was answered meanwhile."""

    starts: list[list[float]] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    stored: int = 0
    #: Of the mesh, in seconds.
    cpu: float = 0.0

    def p(self, share: float) -> float:
        """The median of the turns' percentiles."""
        return round(statistics.median(percentile(turn, share) for turn in self.starts), 1)

    def described(self, alone: Turns, seconds: float) -> dict[str, Any]:
        ratios = (
            percentile(mine, 0.99) / percentile(theirs, 0.99)
            for mine, theirs in zip(self.starts, alone.starts, strict=True)
        )
        return {
            "start_p50_ms": self.p(0.5),
            "start_p90_ms": self.p(0.9),
            "start_p99_ms": self.p(0.99),
            "start_p99_of_alone": round(self.p(0.99) / alone.p(0.99), 2),
            "the_same_by_turn": [round(ratio, 2) for ratio in ratios],
            "mesh_cores": round(self.cpu / seconds / len(self.starts), 2),
            "noise_stored_per_s": round(self.stored / seconds / len(self.starts)),
            "refusal_p50_ms": _rounded(self.refusals, 0.5),
            "refusal_p99_ms": _rounded(self.refusals, 0.99),
        }


def loud(target: str, namespace: str, seconds: float) -> Answers:
    """A namespace that sends ten times its quota, in small batches."""
    return asyncio.run(sent_to(target, namespace, NOISE * QUOTA, seconds, size=10))


async def noisy(mesh: RunningMesh, load: Load, seconds: float) -> dict[str, Any]:
    """A lone namespace's submits, without and with a neighbour at ten times its quota. That one is
    a process of its own: what its client costs it must not delay the submits that are measured.
    """
    loop = asyncio.get_running_loop()
    turns = {name: Turns() for name in ("alone", "elsewhere", *BURSTS)}
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as neighbour,
        refusing_server() as bare,
    ):
        for name in BURSTS:  # it is there by now
            await loop.run_in_executor(neighbour, loud, mesh.enqueue_target, name, 0.1)
        for _ in range(TURNS):
            for name, turn in turns.items():
                before = cpu.read(mesh)
                starts = load.stamped(round(50 * seconds), 50)
                if name == "alone":
                    turn.starts.append(await starts)
                else:
                    target = bare if name == "elsewhere" else mesh.enqueue_target
                    sending = loop.run_in_executor(neighbour, loud, target, name, seconds)
                    found, heard = await asyncio.gather(starts, sending)
                    turn.starts.append(found)
                    turn.refusals += heard.refusals
                    turn.stored += heard.stored
                used = cpu.read(mesh).since(before)
                turn.cpu += sum(used.values()) - used["client"]
    return {name: turn.described(turns["alone"], seconds) for name, turn in turns.items()}


def _rounded(values: Sequence[float], share: float) -> float | None:
    return round(percentile(values, share), 2) if len(values) > 1 else None


Part = Callable[[RunningMesh, Load, float], Awaitable[dict[str, Any]]]


async def measured(part: Part, seconds: float, **environment: str) -> dict[str, Any]:
    """One part, on a mesh of its own."""
    folder = tempfile.TemporaryDirectory(prefix="jobmesh-overload-")
    with folder as home, running_mesh(Path(home), environment=environment) as mesh:
        await make_pools(mesh, 1, ("noop", "stamp"))
        load = Load(mesh.enqueue_target, mesh.orchestrator_target)
        try:
            await load.batches(4 * BATCH, BATCH)
            found = await part(mesh, load, seconds)
        finally:
            await load.close()
    for name, value in found.items():
        say(f"{name:28}{value}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overload")
    parser.add_argument("--seconds", type=float, default=8.0, help="of overload, and of a turn")
    parts = ("overload", "noisy")
    parser.add_argument("--only", nargs="*", default=parts, choices=parts)
    given = parser.parse_args()
    results = described()
    if "overload" in given.only:
        results["overload"] = asyncio.run(measured(overloaded, given.seconds))
    if "noisy" in given.only:
        quotas = ",".join(f"{name}={QUOTA}:{burst}" for name, burst in BURSTS.items())
        results["noisy"] = asyncio.run(measured(noisy, given.seconds, JOBMESH_QUOTAS=quotas))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    say(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
