"""The way of a job as the command shows it: every step with its time, and what was said of it."""

from __future__ import annotations

import asyncio
import re

import pytest
from jobmesh.v1.job_pb2 import Dependency, JobSpec

from services.mesh.testing.waiting import eventually
from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import MemoryMesh

STEP = re.compile(r"^(\w+) +\+\d+ ms", re.MULTILINE)


@pytest.mark.parametrize(
    "before",
    [
        [],
        ["DISPATCHED"],
        ["DISPATCHED", "RUNNING"],
        ["DISPATCHED", "RUNNING", "SCHEDULED"],
        ["DISPATCHED", "RUNNING", "SCHEDULED", "DISPATCHED"],
    ],
)
async def test_each_step_has_its_time_however_far_the_job_was_when_we_looked(
    run: Run, mesh: MemoryMesh, before: list[str]
) -> None:
    job_id = mesh.put(JobSpec(type="echo")).id
    for state in before:
        mesh.move(job_id, state)
    watching = asyncio.create_task(run("watch", job_id))
    await eventually(lambda: bool(mesh.calls["GetJob" if before else "WatchJobs"]))
    await mesh.advance(job_id, "SUCCEEDED")
    out = (await watching).out
    assert STEP.findall(out) == ["SCHEDULED", *before, "SUCCEEDED"], out


async def test_a_job_that_waited_for_another_began_as_blocked(run: Run, mesh: MemoryMesh) -> None:
    spec = JobSpec(type="echo", dependencies=[Dependency(job_id="another")])
    job_id = mesh.put(spec).id
    mesh.move(job_id, "DISPATCHED")
    mesh.move(job_id, "SUCCEEDED")
    assert STEP.findall((await run("watch", job_id)).out) == ["BLOCKED", "DISPATCHED", "SUCCEEDED"]


async def test_the_reason_of_a_cancel_can_be_read_back(run: Run) -> None:
    job_id = (await run("submit", "echo", "--delay", "1h")).out.strip()
    await run("cancel", job_id, "--reason", "wrong input")
    assert re.search(r"note +wrong input", (await run("get", job_id)).out)
    assert re.search(r"CANCELLED +\+\d+ ms  wrong input", (await run("watch", job_id)).out)
    assert (await run("get", job_id, "--json")).lines[0]["endNote"] == "wrong input"


async def test_who_watches_hears_why_a_job_was_cancelled(run: Run, mesh: MemoryMesh) -> None:
    job_id = mesh.put(JobSpec(type="echo")).id
    watching = asyncio.create_task(run("watch", job_id))
    await eventually(lambda: bool(mesh.calls["WatchJobs"]))
    await mesh.advance(job_id, "CANCELLED", end_note="wrong input")
    assert re.search(r"CANCELLED +\+\d+ ms  wrong input", (await watching).out)
