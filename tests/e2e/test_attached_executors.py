"""An executor in another language, attached to a worker that serves nothing by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobmesh import JobState
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh
from localmesh.ports import LOOPBACK, PortPool

from tests.e2e.hands import PATIENCE, Worker, WorkerRoom, aside, types_known
from tests.e2e.test_other_languages import EXAMPLE, node  # noqa: F401

JOBMESH = str(Path(sys.executable).with_name("jobmesh"))
TYPES = ("node-shout", "node-await-file", "node-count", "node-copy", "node-refuse")
StartNode = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    ports = PortPool()
    yield f"{LOOPBACK}:{ports.take()}"
    ports.close()


@pytest.fixture(scope="module")
def worker(mesh: RunningMesh, calm_room: WorkerRoom, address: str) -> Iterator[Worker]:
    command = [JOBMESH, "worker", "--attach", "--listen", address, "--home", str(mesh.home)]
    worker = calm_room.run(command, EXAMPLE)
    yield worker
    assert worker.stop() == 0


@pytest.fixture
def start_node(worker: Worker, node: list[str], address: str) -> Iterator[StartNode]:  # noqa: F811
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [*node, "executor.js", address]
        started.append(subprocess.Popen(command, cwd=EXAMPLE, stdout=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_node_runs_what_python_submits(client: AsyncClient, start_node: StartNode) -> None:
    process = start_node()
    await types_known(client, *TYPES)
    shout = await client.enqueue("node-shout", {"text": "hello"})
    assert await shout.result(PATIENCE) == {"text": "HELLO!"}
    count = await client.enqueue("node-count", {"to": 3})
    assert await count.result(PATIENCE) == 3
    large = {"text": "x" * 2_000_000}
    copy = await client.enqueue("node-copy", large)
    assert await copy.result(PATIENCE) == large
    refused = await (await client.enqueue("node-refuse", retries=3)).wait(PATIENCE)
    assert (refused.state, refused.attempt) == (JobState.FAILED, 1)
    assert refused.failure is not None
    assert (refused.failure.type, refused.failure.message) == ("TypeError", "this can never work")
    process.terminate()
    assert await aside(process.wait, PATIENCE) == 0


async def test_node_extends_the_time_of_a_job(
    client: AsyncClient, start_node: StartNode, tmp_path: Path
) -> None:
    start_node()
    await types_known(client, *TYPES)
    file = tmp_path / "file"
    given = {"file": str(file), "patience": 60}
    patient = await client.enqueue("node-await-file", given, timeout=1)
    async for event in patient.events():
        if event.state is JobState.RUNNING:
            break
    # The same bound, begun later: when it is over, so would that of the first have been.
    hasty = await client.enqueue("node-await-file", {"file": str(file)}, timeout=1)
    ended = await hasty.wait(PATIENCE)
    assert ended.failure is not None
    assert ended.failure.type == "RunTimeout"
    file.write_text("at last")
    assert await patient.result(PATIENCE) == {"content": "at last"}


async def test_a_job_whose_executor_is_killed_runs_again_at_no_cost(
    client: AsyncClient, start_node: StartNode, tmp_path: Path
) -> None:
    first = start_node()
    await types_known(client, *TYPES)
    file = tmp_path / "file"
    handle = await client.enqueue("node-await-file", {"file": str(file)})
    async for event in handle.events():
        if event.state is JobState.RUNNING:
            break
    first.kill()
    await aside(first.wait)
    file.write_text("at last")
    start_node()
    assert await handle.result(PATIENCE) == {"content": "at last"}
    job = await handle.get(full=True)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    # Nor was it dispatched in vain: the worker asks for nothing that nobody is attached for.
    assert [one.outcome for one in job.attempts] == ["FAILED", "SUCCEEDED"]
    assert job.attempts[0].failure is not None
    assert job.attempts[0].failure.type == "ExecutorLost"
