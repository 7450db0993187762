"""The Node example: a client made of the .proto files alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.unit.sdk.memory_mesh import MemoryMesh, succeed

EXAMPLE = Path(__file__).parents[3] / "examples" / "node"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None or not (EXAMPLE / "node_modules").is_dir(),
    reason="needs node, and `npm ci` in examples/node",
)


async def run(address: str) -> tuple[int, list[dict[str, object]]]:
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        NODE, "enqueue_and_watch.js", address, cwd=EXAMPLE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in out.splitlines()]


async def test_it_submits_watches_reads_and_explains(address: str, mesh: MemoryMesh) -> None:
    mesh.on_stored = succeed
    code, lines = await run(address)
    assert code == 0
    assert lines[0]["state"] == "SUCCEEDED"
    assert lines[1]["output"] == {"hello": "from node"}
    refused = lines[2]["error"]
    assert isinstance(refused, dict)
    assert refused["code"] == "NOT_FOUND"
    assert refused["ErrorInfo"]["reason"] == "UNKNOWN_TYPE"


async def test_it_resumes_a_cut_watch_without_gap_or_duplicate(
    address: str, mesh: MemoryMesh
) -> None:
    async def live() -> None:
        async with mesh.changed:
            await mesh.changed.wait_for(lambda: mesh.records)
        job_id = next(iter(mesh.records))
        await mesh.advance(job_id, "DISPATCHED", "RUNNING", "CANCELLED")

    mesh.cut_watch = lambda sent: "UNAVAILABLE" if sent == 1 else ""
    (code, lines), _ = await asyncio.gather(run(address), live())
    versions = [line["version"] for line in lines if "version" in line]
    assert code == 1, "the job was cancelled"
    assert isinstance(versions[0], int)
    assert versions == list(range(versions[0], 5))
