"""`make bench-time`, or `python -m tests.bench.timing [figure …]`: how punctual the mesh is.

spread      5,000 jobs over a minute: how late each starts, and that none is early
herd        10,000 jobs at one instant: until the last of them has started
storm       a scheduler killed every ten seconds, for two minutes, under run-at jobs and schedules
schedules   100,000 schedules, 1,000 of them firing each minute: what a scheduler pays
idle        what a mesh costs at rest, empty and with a million jobs for next month

Each figure has a mesh of its own. The machine's other work shows in everything but CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from localmesh.harness import running_mesh

from tests.bench import cpu
from tests.bench.__main__ import described, make_pools, say
from tests.bench.load import Load
from tests.bench.timing_place import Place, lateness
from tests.bench.timing_rest import idle, schedules
from tests.bench.timing_storm import storm

RESULTS = Path("bench/results/timing.json")
Figure = Callable[[Place], Awaitable[dict[str, Any]]]


async def spread(place: Place) -> dict[str, Any]:
    count, seconds = place.scaled(5_000), 60 * place.size
    await place.load.late(100, 1.0)  # warm: connections, prepared statements
    first = datetime.now(UTC) + timedelta(seconds=6)
    due = [first + timedelta(seconds=seconds * n / count) for n in range(count)]
    return {"jobs": count, "seconds": seconds} | lateness(await place.load.started_at(due))


async def herd(place: Place) -> dict[str, Any]:
    count = place.scaled(10_000)
    await place.load.late(100, 1.0)
    instant = datetime.now(UTC) + timedelta(seconds=4 + count / 1000)
    starts = await place.load.started_at([instant] * count)
    took = (max(start for _, start in starts) - instant).total_seconds()
    rate = round(count / took)
    return {"jobs": count, "last_after_s": round(took, 3), "jobs_per_s": rate} | lateness(starts)


FIGURES: dict[str, Figure] = {
    "spread": spread,
    "herd": herd,
    "storm": storm,
    "schedules": schedules,
    "idle": idle,
}


async def measured(figure: Figure, size: float, *, preferred: bool) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="jobmesh-bench-") as home,
        running_mesh(Path(home)) as mesh,
    ):
        await make_pools(mesh, 1)
        if preferred:
            cpu.prefer(mesh)
        load = Load(mesh.enqueue_target, mesh.orchestrator_target)
        try:
            return await figure(Place(mesh, load, size))
        finally:
            await load.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-time", description=__doc__)
    parser.add_argument("figures", nargs="*", default=list(FIGURES), choices=[*FIGURES, []])
    parser.add_argument("--size", type=float, default=1.0, help="0.1: a tenth of everything")
    parser.add_argument("--prefer", action="store_true", help="run before all else; needs root")
    given = parser.parse_args()
    results = described()
    for name in given.figures:
        results[name] = asyncio.run(measured(FIGURES[name], given.size, preferred=given.prefer))
        for key, value in results[name].items():
            say(f"{name:10} {key:22} {value}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    say(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
