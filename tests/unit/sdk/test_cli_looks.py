"""Looking at jobs, following and ending them: get, list, watch, cancel, output."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from jobmesh.cli.tracebacks import own_frames
from jobmesh.v1.job_pb2 import Failure

from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import MemoryMesh, succeed


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


async def test_what_looks_like_markup_is_shown_as_it_is(run: Run, mesh: MemoryMesh) -> None:
    said = "cannot open [/tmp/x] of list[i] :x:"
    failure = Failure(type="OSError", message=f"{said}\nand more")

    def fail(mesh: MemoryMesh, job_id: str) -> None:
        mesh.move(job_id, "DISPATCHED")
        mesh.move(job_id, "FAILED", failure=failure)

    mesh.on_stored = fail
    job_id = (await run("submit", "echo", "--label", "path=[/b]")).out.strip()
    listed = await run("list")
    assert (listed.code, listed.err) == (0, "")
    assert [line for line in listed.out.splitlines() if f"{said} and more" in line]
    shown = await run("get", job_id)
    assert (shown.code, shown.err) == (0, "")
    assert said in shown.out
    assert "path=[/b]" in shown.out
    missing = await run("down", "--home", "/nowhere/[bold]")
    assert "/nowhere/[bold]" in missing.err


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
    missing = tmp_path / "missing" / "out.json"
    assert (await run("output", job_id, "-o", str(missing))).err == (
        f"error: cannot write {missing}: No such file or directory\n"
    )
    mesh.on_stored = lambda mesh, job_id: None
    waiting = (await run("submit", "echo")).out.strip()
    assert "has no output: it is SCHEDULED" in (await run("output", waiting)).err
