"""What a transaction that is held open costs the mesh.

    python -m tests.bench.held [--rounds 4] [--jobs 15000]

Batches of 500 to their ends, in turn without and with a transaction open on every shard, as a
backup or a forgotten session has one: from its beginning on no row that was deleted can be removed.
Prints jobs per second, CPU per job in all and in Postgres, every round and the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from localmesh.harness import RunningMesh, running_mesh

from tests.bench import cpu
from tests.bench.ground import make_pools, say
from tests.bench.load import Load

BATCH = 500
#: What is still written and unlocked when the last job has ended belongs to the round.
REST_SECONDS = 0.3
Figures = tuple[float, float, float]


@contextmanager
def held_open(mesh: RunningMesh) -> Iterator[None]:
    """A snapshot of every shard; when it is let go, what it kept is removed."""
    with ExitStack() as stack:
        for dsn in mesh.shard_dsns.values():
            connection = stack.enter_context(psycopg.connect(dsn))
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM queue")
        yield
    for dsn in mesh.shard_dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM queue, in_flight")


async def one_round(mesh: RunningMesh, load: Load, jobs: int) -> Figures:
    before = cpu.read(mesh)
    run = await load.batches(jobs, BATCH)
    await asyncio.sleep(REST_SECONDS)
    spent = cpu.read(mesh).since(before)
    return run.rate, 1e6 * sum(spent.values()) / jobs, 1e6 * spent["postgres"] / jobs


def told(name: str, figures: Figures) -> None:
    rate, total, postgres = figures
    say(f"{name:8}{rate:7.0f} jobs/s {total:6.0f} us per job, postgres {postgres:4.0f}")


async def compared(rounds: int, jobs: int) -> None:
    found: dict[str, list[Figures]] = {"free": [], "held": []}
    folder = tempfile.TemporaryDirectory(prefix="jobmesh-held-")
    with folder as home, running_mesh(Path(home)) as mesh:
        await make_pools(mesh, 1, ["noop"])
        load = Load(mesh.enqueue_target, mesh.orchestrator_target)
        await load.batches(10 * BATCH, BATCH)
        for _ in range(rounds):
            found["free"].append(await one_round(mesh, load, jobs))
            told("free", found["free"][-1])
            with held_open(mesh):
                found["held"].append(await one_round(mesh, load, jobs))
            told("held", found["held"][-1])
        await load.close()
    free, held = ([statistics.median(f) for f in zip(*found[name], strict=True)] for name in found)
    ratios = [with_it / without for with_it, without in zip(held, free, strict=True)]
    say("held ÷ free, medians: jobs/s {:.2f}, CPU {:.2f}, postgres {:.2f}".format(*ratios))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.held")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=15_000, help="of each round")
    given = parser.parse_args()
    asyncio.run(compared(given.rounds, given.jobs))


if __name__ == "__main__":
    main()
