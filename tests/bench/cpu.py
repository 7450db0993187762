"""CPU time and memory of the mesh's processes, by stage."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from localmesh.harness import RunningMesh

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU and megabytes resident, by stage."""

    cpu: dict[str, float]
    rss: dict[str, float]

    def since(self, before: Usage) -> dict[str, float]:
        """CPU seconds spent between two readings."""
        return {stage: cpu - before.cpu.get(stage, 0.0) for stage, cpu in self.cpu.items()}


def read(mesh: RunningMesh, *, by_unit: bool = False) -> Usage:
    """Read every process now; a stage is a service, or `postgres` for all shards together. By unit
    each process is one of its own.
    """
    cpu: dict[str, float] = defaultdict(float)
    rss: dict[str, float] = defaultdict(float)
    stage = str if by_unit else _stage
    units = [(stage(name), mesh.process(name).pid) for name in mesh.plan.units]
    for name, pid in [*units, *_workers(mesh)]:
        # The Scaler's children are the workers, which are counted by themselves.
        for member in [pid, *(descendants(pid) if name != "scaler" else [])]:
            spent, resident = _process(member)
            cpu[name] += spent
            rss[name] += resident
    spent, resident = _process(os.getpid())
    cpu["client"] += spent
    rss["client"] += resident
    return Usage(dict(cpu), dict(rss))


def prefer(mesh: RunningMesh) -> None:
    """Let the mesh and us run before anything else on the machine: as if it were quiet. Needs the
    right to do so; what the mesh starts later inherits it.
    """
    pids = {mesh.process(name).pid for name in mesh.plan.units} | {os.getpid()}
    pids |= {worker.process.pid for worker in mesh.workers()}
    for pid in {member for root in pids for member in (root, *descendants(root))}:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(5))


def _workers(mesh: RunningMesh) -> list[tuple[str, int]]:
    return [("worker", pid) for pid in {worker.process.pid for worker in mesh.workers()}]


def _stage(unit: str) -> str:
    return "postgres" if unit.startswith("shard-") else unit.split("-")[0]


def _process(pid: int) -> tuple[float, float]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0
    spent = (int(fields[11]) + int(fields[12])) / TICKS
    return spent, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        for task in tasks:
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return found
