"""Many seeds, on all processors: `make simulate SEEDS=10000`.

python -m tests.simulation [--seeds 1000] [--first 0] [--processes 2] [--show SEED] [--break NAME]

Seeds that failed once stand in `seeds.txt`, and run again each time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.breaking import BREAKS
from tests.simulation.world import Outcome, simulate

PROGRESS_SECONDS = 10.0


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of names is part of what a seed decides.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    asked = _arguments()
    if asked.broken:
        BREAKS[asked.broken]()
    _quiet()
    if asked.show is not None:
        return _show(simulate(asked.show, quiet=False))
    began = time.perf_counter()
    seeds = [*_kept(), *range(asked.first, asked.first + asked.seeds)]
    with ProcessPoolExecutor(asked.processes, initializer=_quiet) as pool:
        outcomes = _all(pool.map(simulate, seeds, chunksize=10), len(seeds))
    return _summary(outcomes, time.perf_counter() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, help="one seed, with its story")
    parser.add_argument("--break", dest="broken", choices=list(BREAKS), help="see it fail")
    return parser.parse_args()


def _kept() -> list[int]:
    lines = Path(__file__).with_name("seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def _quiet() -> None:
    """Tasks of killed processes end when they are thrown away; that is nobody's concern."""
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)


def _all(coming: Iterator[Outcome], count: int) -> list[Outcome]:
    """Collect them, and say now and then how far it is."""
    outcomes: list[Outcome] = []
    said = time.monotonic()
    for outcome in coming:
        outcomes.append(outcome)
        if time.monotonic() > said + PROGRESS_SECONDS:
            said = time.monotonic()
            failed = sum(bool(one.problems) for one in outcomes)
            print(f"{len(outcomes)} of {count} seeds, {failed} failed", file=sys.stderr)
    return outcomes


def _show(outcome: Outcome) -> int:
    print("\n".join([*outcome.story, *outcome.problems, str(outcome.steps)]))
    return 1 if outcome.problems else 0


def _summary(outcomes: list[Outcome], seconds: float) -> int:
    failed = [outcome for outcome in outcomes if outcome.problems]
    for outcome in failed[:20]:
        print(f"seed {outcome.seed}: {outcome.problems[0]}")
    rules = Counter(problem.split()[0] for one in failed for problem in one.problems[:1])
    sums = {
        name: sum(getattr(outcome, name) for outcome in outcomes)
        for name in ("jobs", "kills", "freezes", "cuts", "zombies", "handed", "steps")
    }
    told = " ".join(f"{name}={value}" for name, value in sums.items())
    virtual = sum(outcome.seconds for outcome in outcomes)
    word = "FAIL" if failed else "PASS"
    print(
        f"simulation: {word} seeds={len(outcomes)} failed={len(failed)} {dict(rules)} {told}"
        f" simulated={virtual / 3600:.1f}h seconds={seconds:.0f}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
