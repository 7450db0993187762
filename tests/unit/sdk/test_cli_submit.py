"""`jobmesh submit` against a mesh in memory: what it sends, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobmesh.cli.screen import Screen
from jobmesh.v1.job_pb2 import Failure

from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import MemoryMesh, succeed

ESCAPE = "\x1b"


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
    assert "did not end within 0.1 s — it goes on: jobmesh watch " in ran.err


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
