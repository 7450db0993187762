"""One cell of the matrix: load, strike, heal, settle, dump, check."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from services.mesh.testing.waiting import eventually
from tests.chaos.checker import check
from tests.chaos.dump import dump, late_schedules, settle, stored_jobs
from tests.chaos.evidence import Evidence
from tests.chaos.load import Load, LoadPlan
from tests.failpoints.cells import Cell, mix_of, strike_of, under_load
from tests.failpoints.rig import Rig

JOBS = 36
LOAD_SECONDS = 1.5
FIRE_SECONDS = 12.0
SETTLE_SECONDS = 40.0


class SmallLoad(Load):
    """The load of a cell: every job is watched by its id as well, once."""

    def _acknowledged(self, job: str, namespace: str) -> None:
        if job not in self.acked:  # a key that was sent twice is one job
            super()._acknowledged(job, namespace)


@dataclass(slots=True)
class Outcome:
    """What came of one strike."""

    cell: Cell
    fired: int = 0
    jobs: int = 0
    zombies: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def line(self) -> str:
        word = "ok" if self.good else "FAIL"
        text = f"{self.cell.place.name:<32} {self.cell.action:<6} {word:<5}"
        text += f" fired={self.fired} jobs={self.jobs} zombies={self.zombies} {self.seconds:5.1f} s"
        return "\n".join([text, *(f"    {problem}" for problem in self.problems[:8])])


async def strike(rig: Rig, cell: Cell, folder: Path, seed: int = 1) -> Outcome:
    """Strike once while a small load runs, and judge what it left behind."""
    outcome = Outcome(cell)
    began = time.monotonic()
    try:
        await _strike(rig, cell, folder, seed, outcome)
    except Exception as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
    outcome.seconds = time.monotonic() - began
    if outcome.good:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


async def _strike(rig: Rig, cell: Cell, folder: Path, seed: int, outcome: Outcome) -> None:
    await asyncio.to_thread(folder.mkdir, parents=True)
    await asyncio.to_thread(rig.forget_jobs)
    since, name = time.time(), cell.place.name
    plan = LoadPlan(
        seed, JOBS, LOAD_SECONDS, clients=6, schedules=1, watch_every=1, mix=mix_of(cell)
    )
    load = SmallLoad(rig.mesh.targets("enqueue"), folder, plan)
    striking = asyncio.create_task(strike_of(cell)(rig, cell), name="strike")
    if strike_of(cell) is under_load:
        await striking  # or the one job that passes it may do so before it is armed
    await load.run()
    await striking
    try:
        await eventually(lambda: rig.fired(name, since) > 0, FIRE_SECONDS)
    except TimeoutError:
        outcome.problems.append("the failpoint did not act")
    await rig.disarm()
    await rig.healed()
    await _current_schedules(rig, outcome)
    await load.pause()
    if not await settle(rig.mesh.shard_dsns, SETTLE_SECONDS):
        outcome.problems.append(f"jobs are open {SETTLE_SECONDS:g} s after healing")
    await load.finish(await asyncio.to_thread(stored_jobs, rig.mesh.shard_dsns))
    _judge(rig, folder, outcome)
    outcome.fired = rig.fired(name, since)


async def _current_schedules(rig: Rig, outcome: Outcome) -> None:
    """A schedule that is paused before anybody serves its shard again has no job for its times."""

    async def current() -> bool:
        return not await asyncio.to_thread(late_schedules, rig.mesh.shard_dsns)

    try:
        await eventually(current, SETTLE_SECONDS)
    except TimeoutError:
        outcome.problems.append(f"schedules are late {SETTLE_SECONDS:g} s after healing")


def _judge(rig: Rig, folder: Path, outcome: Outcome) -> None:
    environment = {**rig.mesh.environment()}
    dump(rig.mesh.shard_dsns, environment, folder / "dump")
    verdict = check(Evidence.read(folder))
    outcome.jobs, outcome.zombies = verdict.jobs, verdict.zombies
    outcome.problems += [str(violation) for violation in verdict.violations]
