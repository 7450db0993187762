"""Every mutant against the checker, as a table.

python -m tests.mutants [--only M1,M7] [--no-control] [--folder DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio
from jobmesh.v1 import orchestrator_service_pb2
from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
from localmesh.ports import LOOPBACK, PortPool

from services.mesh.testing.waiting import eventually
from tests.chaos.dump import dump, settle
from tests.chaos.evidence import Evidence
from tests.chaos.load import LoadPlan
from tests.chaos.verdict import Violation
from tests.failpoints.rig import Rig, struck_mesh
from tests.failpoints.strike import SmallLoad
from tests.mutants.rules import verdict
from tests.mutants.trials import TRIALS, Trial

JOBS = 30
LOAD_SECONDS = 3.0
#: Stuck jobs are what some mutants leave: no use in waiting long for them.
SETTLE_SECONDS = 20.0
MODULE = "tests.mutants.breaking"


@dataclass(slots=True)
class Result:
    """What one trial brought up, with the mutant and without."""

    number: str
    about: str
    found: list[Violation] = field(default_factory=list)
    control: list[Violation] | None = None
    caught: bool = False
    seconds: float = 0.0
    note: str = ""

    @property
    def good(self) -> bool:
        return self.caught and not self.control

    def line(self) -> str:
        by_rule = Counter(violation.invariant for violation in self.found)
        rules = self.note or " ".join(f"{rule}x{count}" for rule, count in sorted(by_rule.items()))
        word = "caught" if self.caught else "NOT CAUGHT"
        control = "-" if self.control is None else "clean" if not self.control else "DIRTY"
        text = f"{self.number:<4} {self.about:<36} {word:<10} {rules or '-':<28}"
        text += f" control {control:<6} {self.seconds:5.1f} s"
        return "\n".join([text, *(f"     control: {one}" for one in (self.control or ())[:5])])


async def run_load(rig: Rig, trial: Trial, folder: Path, *, broken: bool) -> list[Violation]:
    """One load with the trial's faults; what the checker says about it."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    await asyncio.to_thread(rig.forget_jobs)
    plan = LoadPlan(1, JOBS, LOAD_SECONDS, clients=6, schedules=1, watch_every=1, mix=trial.mix)
    plan = replace(plan, overlaps=trial.overlaps)
    load = SmallLoad(rig.mesh.targets("enqueue"), folder, plan)
    rig.ledger = folder / "effects.log"
    harm = asyncio.create_task(trial.faults(rig), name="faults")
    await load.run()
    await harm
    await rig.healed()
    await rig.disarm()
    await load.pause()
    await settle(rig.mesh.shard_dsns, SETTLE_SECONDS if broken else 2 * SETTLE_SECONDS)
    await load.finish()
    dump(rig.mesh.shard_dsns, rig.mesh.environment(), folder / "dump")
    return verdict(Evidence.read(folder))


async def try_out(rig: Rig, trial: Trial, folder: Path, *, control: bool) -> Result:
    result, began = Result(trial.number, trial.about), time.monotonic()
    if control:
        result.control = await run_load(
            rig, trial, folder / f"{trial.number}-control", broken=False
        )
    await asyncio.to_thread(rig.become, trial.services, _name(trial))
    if trial.before:
        trial.before(rig)
    try:
        result.found = await run_load(rig, trial, folder / trial.number, broken=True)
    except Exception as error:
        result.note = f"{type(error).__name__}: {error}"
    finally:
        rig.forget_jobs()
        if trial.after:
            trial.after(rig)
        await asyncio.to_thread(rig.become, trial.services, "")
        await rig.healed()
    result.caught = bool({violation.invariant for violation in result.found} & trial.expects)
    result.seconds = time.monotonic() - began
    return result


def _name(trial: Trial) -> str:
    return f"{MODULE}:{trial.mutant}" if trial.mutant else ""


async def try_durability(rig: Rig) -> Result:
    """M12: an Orchestrator whose commits are only in memory finds no shard fit to use."""
    result, began = Result("M12", "synchronous_commit=off", control=[]), time.monotonic()
    ports = PortPool()
    target = f"{LOOPBACK}:{ports.take()}"
    unit = next(unit for unit in rig.mesh.plan.services if unit.name == "orchestrator")
    command = unit.command()
    told = {"JOBMESH_MUTANT": f"{MODULE}:commits_in_memory", "JOBMESH_LISTEN": target}
    env = {**command.env, **told, "JOBMESH_METRICS_LISTEN": ""}
    with subprocess.Popen(  # noqa: ASYNC220
        command.argv, cwd=command.cwd, env=env, stderr=subprocess.DEVNULL
    ) as child:
        try:
            async with grpc.aio.insecure_channel(target) as channel:
                await eventually(lambda: _refused(channel), 30)
                result.caught, result.note = True, "refuses its shards"
        except TimeoutError:
            result.note = "took its shards"
        finally:
            child.kill()
            ports.close()
    result.seconds = time.monotonic() - began
    return result


async def _refused(channel: Any) -> bool:
    stub: Any = OrchestratorServiceStub(channel)
    with suppress(grpc.RpcError):
        answer = await stub.ListShards(orchestrator_service_pb2.ListShardsRequest(), timeout=2)
        return all("synchronous_commit" in shard.last_error for shard in answer.topology.shards)
    return False


async def _run(folder: Path, chosen: set[str], *, control: bool) -> list[Result]:
    results = []
    with struck_mesh(folder) as rig:
        for trial in TRIALS:
            if not chosen or trial.number in chosen:
                results.append(await try_out(rig, trial, folder, control=control))
                print(results[-1].line(), flush=True)
        if not chosen or "M12" in chosen:
            results.append(await try_durability(rig))
            print(results[-1].line(), flush=True)
    return results


def main() -> int:
    asked = _arguments()
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="jobmesh-mutants-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    grpc.aio.init_grpc_aio()
    chosen = set(filter(None, asked.only.split(",")))
    results = asyncio.run(_run(folder, chosen, control=not asked.no_control))
    return _summary(results, folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", default="", help="some mutants, like M1,M7")
    parser.add_argument("--no-control", action="store_true", help="do not run the healthy twin")
    parser.add_argument("--folder", default="", help="where the evidence is left")
    return parser.parse_args()


def _summary(results: Iterable[Result], folder: Path) -> int:
    results = list(results)
    caught = sum(result.caught for result in results)
    dirty = sum(bool(result.control) for result in results)
    word = "PASS" if all(result.good for result in results) else "FAIL"
    print(
        f"mutants: {word} caught={caught}/{len(results)} dirty_controls={dirty} evidence={folder}"
    )
    return 0 if word == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
