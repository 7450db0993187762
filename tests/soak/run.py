"""One soak from nothing to a verdict, everything in one folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psycopg
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import type_settings_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub
from localmesh.harness import RunningMesh, running_mesh

from services.mesh.testing.waiting import eventually
from tests.bench.ground import described, make_pools, say
from tests.soak import picture
from tests.soak.judge import Soaked
from tests.soak.load import Load
from tests.soak.probes import Probes, remember_statements

TYPES = ("noop", "brief", "flaky", "echo")
SAMPLE_SECONDS = 15.0
SETTLE_SECONDS = 60.0
HOLD_SECONDS = 600.0
_TELL_EVERY = 8


@dataclass(frozen=True)
class Plan:
    """How long, how much, and what is kept."""

    seconds: float
    rate: float

    @property
    def sample(self) -> float:
        return min(SAMPLE_SECONDS, self.seconds / 60)

    @property
    def hold(self) -> tuple[float, float]:
        """When a transaction is held: from a third of the run on, for a sixth of it at most."""
        begin = self.seconds / 3
        return begin, begin + min(HOLD_SECONDS, self.seconds / 6)

    @property
    def keep(self) -> float:
        """Seconds that ended jobs are kept."""
        return min(300.0, self.seconds / 12)

    def environment(self) -> dict[str, str]:
        days = str(self.keep / 86_400)
        states = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")
        return {
            **{f"JOBMESH_KEEP_{state}_DAYS": days for state in states},
            "JOBMESH_RESUME_HOURS": str(self.keep / 2 / 3600),
            "JOBMESH_PURGE_SECONDS": "10",
            "JOBMESH_COLLECT_SECONDS": "60",
            "JOBMESH_ORPHAN_HOURS": str(2 * self.keep / 3600),
            "JOBMESH_LOG_FORMAT": "json",
        }


class Soak:
    """Drives one run."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._samples: list[Mapping[str, Any]] = []
        self._held: list[psycopg.Connection[Any]] = []
        self._hold = plan.hold
        self._left_open = 0

    async def go(self) -> bool:
        """Whether it passed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = self._plan.environment()
        with running_mesh(self._folder / "mesh", environment=environment) as mesh:
            await asyncio.to_thread(remember_statements, mesh)
            await asyncio.to_thread(mesh.wait_ready)
            await make_pools(mesh, 1, TYPES, "tests.soak.handlers")
            await self._keep_brief_shorter(mesh)
            load, probes = Load(mesh.enqueue_target, self._plan.rate), Probes(mesh)
            async with load.going():
                await self._watch_it(mesh, load, probes)
            await self._settle(probes)
            probes.close()
        return self._conclude(load)

    async def _keep_brief_shorter(self, mesh: RunningMesh) -> None:
        """One type by settings of its own, which is a purge of its own."""
        keep = Duration(seconds=round(self._plan.keep / 2))
        retention = type_settings_pb2.Retention(succeeded=keep)
        settings = type_settings_pb2.TypeSettings(type="brief", retention=retention)
        async with grpc.aio.insecure_channel(mesh.enqueue_target) as channel:
            request = pb.SetTypeSettingsRequest(settings=settings)
            await EnqueueServiceStub(channel).SetTypeSettings(request)

    async def _watch_it(self, mesh: RunningMesh, load: Load, probes: Probes) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._plan.seconds
        with (self._folder / "samples.jsonl").open("w") as file:
            while loop.time() < end:
                next_ = loop.time() + self._plan.sample
                sample = await asyncio.to_thread(probes.sample) | {"load": dict(load.counts)}
                self._samples.append(sample)
                file.write(json.dumps(sample) + "\n")
                file.flush()
                if len(self._samples) % _TELL_EVERY == 1:
                    self._tell(sample)
                await asyncio.to_thread(self._hold_or_let_go, mesh, sample["t"])
                await asyncio.sleep(next_ - loop.time())

    def _hold_or_let_go(self, mesh: RunningMesh, now: float) -> None:
        begin, end = self._plan.hold
        if not self._held and begin <= now < end:
            self._held = [_snapshot(dsn) for dsn in mesh.shard_dsns.values()]
            self._hold = now, end
            say(f"{now:7.0f} s  holding a transaction open on every shard")
        elif self._held and now >= end:
            for connection in self._held:
                connection.close()
            self._held, self._hold = [], (self._hold[0], now)
            say(f"{now:7.0f} s  let it go")

    async def _settle(self, probes: Probes) -> None:
        """What was submitted ends, run-at jobs included."""
        try:
            await eventually(lambda: not probes.open_jobs(), SETTLE_SECONDS)
        except TimeoutError:
            self._left_open = probes.open_jobs()

    def _tell(self, sample: Mapping[str, Any]) -> None:
        ours = {n: p["mb"] for n, p in sample["processes"].items() if n != "client"}
        memory = " ".join(f"{n} {mb:.0f}" for n, mb in ours.items() if not n.startswith("worker"))
        say(f"{sample['t']:7.0f} s  {sample['load'].get('jobs', 0):,} jobs; MB: {memory}")

    def _conclude(self, load: Load) -> bool:
        soaked = Soaked(self._samples, self._hold)
        complaints = soaked.complaints(load.errors, self._left_open)
        results = described() | {
            "minutes": self._plan.seconds / 60,
            "rate": self._plan.rate,
            "held": self._hold,
            "load": dict(load.counts),
            "processes": soaked.processes(),
            "tables": soaked.tables(),
            "claims": soaked.claims(),
            "complaints": complaints,
        }
        (self._folder / "result.json").write_text(json.dumps(results, indent=2) + "\n")
        heading = f"jobmesh soak: {self._plan.seconds / 60:g} min at {self._plan.rate:g} jobs/s"
        (self._folder / "soak.svg").write_text(picture.drawn(soaked, heading))
        for line in table(results):
            say(line)
        for complaint in complaints:
            say(f"- {complaint}")
        say(f"written to {self._folder}")
        say(verdict(results))
        return not complaints


def table(results: Mapping[str, Any]) -> list[str]:
    """The figures in lines."""
    lines = [f"{'process':22}{'MB':>8}{'MB/h':>9}{'±':>7}{'files':>7}{'files/h':>9}{'CPU %':>8}"]
    for name, one in results["processes"].items():
        lines.append(
            f"{name:22}{one['mb']:8.1f}{one['mb_per_hour']:9.2f}{one['mb_error']:7.2f}"
            f"{one['fds']:7.0f}{one['fds_per_hour']:9.1f}{one['cpu_percent']:8.1f}"
        )
    lines.append(f"{'table':22}{'MB':>8}{'peak':>8}{'last third':>12}{'plateau':>9}")
    for name, one in results["tables"].items():
        plateau = "yes" if one["plateau"] else "no"
        growth = f"{100 * one['growth']:+.1f} %"
        lines.append(f"{name:22}{one['mb']:8.1f}{one['peak_mb']:8.1f}{growth:>12}{plateau:>9}")
    lines.append(f"{'claims':30}{'calls':>9}{'mean':>9}{'p50':>8}{'p99 ms':>8}{'blocks':>8}")
    for name, one in results["claims"].items():
        if one["calls"]:
            lines.append(
                f"{name:30}{one['calls']:9.0f}{one['mean_ms']:9.2f}{one['p50_ms']:8.1f}"
                f"{one['p99_ms']:8.1f}{one['blocks']:8.1f}"
            )
    return lines


def verdict(results: Mapping[str, Any]) -> str:
    """The last line."""
    ours = [one["mb_per_hour"] for one in results["processes"].values() if one["ours"]]
    shards = [one for name, one in results["tables"].items() if not name.startswith(" ")]
    first, held, last = (one.get("mean_ms", 0.0) for one in results["claims"].values())
    errors = sum(count for name, count in results["load"].items() if ":" in name)
    return (
        f"soak: {'FAIL' if results['complaints'] else 'PASS'} minutes={results['minutes']:g} "
        f"rate={results['rate']:g} jobs={results['load'].get('jobs', 0)} errors={errors} "
        f"memory_mb_per_hour={max(ours):.2f} "
        f"plateau={sum(shard['plateau'] for shard in shards)}/{len(shards)} "
        f"claim_ms={first:.2f}/{held:.2f}/{last:.2f}"
    )


def _snapshot(dsn: str) -> psycopg.Connection[Any]:
    """A transaction that sees the shard as it is now, for as long as it is open."""
    held = psycopg.connect(dsn)
    held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    held.execute("SELECT count(*) FROM in_flight")
    return held
