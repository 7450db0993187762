"""One chaos run: from nothing to a verdict, everything in one folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from localmesh.errors import LocalError
from localmesh.harness import RunningMesh, running_mesh

from tests.chaos import load
from tests.chaos.apart import REST_SECONDS, WAVES, draw_apart
from tests.chaos.canaries import Canaries
from tests.chaos.crew import Crew
from tests.chaos.dump import dump, dump_shards, settle
from tests.chaos.etcd import EtcdGateway
from tests.chaos.links import Links
from tests.chaos.load import LoadPlan, write_settings
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import Fault, draw_plan
from tests.chaos.starts import Starts
from tests.chaos.strikes import Strikes

SETTLE_SECONDS = 60.0
_WAIT_SECONDS = 120.0
_OVERTIME_SECONDS = 120.0
_THREADS = 64
_TELL_SECONDS = 5.0
_SERVICES = {
    # Watchers shall notice a dead link within seconds.
    "JOBMESH_HEARTBEAT_SECONDS": "2",
    "JOBMESH_LOG_FORMAT": "json",
}
# Long enough for the longest job, short enough not to hold up a run.
_WORKERS = {"JOBMESH_DRAIN_SECONDS": "10"}


@dataclass(frozen=True)
class RunPlan:
    """What a run consists of."""

    seed: int
    jobs: int
    seconds: float
    """How long the load and the faults go on."""
    faults: int
    kinds: tuple[str, ...]
    replicas: int = 2
    shards: int = 3
    etcd_members: int = 3
    workers: int = 3
    apart: bool = False
    """One fault at a time, and rest between them (`tests.chaos.apart`)."""
    before: str = ""
    """A checkout of another version: services and workers of both share the mesh."""


class Run:
    """Drives one run; `folder` gets everything."""

    def __init__(self, plan: RunPlan, folder: Path, quiet: bool = False) -> None:
        self._plan = plan
        self._folder = folder
        self._quiet = quiet
        self._began = time.monotonic()
        self.is_healed = False
        """All faults are undone: what does not work from now on is the mesh's own fault."""

    async def go(self) -> None:
        """Everything up to the dump; the checker does the rest."""
        self._folder.mkdir(parents=True, exist_ok=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        links = Links()
        before = self._plan.before
        starts = Starts(links, Path(before) if before else None)
        mesh = self._mesh(starts)
        crew = Crew(mesh, self._plan.workers, reroute=starts.told, extra=_WORKERS)
        async with links.between(mesh.plan, crew.names), _entered(mesh), _entered(crew):
            strikes = Strikes(mesh, crew, links, starts)
            faults = self._draw(mesh, crew)
            targets = links.targets([u for u in mesh.plan.units if u.startswith("enqueue")])
            write_settings(self._folder, targets, self._load_plan())
            async with self._loading() as process:
                await self._strike(strikes, faults, targets)
                await self._heal(mesh, crew, strikes)
                await self._settle(mesh, process)
            deaths = json.loads((self._folder / "deaths.json").read_text())
            self._note_deaths(mesh, crew, strikes, deaths)
            (self._folder / "versions.json").write_text(json.dumps(starts.versions()))
            await self._dump(mesh)
        self.say("done")
        shutil.copytree(mesh.plan.logs, self._folder / "logs", dirs_exist_ok=True)
        shutil.rmtree(mesh.home, ignore_errors=True)

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    # --- parts of a run

    def _mesh(self, starts: Starts) -> RunningMesh:
        many = self._plan.replicas
        return running_mesh(
            self._folder / "mesh",
            enqueues=many,
            orchestrators=many,
            schedulers=many,
            scalers=many,
            shards=self._plan.shards,
            etcd_members=self._plan.etcd_members,
            environment=_SERVICES,
            reroute=starts.told,
        )

    def _draw(self, mesh: RunningMesh, crew: Crew) -> list[Fault]:
        plan = self._plan
        units = [*mesh.plan.units, *crew.names]
        faults = self._drawn(units)
        said = {**asdict(plan), "kinds": sorted({fault.kind for fault in faults})}
        said |= {"zombies": "stop.worker" in plan.kinds, "handed": True, "units": units}
        said |= {"faults": [fault.to_json() for fault in faults]}
        (self._folder / "plan.json").write_text(json.dumps(said, indent=1))
        return faults

    def _drawn(self, units: Sequence[str]) -> list[Fault]:
        plan = self._plan
        if plan.apart:
            return draw_apart(plan.seed, units, seconds=plan.seconds, kinds=plan.kinds)
        return draw_plan(
            plan.seed, units, seconds=plan.seconds, faults=plan.faults, kinds=plan.kinds
        )

    def _load_plan(self) -> LoadPlan:
        plan = self._plan
        load_plan = LoadPlan(plan.seed, plan.jobs, plan.seconds, overlaps=True, linger=True)
        if not plan.apart:
            return load_plan
        # More watches, so that each fault that cuts some yields several samples. And no catching up
        # with a number of jobs after the last fault: it is not what such a run is about.
        return replace(load_plan, watchers=2, watch_every=5, in_full=False)

    @asynccontextmanager
    async def _loading(self) -> AsyncIterator[subprocess.Popen[str]]:
        process = self._start_load()
        try:
            await self._until(lambda: self._progress().get("acked", 0) > 0, process)
            yield process
        finally:
            process.kill()
            process.wait()

    def _start_load(self) -> subprocess.Popen[str]:
        with (self._folder / "load.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.load", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env={n: v for n, v in os.environ.items() if not n.startswith("JOBMESH_")},
            )

    async def _strike(
        self, strikes: Strikes, faults: Sequence[Fault], targets: Sequence[str]
    ) -> None:
        apart = self._plan.apart
        waves = WAVES if apart else ()
        canaries = Canaries(targets, self._plan.shards, self._folder, waves)
        nemesis = Nemesis(strikes, self._folder, canaries.struck, canaries.healed)
        if apart:
            nemesis.go_apart(lambda: _rest(canaries))
        telling = asyncio.create_task(self._tell(nemesis, len(faults)), name="tell")
        try:
            # Late, on a slow machine, is better than not at all.
            limit = self._plan.seconds + max(_OVERTIME_SECONDS, 0.1 * self._plan.seconds)
            await nemesis.carry_out(faults, until=limit)
            await canaries.close()
        finally:
            telling.cancel()
            (self._folder / load.ENOUGH).touch()

    async def _heal(self, mesh: RunningMesh, crew: Crew, strikes: Strikes) -> None:
        self.say("healing")
        self.is_healed = True
        dead = self._note_deaths(mesh, crew, strikes, [])
        await asyncio.gather(*(strikes.revive(unit) for unit in dead))
        with suppress(LocalError):
            await asyncio.to_thread(mesh.wait_ready)
        await asyncio.to_thread(dump_shards, mesh.shard_dsns, self._folder / "dump-healed")

    def _note_deaths(
        self, mesh: RunningMesh, crew: Crew, strikes: Strikes, before: Sequence[str]
    ) -> list[str]:
        dead = [unit for unit in [*mesh.plan.units, *crew.names] if not strikes.lives(unit)]
        (self._folder / "deaths.json").write_text(json.dumps([*before, *dead]))
        return dead

    async def _settle(self, mesh: RunningMesh, process: subprocess.Popen[str]) -> None:
        self.say("waiting for the last submissions")
        await self._until((self._folder / load.SUBMITTED).exists, process)
        await self._until(lambda: _schedules_are_current(mesh), process, seconds=SETTLE_SECONDS)
        assert process.stdin is not None
        process.stdin.write("pause\n")
        process.stdin.flush()
        await self._until((self._folder / load.PAUSED).exists, process)
        self.say("waiting until every job has ended")
        began = time.time()
        left: dict[str, int] = {}
        if not await settle(mesh.shard_dsns, SETTLE_SECONDS, left.update):
            self.say(f"some jobs are still open after {SETTLE_SECONDS:g} s")
        said = {"seconds": time.time() - began, "open": left}
        (self._folder / "settled.json").write_text(json.dumps(said))
        process.stdin.close()
        await asyncio.to_thread(process.wait, _WAIT_SECONDS)

    async def _dump(self, mesh: RunningMesh) -> None:
        self.say("dumping")
        folder = self._folder / "dump"
        await asyncio.to_thread(dump, mesh.shard_dsns, mesh.environment(), folder)
        etcd = EtcdGateway(next(iter(mesh.plan.units["etcd"].ports.values())))
        locks = await asyncio.to_thread(etcd.keys, "/jobmesh/locks/")
        (folder / "locks.json").write_text(json.dumps(locks))

    # --- waiting and telling

    async def _until(self, holds: Any, process: subprocess.Popen[str], seconds: float = 0) -> None:
        deadline = time.monotonic() + (seconds or _WAIT_SECONDS)
        acked = 0
        while not await asyncio.to_thread(holds):
            if process.poll() is not None:
                log = (self._folder / "load.log").read_text()
                raise RuntimeError(f"the load ended with {process.returncode}:\n{log[-3000:]}")
            if time.monotonic() > deadline:
                if seconds:
                    return
                raise TimeoutError(f"the load did not get on within {_WAIT_SECONDS:g} s")
            before, acked = acked, self._progress().get("acked", 0)
            if acked > before and not seconds:  # slow is not stuck
                deadline = time.monotonic() + _WAIT_SECONDS
            await asyncio.sleep(0.2)

    def _progress(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self._folder / "progress.json").read_text())
        except (OSError, ValueError):
            return {}
        return told

    async def _tell(self, nemesis: Nemesis, total: int) -> None:
        while True:
            at = self._progress()
            now = ", ".join(nemesis.current) or "quiet"
            jobs = f"{at.get('submitted', 0)} submitted, {at.get('open', 0)} open"
            self.say(f"{jobs}, {nemesis.done}/{total} faults: {now}")
            await asyncio.sleep(_TELL_SECONDS)


@asynccontextmanager
async def _entered(context: Any) -> AsyncIterator[None]:
    """Enter and leave in another thread: the proxies must go on meanwhile."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _rest(canaries: Canaries) -> None:
    await canaries.landed()
    await asyncio.sleep(REST_SECONDS)


def _schedules_are_current(mesh: RunningMesh) -> bool:
    """No schedule is behind: a pause would leave out what it has not made yet."""
    query = "SELECT count(*) FROM schedules WHERE next_time < now() - interval '1 second'"
    for dsn in mesh.shard_dsns.values():
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            row = connection.execute(query).fetchone()
            if row is None or row[0]:
                return False
    return True
