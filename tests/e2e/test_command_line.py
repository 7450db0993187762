"""The `jobmesh` command against a running mesh: JSON for machines, exit codes, a user's worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from jobmesh.client import AsyncClient
from jobmesh.v1 import enqueue_service_pb2, job_pb2
from localmesh.harness import RunningMesh

from tests.e2e.conftest import TYPES
from tests.e2e.hands import PATIENCE, Gates, WorkerRoom, aside, types_known

JOBMESH = str(Path(sys.executable).with_name("jobmesh"))
DONE, FAILED, USAGE, UNAVAILABLE, OUT_OF_TIME = 0, 1, 2, 3, 4

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
async def run(mesh: RunningMesh, client: AsyncClient) -> Run:
    """Runs `jobmesh …` in a shell that has only JOBMESH_HOME set, and says what became of it."""

    def run(*arguments: str, code: int = DONE) -> subprocess.CompletedProcess[str]:
        env = {n: v for n, v in os.environ.items() if not n.startswith("JOBMESH_")}
        done = subprocess.run(
            [JOBMESH, *arguments],
            env={**env, "JOBMESH_HOME": str(mesh.home)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    await types_known(client, *TYPES)
    return run


def messages(text: str, kind: type[Message]) -> list[Any]:
    """One message per line, and each line exactly its canonical JSON."""
    found = []
    for line in text.splitlines():
        message = json_format.Parse(line, kind())
        assert json_format.MessageToDict(message) == json.loads(line)
        found.append(message)
    return found


def one_job(text: str) -> job_pb2.Job:
    (job,) = messages(text, job_pb2.Job)
    assert isinstance(job, job_pb2.Job)
    return job


def transitions(text: str) -> list[job_pb2.Job | job_pb2.JobEvent]:
    """What a watch printed: the snapshot, then the events."""
    responses = messages(text, enqueue_service_pb2.WatchJobsResponse)
    return [getattr(response, response.WhichOneof("message")) for response in responses]


# --- jobs


def test_submit_prints_the_job_and_get_list_and_watch_find_it(run: Run) -> None:
    told = run("submit", "echo", "-i", '{"n": 1}', "-l", "cli=path", "--wait", "--json")
    job = one_job(told.stdout)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert json.loads(job.output.data) == {"n": 1}
    assert one_job(run("get", job.id, "--json").stdout) == job
    (listed,) = messages(run("list", "-l", "cli=path", "--json").stdout, job_pb2.Job)
    assert listed.id == job.id
    # Of a job that has ended a watch tells its last state.
    (told_last,) = transitions(run("watch", job.id, "--json").stdout)
    assert told_last.state == job_pb2.JOB_STATE_SUCCEEDED


def test_watch_prints_every_transition_as_a_line_of_json(run: Run) -> None:
    for delay in ("2s", "5s", "15s"):
        job = one_job(run("submit", "echo", "--delay", delay, "--json").stdout)
        seen = transitions(run("watch", job.id, "--json").stdout)
        if seen[0].version == 1:  # else the command took longer to start than the job had to wait
            break
    assert [(event.version, event.state) for event in seen] == [
        (1, job_pb2.JOB_STATE_SCHEDULED),
        (2, job_pb2.JOB_STATE_DISPATCHED),
        (3, job_pb2.JOB_STATE_RUNNING),
        (4, job_pb2.JOB_STATE_SUCCEEDED),
    ]


def test_cancel_says_whether_it_won_by_its_exit_code(run: Run) -> None:
    waiting = one_job(run("submit", "echo", "--delay", "1h", "--json").stdout)
    cancelled = one_job(run("cancel", waiting.id, "--reason", "test", "--json").stdout)
    assert cancelled.state == job_pb2.JOB_STATE_CANCELLED
    assert one_job(run("get", waiting.id, "--json").stdout).end_note == "test"
    ended = one_job(run("submit", "echo", "--wait", "--json").stdout)
    refused = run("cancel", ended.id, code=FAILED)
    assert "SUCCEEDED" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("submit", "flaky", "-i", '{"failures": 9}', "--retries", "0", "--wait"),
            FAILED,
            "RuntimeError",
        ),
        (("submit", "no-such-type"), USAGE, "UNKNOWN_TYPE"),
        (("submit", "NOT A TYPE"), USAGE, "job.type"),
        (("submit", "echo", "-i", "{not json"), USAGE, "JSON"),
        (("submit", "echo", "--priority", "11"), USAGE, "priority"),
        (("get", "42"), USAGE, "job_id"),
        (("submit", "echo", "--address", "127.0.0.1:1"), UNAVAILABLE, "127.0.0.1:1"),
        (("submit", "nap", "-i", '{"seconds": 9}', "--wait-timeout", "300ms"), OUT_OF_TIME, "300"),
    ],
)
def test_a_command_that_fails_says_why_in_a_line_and_by_its_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, said: str
) -> None:
    told = run(*arguments, code=code)
    assert said in told.stderr or (said == "300" and "0.3" in told.stderr)


# --- the mesh


def test_status_and_logs_tell_of_every_process(run: Run, mesh: RunningMesh) -> None:
    run("pool", "create", "idle", "--app", "jobmesh.examples", "--max", "1")
    rows = [json.loads(line) for line in run("status", "--json").stdout.splitlines()]
    run("pool", "delete", "idle")
    inside = ("worker", "shard", "pool")
    units = {row["name"]: row for row in rows if row["kind"] not in inside}
    shards = [row for row in rows if row["kind"] == "shard"]
    assert {row["name"] for row in shards} == set(mesh.shard_dsns)
    assert {row["health"] for row in shards} == {"SHARD_HEALTH_HEALTHY"}
    assert "idle" in {row["spec"]["type"] for row in rows if row["kind"] == "pool"}
    assert set(units) == set(mesh.plan.units)
    assert {row["state"] for row in units.values()} == {"ready"}
    assert all(row["pid"] and row["memoryBytes"] > 0 for row in units.values())
    assert "serving" in run("logs", "enqueue", "--lines", "200").stdout


async def test_a_worker_serves_a_module_of_the_users_own(
    run: Run, mesh: RunningMesh, client: AsyncClient, calm_room: WorkerRoom, gates: Gates
) -> None:
    (gates.folder / "mymodule.py").write_text(
        "from jobmesh import job\n\n\n"
        '@job("shout", retries=1)\n'
        "def shout(text: str) -> str:\n"
        "    return text.upper()\n"
    )
    command = [JOBMESH, "worker", "--app", "mymodule", "--home", str(mesh.home)]
    worker = calm_room.run(command, gates.folder)
    await types_known(client, "shout")
    told = await aside(run, "submit", "shout", "-i", '"hello"', "--wait")
    assert told.stdout == '"HELLO"\n'
    assert await aside(worker.stop) == 0
