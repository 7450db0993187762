"""What operators ask: schedules, pools, shards, types and the doctor."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from grpc import StatusCode
from jobmesh.cli import connect
from jobmesh.v1 import pool_pb2

from services.mesh.errors import InternalError
from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh


async def test_schedules_are_listed_paused_and_deleted(run: Run, mesh: MemoryMesh) -> None:
    assert "no schedules" in (await run("schedule", "list")).err
    await run("submit", "echo", "--every", "5m", "--name", "tick")
    assert "every 300s" in (await run("schedule", "list")).out
    paused = await run("schedule", "pause", "tick", "--note", "holiday")
    assert "paused holiday" in paused.out
    assert (await run("schedule", "get", "tick", "--json")).lines[0]["paused"] is True
    assert "paused" not in (await run("schedule", "resume", "tick")).out
    assert (await run("schedule", "delete", "tick")).code == 0
    assert not mesh.schedules


async def test_pools_shards_and_types_are_shown(run: Run) -> None:
    assert (await run("pool", "list")).code == 0
    made = await run(
        "pool", "create", "echo", "--app", "jobmesh.examples", "--max", "2", "--idle", "5s",
        "--json",
    )  # fmt: skip
    assert made.lines[0]["spec"] == {
        "type": "echo",
        "maxWorkers": 2,
        "emptyFor": "5s",
        "process": {"app": "jobmesh.examples", "directory": str(Path.cwd())},
    }
    assert "0..2" in (await run("pool", "list")).out
    assert (await run("pool", "watch", "--json")).lines[0]["pool"]["spec"]["type"] == "echo"
    assert re.search(r"s0 +HEALTHY +ACTIVE +4096", (await run("shard", "list")).out)
    assert (await run("shard", "list", "--json")).lines[0]["name"] == "s0"
    assert (await run("type", "list")).out == "echo\nprimes\n"
    assert (await run("type", "list", "--json")).lines == [{"type": "echo"}, {"type": "primes"}]


async def test_a_watch_says_which_pools_are_not_there(run: Run) -> None:
    await run("pool", "create", "echo")
    watched = await run("pool", "watch", "ehco")
    assert watched.err.startswith("there is no pool of ehco yet; there are: echo\n")
    assert "no pool" not in (await run("pool", "watch", "echo")).err


async def test_a_watch_of_pools_goes_on_over_a_restart_and_its_own_deadline(
    run: Run, mesh: MemoryMesh
) -> None:
    await run("pool", "create", "echo")
    mesh.scaler.ends = [StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED]
    watched = await run("pool", "watch", "--json")
    assert [line["pool"]["spec"]["type"] for line in watched.lines] == ["echo"], "told once"
    assert mesh.scaler.watches == 4
    assert "UNIMPLEMENTED" in watched.err


async def test_a_watch_of_pools_says_soon_that_nobody_is_there(run: Run, mesh: MemoryMesh) -> None:
    mesh.scaler.ends = [StatusCode.UNAVAILABLE]
    assert (await run("pool", "watch")).code == 3
    assert mesh.scaler.watches == 1


async def test_a_schedule_that_exists_may_be_changed(run: Run) -> None:
    await run("submit", "echo", "--every", "5m", "--name", "tick")
    again = await run("submit", "primes", "--every", "5m", "--name", "tick")
    assert "jobmesh schedule update NAME" in again.err


async def test_any_scheduler_pauses_a_type(
    run: Run, mesh: MemoryMesh, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBMESH_SCHEDULER_ADDRESS")
    monkeypatch.setattr(connect, "_local_addresses", lambda service: ["127.0.0.1:1", address])
    assert (await run("type", "pause", "echo")).code == 0
    assert mesh.scheduler.paused == ["echo"]


@pytest.mark.parametrize(
    ("command", "service", "variable"),
    [
        (["type", "pause", "echo"], "scheduler", "JOBMESH_SCHEDULER_ADDRESS"),
        (["pool", "list"], "scaler", "JOBMESH_SCALER_ADDRESS"),
        (["shard", "list"], "orchestrator", "JOBMESH_ORCHESTRATOR_ADDRESS"),
        (["list"], "mesh", "JOBMESH_ADDRESS"),
    ],
)
async def test_who_does_not_answer_is_named_with_its_own_variable(
    run: Run, command: list[str], service: str, variable: str
) -> None:
    ran = await run(*command, "--address", "127.0.0.1:1")
    assert ran.code == 3
    assert f"no {service} answers at 127.0.0.1:1" in ran.err
    assert f"or set {variable}\n" in ran.err


async def test_doctor_finds_what_is_well_and_what_is_ill(run: Run, mesh: MemoryMesh) -> None:
    await run("pool", "create", "echo")
    well = await run("doctor")
    assert well.code == 0
    parts = [line.split()[1] for line in well.out.splitlines()]
    assert parts == ["enqueue", "orchestrator", "shard", "scheduler", "scaler", "pool"]
    mesh.types.clear()
    ill = await run("doctor", "--json")
    assert ill.code == 3
    assert [line["part"] for line in ill.lines if not line["ok"]] == ["types"]
    mesh.faults["ListTypes"] = [Fault(InternalError("c-1"))]
    assert "internal error, see the service's log for c-1" in (await run("doctor")).out


async def test_doctor_names_the_status_where_there_is_no_reason(run: Run, mesh: MemoryMesh) -> None:
    mesh.faults["ListTypes"] = [Fault(StatusCode.PERMISSION_DENIED)]
    assert "(PERMISSION_DENIED) — look at" in (await run("doctor")).out


async def test_doctor_misses_each_scheduler_that_is_away(
    run: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBMESH_SCHEDULER_ADDRESS")
    monkeypatch.setattr(connect, "_local_addresses", lambda service: ["127.0.0.1:1", address])
    ill = await run("doctor", "--json")
    assert ill.code == 3
    found = [(line["ok"], line["detail"]) for line in ill.lines if line["part"] == "scheduler"]
    assert [ok for ok, _ in found] == [False, True]
    assert "no scheduler answers at 127.0.0.1:1" in found[0][1]
    hints = [line["hint"] for line in ill.lines if not line["ok"]]
    assert hints == ["start what is down: jobmesh up; or look at: jobmesh logs scheduler"]


async def test_drain_of_nobody_speaks_of_a_worker(run: Run) -> None:
    ran = await run("drain", "127.0.0.1:1")
    assert ran.code == 3
    assert ran.err.startswith("error: no worker answers at 127.0.0.1:1 (UNREACHABLE) — a worker's")


async def test_doctor_waits_for_the_verdict_on_a_worker_that_just_starts(
    run: Run, mesh: MemoryMesh
) -> None:
    """Each try of a crash loop looks like a pool that grows, until it has failed."""
    await run("pool", "create", "echo", "--app", "broken")
    pool = mesh.scaler.pools["echo"]
    pool.desired = pool.starting = 1
    pool.decision.reason = pool_pb2.DECISION_REASON_BACKLOG

    async def crash() -> None:
        await asyncio.sleep(1)
        pool.starting = 0
        pool.decision.reason = pool_pb2.DECISION_REASON_CRASH_LOOP
        pool.decision.explanation = "workers died 4 times at start"

    crashing = asyncio.create_task(crash())
    ill = await run("doctor")
    await crashing
    assert ill.code == 3
    assert "✗ pool echo      workers died 4 times at start — try it here" in ill.out
