"""The command as a process: pipes, colours, imports."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from jobmesh.v1.job_pb2 import JobSpec

from tests.unit.sdk.cli_runs import Ran
from tests.unit.sdk.memory_mesh import MemoryMesh

ESCAPE = "\x1b"


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


async def test_an_install_without_the_command_says_what_to_install() -> None:
    """`pip install /path/to/jobmesh` brings the script, and nothing that it needs."""
    script = "import sys; sys.modules['typer'] = None; from jobmesh.cli import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": "gen:sdk:deploy"},
    )
    _, err = await process.communicate()
    told = "error: the command is not installed: pip install '/path/to/jobmesh[cli]'\n"
    assert (process.returncode, err.decode()) == (1, told)


async def test_a_closed_output_is_no_error(address: str, mesh: MemoryMesh) -> None:
    mesh.put(JobSpec(type="echo"))
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        process = await asyncio.create_subprocess_shell(
            f"{sys.executable} -m jobmesh.cli list {closed}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": "gen:sdk:deploy", "JOBMESH_ADDRESS": address},
        )
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a script runs in its background ignores Ctrl-C, and so does all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
async def test_ctrl_c_ends_the_wait_and_says_that_the_job_goes_on(
    address: str, mesh: MemoryMesh
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jobmesh.cli", "submit", "echo", "--wait"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": "gen:sdk:deploy", "JOBMESH_ADDRESS": address},
    )
    assert process.stderr is not None
    while b"SCHEDULED" not in await process.stderr.readline():
        pass  # once it is followed
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    (job_id,) = mesh.records
    said = f"it goes on: jobmesh watch {job_id}\n"
    assert (process.returncode, out, err.decode()) == (130, b"", said)
