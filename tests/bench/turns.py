"""Two versions in turn: a mesh of each is up, and they take rounds of the same load.

    python -m tests.bench.turns ../other-checkout [--rounds 10] [--jobs 8000] [--load singles]
    python -m tests.bench.turns ../other-checkout --load lone --jobs 1600 --per-second 400

The other checkout is "before" (`git worktree add --detach ../other COMMIT`), this one "after"; both
run in this one's environment. Prints the CPU of each stage per job in microseconds, and the rate
or, of lone jobs, the milliseconds from submit to start: the median and every round. A stage that
did not change says how comparable the two are. `--preferred` lets the meshes run before anything
else on the machine, as if it were quiet (needs the right to do so).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.load import Load

HERE = Path(__file__).resolve().parents[2]
BATCH, SMALL = 500, 10
CALLERS = 64
#: Jobs per second of which each is alone in the mesh, unless said otherwise.
LONE = 50
WARM_UP = {"lone": 2 * LONE}
#: What is still written and unlocked when the last job has ended belongs to the round.
REST_SECONDS = 0.3
Round = dict[str, float]


class Side:
    """A process that holds a mesh of one checkout."""

    def __init__(self, checkout: Path, load: str, per_second: int, preferred: bool) -> None:
        paths = [checkout, checkout / "gen", checkout / "sdk", checkout / "deploy"]
        self._process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--side", load, str(per_second)),
                *(["preferred"] if preferred else []),
            ],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rounds: list[Round] = []

    def ready(self) -> None:
        self._hear()

    def run(self, jobs: int) -> None:
        self._say(str(jobs))
        self.rounds.append(json.loads(self._hear()))

    def end(self) -> None:
        self._say("")
        self._process.wait(60)

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side ended by itself")
        return line


async def held(kind: str, per_second: int, preferred: bool) -> None:
    """One side: a mesh, and a round whenever a number of jobs is read."""
    # Here: they come from the checkout that this side runs.
    from localmesh.harness import running_mesh

    from tests.bench import cpu
    from tests.bench.ground import make_pools, say
    from tests.bench.load import Load

    types = {"plain": "plain", "lone": "stamp"}
    folder = tempfile.TemporaryDirectory(prefix="jobmesh-turns-")
    with folder as home, running_mesh(Path(home)) as mesh:
        await make_pools(mesh, 1, [types.get(kind, "noop")])
        if preferred:
            cpu.prefer(mesh)
        load = Load(mesh.enqueue_target, mesh.orchestrator_target)
        run = _loads(load, per_second)[kind]
        await run(WARM_UP.get(kind, BATCH))
        say("ready")
        while jobs := (await asyncio.to_thread(sys.stdin.readline)).strip():
            before = cpu.read(mesh)
            figures = await run(int(jobs))
            await asyncio.sleep(REST_SECONDS)
            spent = cpu.read(mesh).since(before)
            per_job = {stage: 1e6 * value / int(jobs) for stage, value in spent.items()}
            total = sum(per_job.values())
            say(json.dumps(per_job | {"all": total} | figures))
        await load.close()


def _loads(load: Load, per_second: int) -> dict[str, Callable[[int], Awaitable[Round]]]:
    """What a round may be: runs so many jobs, and says what was seen of them."""
    from tests.bench.ground import percentile

    async def batches(jobs: int) -> Round:
        return {"jobs/s": (await load.batches(jobs, BATCH)).rate}

    async def singles(jobs: int) -> Round:
        return {"jobs/s": (await load.singles(jobs, CALLERS)).rate}

    async def smalls(jobs: int) -> Round:
        return {"jobs/s": (await load.batches(jobs, SMALL, under_way=CALLERS)).rate}

    async def plain(jobs: int) -> Round:
        return {"jobs/s": (await load.batches(jobs, BATCH // 5, type_="plain")).rate}

    async def many(jobs: int) -> Round:
        return {"jobs/s": (await load.many_by_client(jobs)).rate}

    async def lone(jobs: int) -> Round:
        starts = await load.stamped(jobs, per_second)
        return {f"start p{share}": percentile(starts, share / 100) for share in (50, 90, 99)}

    kinds = (batches, many, smalls, singles, plain, lone)
    return {kind.__name__: kind for kind in kinds}


def compared(given: argparse.Namespace) -> None:
    from tests.bench.ground import say

    checkouts = given.other.resolve(), HERE
    sides = [Side(one, given.load, given.per_second, given.preferred) for one in checkouts]
    for side in sides:
        side.ready()
    for number in range(given.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            side.run(given.jobs)
    for side in sides:
        side.end()
    say(f"{'':14}{'before':>8}{'after':>8}   every round")
    for stage in sides[0].rounds[0]:
        values = [[one[stage] for one in side.rounds] for side in sides]
        medians = "".join(f"{statistics.median(of_side):8.1f}" for of_side in values)
        each = " | ".join(" ".join(f"{v:.0f}" for v in of_side) for of_side in values)
        say(f"{stage:14}{medians}   {each}")


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        asyncio.run(held(sys.argv[2], int(sys.argv[3]), preferred="preferred" in sys.argv))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.bench.turns")
    parser.add_argument("other", type=Path, help="a checkout of the version before")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=8000, help="of each round")
    parser.add_argument(
        "--load",
        choices=("batches", "many", "smalls", "singles", "plain", "lone"),
        default="batches",
        help="many: by the Python client; singles: calls of one job each; "
        "plain: functions that run two at a time; lone: a steady stream of single calls",
    )
    parser.add_argument("--per-second", type=int, default=LONE, help="of that stream")
    parser.add_argument("--preferred", action="store_true", help="as if the machine were quiet")
    given = parser.parse_args()
    compared(given)


if __name__ == "__main__":
    main()
