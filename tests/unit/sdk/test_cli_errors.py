"""What goes wrong is one line with a way out, and an exit code."""

from __future__ import annotations

import pytest

from services.mesh.errors import InvalidField, UnknownType
from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["submit", "nope"], 2, "(UNKNOWN_TYPE) — start a worker that serves it"),
        (["submit", "ehco"], 2, "'ehco' (UNKNOWN_TYPE) — did you mean echo?"),
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
    assert (ran.code, "did you mean primes?" in ran.err) == (2, True)


async def test_a_refused_field_is_named(run: Run, mesh: MemoryMesh) -> None:
    mesh.faults["Enqueue"] = [Fault(InvalidField("job.type", "must match the pattern"))]
    ran = await run("submit", "echo")
    assert ran.code == 2
    assert ran.err == "error: job.type: must match the pattern (INVALID_FIELD)\n"


async def test_debug_shows_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMESH_DEBUG", "1")
    with pytest.raises(ValueError, match="is not a span"):
        await run("submit", "echo", "--delay", "soon")
