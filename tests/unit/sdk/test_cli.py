"""The command against a mesh in memory: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobmesh.cli import connect
from jobmesh.cli.app import app
from jobmesh.cli.screen import Screen
from jobmesh.cli.tracebacks import own_frames
from jobmesh.v1 import pool_pb2
from jobmesh.v1.job_pb2 import Failure, JobSpec
from typer.testing import CliRunner

from services.mesh.errors import InternalError, InvalidField, UnknownType
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh
from tests.unit.sdk.test_client import succeed

ESCAPE = "\x1b"


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in a thread, beside the loop that serves it."""
    for variable, _ in connect.DEFAULTS.values():
        monkeypatch.setenv(variable, address)

    async def invoke(*arguments: str, stdin: str | None = None) -> Ran:
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke


# --- submit


async def test_submit_prints_the_id_and_nothing_else(run: Run, mesh: MemoryMesh) -> None:
    ran = await run(
        "submit", "echo", "--input", '{"a": 1}', "--label", "team=x", "--priority", "3",
        "--retries", "4", "--backoff", "fixed", "--retry-delay", "30s", "--key", "k", "--delay",
        "5m", "--timeout", "1h", "--namespace", "acme",
    )  # fmt: skip
    assert (ran.code, ran.out.strip()) == (0, next(iter(mesh.records)))
    assert ran.err == ""
    sent = mesh.calls["Enqueue"][0]
    assert (sent.namespace, sent.idempotency_key, sent.job.priority) == ("acme", "k", 3)
    assert (sent.job.input.data, sent.job.input.content_type) == (b'{"a": 1}', "application/json")
    assert (sent.job.retry_policy.max_attempts, sent.job.retry_policy.initial_delay.seconds) == (
        5,
        30,
    )
    assert (sent.job.delay.seconds, sent.job.timeouts.run.seconds) == (300, 3600)
    assert dict(sent.job.labels) == {"team": "x"}


async def test_submit_tells_failures_and_exit_codes_apart(run: Run, mesh: MemoryMesh) -> None:
    ran = await run(
        "submit", "echo", "--retries", "2", "--backoff", "linear", "--retry-on", "CommandFailed",
        "--retry-on", "75", "--no-retry-on", "-9", "--no-retry-on", "ValueError",
    )  # fmt: skip
    assert ran.code == 0
    policy = mesh.calls["Enqueue"][0].job.retry_policy
    assert (policy.retryable_types, policy.retryable_exit_codes) == (["CommandFailed"], [75])
    assert (policy.non_retryable_types, policy.non_retryable_exit_codes) == (["ValueError"], [-9])
    ran = await run("submit", "echo", "--retry-on", "75")
    assert ran.code == 2
    assert "give --retries" in ran.err


async def test_a_job_that_was_cancelled_before_is_said_to_be(run: Run, mesh: MemoryMesh) -> None:
    job_id = (await run("submit", "echo", "--delay", "1h")).out.strip()
    assert f"cancelled {job_id}" in (await run("cancel", job_id)).err
    again = await run("cancel", job_id)
    assert (again.code, f"{job_id} was cancelled before" in again.err) == (0, True)


async def test_submit_takes_every_shape_of_retries(run: Run, mesh: MemoryMesh) -> None:
    waits = ("--retry-waits", "1s, 5s,1m", "--retry-jitter", "0.3", "--retry-window", "1h")
    assert (await run("submit", "echo", *waits)).code == 0
    policy = mesh.calls["Enqueue"][0].job.retry_policy
    assert [delay.ToSeconds() for delay in policy.delays] == [1, 5, 60]
    assert (policy.max_attempts, round(policy.jitter, 3)) == (4, 0.3)
    assert policy.retry_window.ToSeconds() == 3600
    for wrong in (("--retry-jitter", "0.3"), (*waits, "--retries", "2")):
        refused = await run("submit", "echo", *wrong)
        assert (refused.code, len(mesh.calls["Enqueue"])) == (2, 1)


async def test_submit_and_wait_prints_the_output_and_the_way_there(
    run: Run, mesh: MemoryMesh
) -> None:
    mesh.on_stored = succeed
    ran = await run("submit", "echo", "-i", '{"a": 1}', "--wait")
    assert (ran.code, ran.out) == (0, '{"a": 1}\n')
    assert "SUCCEEDED" in ran.err
    assert ESCAPE not in ran.err


async def test_submit_and_wait_gives_a_pipe_the_whole_of_a_stored_output(
    run: Run, mesh: MemoryMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh.on_stored = succeed
    large = tmp_path / "large.txt"
    large.write_bytes(b"0123456789" * 30_000)
    ran = await run("submit", "echo", "-i", f"@{large}", "--wait")
    assert (ran.code, ran.out) == (0, large.read_text())
    assert "jobmesh output" not in ran.err
    monkeypatch.setattr(Screen, "shows_results", True)
    ran = await run("submit", "echo", "-i", f"@{large}", "--wait")
    assert (ran.code, ran.out) == (0, "")
    assert "the output has 300,000 bytes: jobmesh output" in ran.err


async def test_a_job_that_fails_ends_the_command_with_1(run: Run, mesh: MemoryMesh) -> None:
    def fail(mesh: MemoryMesh, job_id: str) -> None:
        mesh.move(job_id, "DISPATCHED")
        mesh.move(job_id, "FAILED", failure=Failure(type="ValueError", message="bad image"))

    mesh.on_stored = fail
    ran = await run("submit", "echo", "--wait")
    assert (ran.code, ran.out) == (1, "")
    assert "ValueError: bad image" in ran.err
    ran = await run("submit", "echo", "--wait", "--json")
    assert ran.code == 1
    assert ran.lines[0]["state"] == "JOB_STATE_FAILED"


async def test_a_wait_has_an_end(run: Run) -> None:
    ran = await run("submit", "echo", "--wait-timeout", "100ms")
    assert ran.code == 4
    assert "did not end within 0.1 s" in ran.err


async def test_inputs_come_from_files_and_from_stdin(
    run: Run, mesh: MemoryMesh, tmp_path: Path
) -> None:
    small = tmp_path / "small.json"
    small.write_text('{"n": 1}')
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * 300_000)
    await run("submit", "echo", "--input", f"@{small}")
    await run("submit", "echo", "--input", f"@{large}")
    await run("submit", "echo", "--input", "-", stdin="[1, 2]")
    await run("submit", "echo", "--input", "-", stdin="not json")
    inputs = [call.job.input for call in mesh.calls["Enqueue"]]
    assert (inputs[0].data, inputs[0].content_type) == (b'{"n": 1}', "application/json")
    assert (len(mesh.objects[inputs[1].object.key]), inputs[1].content_type) == (
        300_000,
        "text/plain",
    )
    assert (inputs[2].data, inputs[2].content_type) == (b"[1, 2]", "application/json")
    assert (inputs[3].data, inputs[3].content_type) == (b"not json", "application/octet-stream")


async def test_every_makes_a_schedule(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("submit", "echo", "--every", "5m")
    assert (ran.code, ran.out) == (0, "echo-every-5m\n")
    assert "every 300s, next at 2030-01-01" in ran.err
    ran = await run("submit", "echo", "--every", "1h", "--name", "hourly", "--json")
    assert ran.lines[0]["name"] == "hourly"
    assert ran.lines[0]["recurrences"] == [{"interval": {"every": "3600s"}}]
    assert set(mesh.schedules) == {"echo-every-5m", "hourly"}


async def test_cron_makes_a_schedule_in_its_zone(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("submit", "echo", "--cron", "0 9 * * *", "--tz", "Europe/Berlin", "--json")
    assert ran.code == 0
    assert ran.lines[0]["recurrences"] == [
        {"cron": {"expression": "0 9 * * *", "timeZone": "Europe/Berlin"}}
    ]
    assert set(mesh.schedules) == {"echo-cron"}


# --- errors and exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["submit", "nope"], 1, "(UNKNOWN_TYPE) — start a worker that serves it"),
        (["submit", "ehco"], 1, "'ehco' (UNKNOWN_TYPE) — did you mean echo?"),
        (["submit", "echo", "--input", "{"], 2, "--input: not JSON"),
        (["submit", "echo", "--input", "@nowhere"], 2, "cannot read nowhere"),
        (["submit", "echo", "--delay", "soon"], 2, "'soon' is not a span"),
        (["submit", "echo", "--at", "someday"], 2, "'someday' is not a time"),
        (["submit", "echo", "--at", "in 5m", "--delay", "5m"], 2, "one of --at, --delay"),
        (["submit", "echo", "--every", "5m", "--wait"], 2, "has no end"),
        (["submit", "echo", "--every", "5m", "--cron", "0 9 * * *"], 2, "give one of"),
        (["submit", "echo", "--tz", "Europe/Berlin"], 2, "--tz is the zone of --cron"),
        (["submit", "echo", "--label", "x"], 2, "'x' is not KEY=VALUE"),
        (["submit", "echo", "--priority", "10"], 2, "should be less than or equal to 9"),
        (["list", "--state", "asleep"], 2, "is not a state: use one of scheduled"),
        (["get", "00000000-0000-0000-0000-000000000000"], 1, "(JOB_NOT_FOUND)"),
        (["schedule", "get", "none"], 1, "(SCHEDULE_NOT_FOUND)"),
        (["submit", "echo", "--address", "127.0.0.1:1"], 3, "no mesh answers at 127.0.0.1:1"),
        (["frobnicate"], 2, "No such command"),
        (
            ["list", "--since", "yesterday"],
            2,
            "'yesterday' is no time in the past: use for example 2h",
        ),
        (["cancel"], 2, "--state, --type, --label, --schedule, --since, --until"),
        (["worker", "--app", "my/module.py"], 2, "without .py: my.module"),
        (["pool", "create", "echo", "--app", "module.py:app"], 2, "without .py: module:app"),
    ],
)
async def test_an_error_is_one_line_with_a_way_out(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    ran = await run(*arguments)
    assert ran.code == code
    assert message in ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", [["submit", "prime"], ["schedule", "create", "s", "prime"]])
async def test_a_misspelt_type_of_a_schedule_is_told_by_its_neighbour(
    run: Run, mesh: MemoryMesh, command: list[str]
) -> None:
    mesh.faults["CreateSchedule"] = [Fault(UnknownType("prime"))]
    ran = await run(*command, "--every", "5m")
    assert (ran.code, "did you mean primes?" in ran.err) == (1, True)


async def test_a_refused_field_is_named(run: Run, mesh: MemoryMesh) -> None:
    mesh.faults["Enqueue"] = [Fault(InvalidField("job.type", "must match the pattern"))]
    ran = await run("submit", "echo")
    assert ran.code == 2
    assert ran.err == "error: job.type: must match the pattern (INVALID_FIELD)\n"


async def test_debug_shows_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMESH_DEBUG", "1")
    with pytest.raises(ValueError, match="is not a span"):
        await run("submit", "echo", "--delay", "soon")


# --- look and follow


async def test_get_shows_a_job_for_people_and_for_machines(run: Run, mesh: MemoryMesh) -> None:
    mesh.on_stored = succeed
    job_id = (await run("submit", "echo", "-i", "[1]")).out.strip()
    shown = await run("get", job_id)
    for text in (job_id, "SUCCEEDED", "[1]", "TRY"):
        assert text in shown.out
    job = (await run("get", job_id, "--json")).lines[0]
    assert (job["id"], job["state"], job["spec"]["type"]) == (job_id, "JOB_STATE_SUCCEEDED", "echo")
    assert job["output"] == {"data": "WzFd", "contentType": "application/json"}


TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/jobmesh/services/worker/executor/child.py", line 92, in _run
    result = invoke(spec, data, context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/jobmesh/sdk/jobmesh/invocation.py", line 61, in invoke
    return function(*arguments)
  File "/home/me/app.py", line 7, in halve
    return share(n, 0)
  File "/home/me/app.py", line 3, in share
    return n / parts
           ~~^~~~~~~
ZeroDivisionError: division by zero
"""


async def test_get_shows_where_a_handler_failed(run: Run, mesh: MemoryMesh) -> None:
    failure = Failure(type="ZeroDivisionError", message="division by zero", traceback=TRACEBACK)

    def fail(mesh: MemoryMesh, job_id: str) -> None:
        mesh.move(job_id, "DISPATCHED")
        mesh.move(job_id, "FAILED", failure=failure)

    mesh.on_stored = fail
    shown = await run("get", (await run("submit", "echo")).out.strip())
    first, *_ = TRACEBACK.splitlines()
    its_own = TRACEBACK.partition('  File "/home')[2]
    assert shown.out.endswith(f'\n\n{first}\n  File "/home{its_own}')
    assert "invocation.py" not in shown.out


def test_a_failure_before_the_handler_has_no_traceback_to_show() -> None:
    ours = TRACEBACK.partition('  File "/home')[0] + "InputError: n: expected int, got str\n"
    assert own_frames(ours) == ""
    other = "Error: no\n    at run (/home/me/executor.js:3:9)"
    assert own_frames(other) == other


async def test_list_filters_and_limits(run: Run, mesh: MemoryMesh) -> None:
    for n in range(5):
        await run("submit", "echo" if n % 2 else "primes", "--label", f"n={n}")
    assert len((await run("list", "--json")).lines) == 5
    assert len((await run("list", "--json", "--limit", "3")).lines) == 3
    assert len((await run("list", "--json", "--type", "primes")).lines) == 3
    assert len((await run("list", "--json", "--label", "n=2")).lines) == 1
    table = (await run("list")).out.splitlines()
    assert table[0].split() == ["ID", "TYPE", "STATE", "TRY", "AGE", "TOOK", "NOTE"]
    assert len(table) == 6
    assert set(mesh.records) == {line.split()[0] for line in table[1:]}
    empty = await run("list", "--state", "running")
    assert (empty.code, empty.out, empty.err) == (0, "", "no jobs\n")


async def test_watch_follows_several_jobs_to_their_end(run: Run, mesh: MemoryMesh) -> None:
    first = (await run("submit", "echo")).out.strip()
    second = (await run("submit", "echo")).out.strip()

    async def live() -> None:
        await mesh.advance(first, "DISPATCHED", "RUNNING", "SUCCEEDED")
        await mesh.advance(second, "CANCELLED")

    watching = asyncio.create_task(run("watch", first, second))
    await live()
    ran = await watching
    assert ran.code == 1, "one of them was cancelled"
    assert re.search(rf"{first}  SUCCEEDED", ran.out)
    assert re.search(rf"{second}  CANCELLED", ran.out)
    assert (await run("watch", first)).code == 0
    lines = (await run("watch", first, "--json")).lines
    assert lines[0]["snapshot"]["state"] == "JOB_STATE_SUCCEEDED"
    assert "resumeToken" in lines[0]


async def test_cancel_says_who_won(run: Run, mesh: MemoryMesh) -> None:
    job_id = (await run("submit", "echo")).out.strip()
    assert (await run("cancel", job_id)).code == 0
    assert (await run("cancel", job_id)).code == 0, "cancelled is cancelled"
    mesh.on_stored = succeed
    done = (await run("submit", "echo")).out.strip()
    late = await run("cancel", done)
    assert (late.code, "had ended before: it is SUCCEEDED" in late.err) == (1, True)


async def test_output_goes_to_stdout_or_a_file(run: Run, mesh: MemoryMesh, tmp_path: Path) -> None:
    mesh.on_stored = succeed
    job_id = (await run("submit", "echo", "-i", '"hello"')).out.strip()
    assert (await run("output", job_id)).out == '"hello"'
    target = tmp_path / "out.json"
    assert (await run("output", job_id, "-o", str(target))).code == 0
    assert target.read_text() == '"hello"'
    mesh.on_stored = lambda mesh, job_id: None
    waiting = (await run("submit", "echo")).out.strip()
    assert "has no output: it is SCHEDULED" in (await run("output", waiting)).err


# --- operations


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
    assert watched.err == "there is no pool of ehco yet; there are: echo\n"
    assert (await run("pool", "watch", "echo")).err == ""


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


# --- as a process


async def spawn(*arguments: str, **environment: str) -> Ran:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "jobmesh.cli",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": "gen:sdk:deploy", "COLUMNS": "40", **environment},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def test_a_pipe_gets_no_colour_and_no_cut_ids(address: str, mesh: MemoryMesh) -> None:
    ran = await spawn("submit", "echo", JOBMESH_ADDRESS=address, FORCE_COLOR="1")
    job_id = ran.out.strip()
    assert job_id in mesh.records
    listed = await spawn("list", JOBMESH_ADDRESS=address, FORCE_COLOR="1")
    assert job_id in listed.out
    assert ESCAPE not in listed.out + listed.err
    as_json = await spawn("get", job_id, "--json", JOBMESH_ADDRESS=address)
    assert as_json.lines[0]["state"] == "JOB_STATE_SCHEDULED"
    assert (await spawn("get", "x", JOBMESH_ADDRESS="127.0.0.1:1")).code == 3


async def test_help_is_quick_because_it_imports_little() -> None:
    script = (
        "import sys\n"
        "from jobmesh.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'google', 'boto3', 'rich', 'asyncio', 'localmesh'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={"PYTHONPATH": "gen:sdk:deploy"},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == 0


async def test_a_reader_that_leaves_early_is_no_error(address: str, mesh: MemoryMesh) -> None:
    for _ in range(3):
        mesh.put(JobSpec(type="echo", labels={"x": "y" * 200}))
    shell = f"{sys.executable} -m jobmesh.cli list --json | head -c 1"
    process = await asyncio.create_subprocess_shell(
        shell,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": "gen:sdk:deploy", "JOBMESH_ADDRESS": address, "PATH": os.defpath},
    )
    out, err = await process.communicate()
    assert (out, err) == (b"{", b"")
