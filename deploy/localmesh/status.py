"""How the mesh in a folder is doing, one row per process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localmesh.plan import Plan
from localmesh.processes import Process, Usage, descendants
from localmesh.settings import MeshSettings
from localmesh.state import StateFile, WorkerRecord, read_workers
from localmesh.unit import Kind, Unit


@dataclass(frozen=True, slots=True)
class Row:
    """One process. `alive` is whether it runs, `ready` whether it answers that it can work.

    CPU and memory of a server include its child processes. A worker's readiness is not asked for:
    its port is its own affair.
    """

    name: str
    kind: Kind
    pid: int | None
    alive: bool
    ready: bool
    ports: Mapping[str, int]
    cpu_seconds: float
    memory_bytes: int
    uptime_seconds: float
    log: Path | None


def status(home: Path) -> list[Row]:
    """Every process the mesh in `home` should have, and every worker it has, as they are now."""
    home = home.resolve()
    state = StateFile(home).load()
    plan = Plan(home, state.settings or MeshSettings())
    pids = {name: record.process for name, record in state.processes.items()}
    units = list(plan.units.values())
    with ThreadPoolExecutor(max(1, len(units)), thread_name_prefix="localmesh") as threads:
        rows = list(threads.map(lambda unit: _unit_row(plan, unit, pids.get(unit.name)), units))
    return rows + [_worker_row(worker) for worker in read_workers(plan.workers)]


def _unit_row(plan: Plan, unit: Unit, process: Process | None) -> Row:
    usage = _usage(process, whole=unit.kind == "server") if process and process.alive() else None
    return _row(
        unit.name,
        unit.kind,
        process,
        usage,
        ready=usage is not None and unit.ready(),
        ports=unit.ports,
        log=plan.logs / f"{unit.name}.log",
    )


def _worker_row(worker: WorkerRecord) -> Row:
    usage = _usage(worker.process, whole=True)
    return _row(worker.worker_id, "worker", worker.process, usage, ready=True, ports={}, log=None)


def _row(
    name: str,
    kind: Kind,
    process: Process | None,
    usage: Usage | None,
    *,
    ready: bool,
    ports: Mapping[str, int],
    log: Path | None,
) -> Row:
    used = usage or Usage(0.0, 0, 0, 0.0)
    pid = process.pid if process and usage else None
    return Row(
        name,
        kind,
        pid,
        usage is not None,
        ready,
        ports,
        used.cpu_seconds,
        used.memory_bytes,
        used.uptime_seconds,
        log,
    )


def _usage(process: Process, *, whole: bool) -> Usage | None:
    """What a process uses; with `whole`, its children's CPU and unshared memory are added."""
    own = process.usage()
    if own is None or not whole:
        return own
    others = [used for child in descendants({process}) if (used := child.usage()) is not None]
    return Usage(
        own.cpu_seconds + sum(used.cpu_seconds for used in others),
        own.memory_bytes + sum(used.private_bytes for used in others),
        own.private_bytes + sum(used.private_bytes for used in others),
        own.uptime_seconds,
    )
