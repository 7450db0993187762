"""The whole matrix, or a part of it, as a table.

python -m tests.failpoints [--only 'worker.*'] [--actions kill,pause] [--folder DIR] [--part 1/2]
                           [--first 77]

Two halves, each with a mesh of its own, take little longer side by side than one of them: most of
a cell is waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import grpc.aio

from tests.failpoints.cells import ACTIONS, Cell, cells
from tests.failpoints.rig import ALL_LARGE, struck_mesh
from tests.failpoints.strike import Outcome, strike


def main() -> int:
    asked = _arguments()
    part, parts = (int(number) for number in asked.part.split("/"))
    every = list(cells(asked.only, tuple(asked.actions.split(","))))
    chosen = every[asked.first - 1 :][part - 1 :: parts]
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="jobmesh-failpoints-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    grpc.aio.init_grpc_aio()
    outcomes = asyncio.run(_run(folder, chosen))
    return _summary(outcomes, time.monotonic() - began, folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failpoints")
    parser.add_argument("--only", default="*", help="failpoints, as a shell pattern")
    parser.add_argument("--actions", default=",".join(ACTIONS))
    parser.add_argument("--folder", default="", help="where failed cells leave their evidence")
    parser.add_argument("--part", default="1/1", help="this share of the cells, like 2/3")
    parser.add_argument("--first", type=int, default=1, help="begin with this cell")
    return parser.parse_args()


async def _run(folder: Path, chosen: list[Cell]) -> list[Outcome]:
    outcomes = []
    with struck_mesh(folder, ALL_LARGE) as rig:
        for number, cell in enumerate(chosen):
            where = folder / f"{cell.place.name}-{cell.action}"
            outcomes.append(await strike(rig, cell, where, seed=number))
            print(f"{number + 1:>3}/{len(chosen)} {outcomes[-1].line()}", flush=True)
    return outcomes


def _summary(outcomes: list[Outcome], seconds: float, folder: Path) -> int:
    failed = [outcome for outcome in outcomes if not outcome.good]
    unfired = sum(outcome.fired == 0 for outcome in outcomes)
    places = len({outcome.cell.place.name for outcome in outcomes})
    zombies = sum(outcome.zombies for outcome in outcomes)
    word = "FAIL" if failed else "PASS"
    print(
        f"failpoints: {word} places={places} cells={len(outcomes)} failed={len(failed)}"
        f" unfired={unfired} zombies={zombies} seconds={seconds:.0f}"
    )
    if failed:
        print(f"evidence: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
