"""`make bench`: start a mesh, run the workloads, print a table, write results and a picture.

The default takes a few minutes; `--full` is 100,000 jobs; `--only batch unary` a selection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from localmesh.harness import running_mesh

from tests.bench import picture
from tests.bench.ground import described, make_pools, say
from tests.bench.load import Load
from tests.bench.scaling import scaled
from tests.bench.workloads import WORKLOADS, Bench

__all__ = ["described", "make_pools", "say"]

RESULTS = Path("bench/results/latest.json")
PICTURE = Path("bench/results/latest.svg")
SETTINGS = {
    "shards": 3,
    "schedulers": 2,
    "worker_capacity": 500,
    "batch": 500,
    "payload_bytes": 200,
    "synchronous_commit": "on",
    "fsync": "on",
    "every_job": "durable, locked in etcd, fenced, completion queryable, watched to its end",
}


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """The workloads, one after the other, on one mesh; then meshes of other sizes."""
    results = described() | {"settings": SETTINGS | {"jobs": given.jobs, "workers": given.workers}}
    with tempfile.TemporaryDirectory(prefix="jobmesh-bench-") as home:
        say("starting a mesh …")
        with running_mesh(Path(home)) as mesh:
            await make_pools(mesh, given.workers)
            load = Load(mesh.enqueue_target, mesh.orchestrator_target)
            bench = Bench(mesh, load, given.jobs)
            try:
                await bench.run([name for name in given.only if name in WORKLOADS])
            finally:
                await load.close()
            results |= bench.results
    if "scaling" in given.only:
        results["scaling"] = await scaled(min(given.jobs, 20_000))
    return results


def kept_peers(results: dict[str, Any]) -> dict[str, Any]:
    """Peers are measured by `make bench-peers`; what it found last stays beside our figures."""
    try:
        before = json.loads(RESULTS.read_text())
    except (OSError, ValueError):
        before = {}
    return results | {"peers": before.get("peers", {})}


def write(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    PICTURE.write_text(picture.drawn(results))
    say(f"written to {RESULTS} and {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of the large workloads")
    parser.add_argument("--workers", type=int, default=1, help="workers per type")
    parser.add_argument("--full", action="store_true", help="100,000 jobs")
    every = [*WORKLOADS, "scaling"]
    parser.add_argument("--only", nargs="*", default=every, choices=[*every, []], metavar="NAME")
    given = parser.parse_args()
    if given.full:
        given.jobs = 100_000
    write(kept_peers(asyncio.run(measured(given))))


if __name__ == "__main__":
    main()
