"""`jobmesh pool show` and `pool set`: what a pool is, and changing a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import MemoryMesh


async def test_a_pool_is_shown_with_what_holds_where_it_says_nothing(run: Run) -> None:
    await run("pool", "create", "echo", "--app", "my.app", "--directory", "/srv", "--idle", "5s")
    lines = dict(
        line.split(maxsplit=1) for line in (await run("pool", "show", "echo")).out.splitlines()
    )
    assert (lines["min"], lines["max"], lines["idle"]) == ("0", "4", "5.0 s")
    assert (lines["cooldown"], lines["drain"]) == ("10.0 s", "30.0 s")
    assert (lines["app"], lines["directory"]) == ("my.app", "/srv")
    assert lines["capacity"] == "as the handler says"
    shown = await run("pool", "show", "echo", "--json")
    assert shown.lines[0]["spec"]["process"]["app"] == "my.app"


async def test_a_pool_that_others_run_says_so(run: Run) -> None:
    await run("pool", "create", "echo")
    assert "somebody else runs its workers" in (await run("pool", "show", "echo")).out


async def test_what_is_said_is_changed_and_the_rest_stays(run: Run, mesh: MemoryMesh) -> None:
    await run("pool", "create", "echo", "--app", "my.app", "--max", "2", "--idle", "5s")
    ran = await run("pool", "set", "echo", "--max", "8", "--capacity", "3", "--cooldown", "1m")
    assert ran.code == 0
    assert "max                  8\n" in ran.out
    spec = mesh.scaler.pools["echo"].spec
    assert (spec.max_workers, spec.empty_for.seconds, spec.cooldown.seconds) == (8, 5, 60)
    assert (spec.process.app, spec.process.capacity) == ("my.app", 3)
    assert spec.process.directory == str(Path.cwd())
    await run("pool", "set", "echo", "--idle", "default")
    assert not spec.HasField("empty_for")
    assert (spec.max_workers, spec.cooldown.seconds) == (8, 60)


async def test_a_pool_that_was_only_watched_gets_workers_of_its_own(
    run: Run, mesh: MemoryMesh
) -> None:
    await run("pool", "create", "echo")
    refused = await run("pool", "set", "echo", "--capacity", "3")
    assert (refused.code, "give --app" in refused.err) == (2, True)
    assert (await run("pool", "set", "echo", "--app", "my.app")).code == 0
    process = mesh.scaler.pools["echo"].spec.process
    assert (process.app, process.directory) == ("my.app", str(Path.cwd()))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "echo"], 2, "such as --max 8"),
        (["create", "primes", "--capacity", "4"], 2, "about workers it starts: give --app"),
        (["set", "echo", "--idle", "soon"], 2, "'soon' is not a span"),
        (["set", "none", "--max", "8"], 1, "(POOL_NOT_FOUND)"),
        (["show", "none"], 1, "(POOL_NOT_FOUND)"),
    ],
)
async def test_mistakes_are_told_and_change_nothing(
    run: Run, mesh: MemoryMesh, arguments: list[str], code: int, message: str
) -> None:
    await run("pool", "create", "echo")
    before = mesh.scaler.pools["echo"].SerializeToString()
    ran = await run("pool", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert mesh.scaler.pools["echo"].SerializeToString() == before
