"""`python -m tests.chaos`: one run, one folder, one line at the end; exit code 0, 1 or 2."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
import traceback
from pathlib import Path

# Processes are started while channels are open: gRPC's own handlers for that are no help here.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tests.chaos.apart import ROUND
from tests.chaos.checker import check
from tests.chaos.evidence import Evidence
from tests.chaos.plan import KINDS, QUICK_KINDS
from tests.chaos.recovery import judge as recovery_of
from tests.chaos.recovery import measure
from tests.chaos.report import begin_of, recovery_table, write_report
from tests.chaos.run import Run, RunPlan

INVALID = 2
_SHOWN = 20
_QUICK_SEED = 7


def main() -> int:
    asked = _arguments()
    for left in reversed(range(asked.tries)):
        code = once(asked)
        if code != INVALID or not left:
            return code
        print("that run has proved nothing: once more")
        if asked.folder:  # what the first one left would be taken for the second's
            asked.folder = asked.folder.with_name(f"{asked.folder.name}-again")
    return INVALID


def once(asked: argparse.Namespace) -> int:
    plan = _plan(asked)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{plan.seed}"
    folder = (asked.folder or Path("chaos-runs") / name).absolute()
    if asked.check:
        return judge(folder)
    faults = "one fault at a time" if plan.apart else f"{plan.faults} faults"
    if (folder / "plan.json").exists():
        print(f"chaos: INVALID seed={plan.seed} {folder} holds a run already")
        return INVALID
    print(f"seed {plan.seed}, {plan.jobs} jobs, {faults}; all of it in {folder}")
    return go(Run(plan, folder), plan.seed) or judge(folder)


def go(run: Run, seed: int) -> int:
    """0 if it came to its end. A mesh that does not, with all faults undone, is not tried again."""
    try:
        asyncio.run(run.go())
    except Exception:
        traceback.print_exc()
        word = "FAIL" if run.is_healed else "INVALID"
        print(f"chaos: {word} seed={seed} the run did not come to its end")
        return 1 if run.is_healed else INVALID
    return 0


def judge(folder: Path) -> int:
    """Check a run, write its report, print what matters; the exit code."""
    evidence = Evidence.read(folder)
    verdict = check(evidence)
    line = write_report(folder, evidence, verdict)
    for text in [*map(str, verdict.violations[:_SHOWN]), *verdict.invalid]:
        print(text)
    measures = measure(folder, evidence)
    print(recovery_table(measures, begin_of(evidence)))
    print(f"timeline: {folder / 'timeline.html'}")
    print(line)
    if not evidence.plan.get("apart"):
        return verdict.exit_code
    recovery = recovery_of(measures, evidence.plan["kinds"])
    print(recovery.line)
    return verdict.exit_code or int(recovery.word != "PASS")


def _plan(asked: argparse.Namespace) -> RunPlan:
    before = str(asked.before.resolve(strict=True)) if asked.before else ""
    if asked.quick:
        return RunPlan(
            seed=_QUICK_SEED if asked.seed is None else asked.seed,
            jobs=asked.jobs or 3_000,
            seconds=60 * (asked.minutes or 2.2),
            faults=asked.faults or 36,
            kinds=QUICK_KINDS,
            etcd_members=1,
            before=before,
        )
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    kinds = tuple(asked.kinds.split(",")) if asked.kinds else tuple(ROUND if asked.apart else KINDS)
    minutes = asked.minutes or (15.0 if asked.apart else 35.0)
    jobs = asked.jobs or round(minutes * 100_000 / 35)
    # As many faults as a run of this length holds; each kind at least once.
    faults = asked.faults or max(len(kinds), round(minutes * 500 / 35))
    return RunPlan(seed, jobs, minutes * 60, faults, kinds, apart=asked.apart, before=before)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, help="at least so many are submitted")
    parser.add_argument("--minutes", type=float, help="how long jobs are submitted; 35 by default")
    parser.add_argument("--faults", type=int)
    parser.add_argument("--kinds", default="", help="separated by commas; all if not said")
    parser.add_argument("--quick", action="store_true", help="a short run with a fixed seed")
    parser.add_argument("--apart", action="store_true", help="one fault at a time; judge recovery")
    parser.add_argument("--before", type=Path, help="a checkout whose version shares the mesh")
    parser.add_argument("--tries", type=int, default=1, help="runs, while they are INVALID")
    parser.add_argument("--folder", type=Path, help="where the run is kept")
    parser.add_argument("--check", action="store_true", help="check a run that is there already")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
