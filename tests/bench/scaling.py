"""Other numbers of shards and of workers: jobs per second, and per second of CPU.

A machine of two cores is full with one of each, so what counts here is whether a job costs more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from localmesh.harness import running_mesh

from tests.bench import cpu
from tests.bench.ground import make_pools, say
from tests.bench.load import Load

#: (shards, workers)
SIZES = ((1, 1), (2, 1), (3, 1), (3, 2), (3, 4))


async def scaled(jobs: int) -> list[dict[str, Any]]:
    return [await _one(shards, workers, jobs) for shards, workers in SIZES]


async def _one(shards: int, workers: int, jobs: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="jobmesh-bench-") as home,
        running_mesh(Path(home), shards=shards) as mesh,
    ):
        await make_pools(mesh, workers, ["noop"])
        load = Load(mesh.enqueue_target, mesh.orchestrator_target)
        try:
            await load.batches(1000, 500)
            before = cpu.read(mesh)
            run = await load.batches(jobs, 500)
            spent = sum(cpu.read(mesh).since(before).values())
        finally:
            await load.close()
    per_second = jobs / spent
    say(
        f"{shards} shards, {workers} workers{'':9}{run.rate:8.0f} jobs/s, "
        f"{per_second:.0f} per CPU-second"
    )
    return {
        "shards": shards,
        "workers": workers,
        "jobs_per_s": round(run.rate, 1),
        "jobs_per_cpu_s": round(per_second, 1),
    }
