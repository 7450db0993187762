"""Two meshes for all whole-mesh tests: one that stays well, and one that is broken and mended.

Each is started when the first test asks for it. A test that breaks something in `storm` mends it
before it ends; nobody breaks anything in `mesh`. Tests mostly wait, so those of each mesh have a
process of their own; others, which make one for themselves, go file by file (`--dist loadgroup`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh, running_mesh
from localmesh.processes import tagged

from tests.e2e.hands import Gates, Worker, WorkerRoom, types_known

TEST_SECONDS = 120
#: What the worker of the mesh that stays well serves.
TYPES = ("crash", "echo", "flaky", "gated", "nap", "pause", "wordcount")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))
        asked = {"mesh", "storm"}.intersection(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group(asked.pop() if asked else item.path.stem))


def _running(home: Path, **environment: str) -> Iterator[RunningMesh]:
    with running_mesh(home, environment=environment) as mesh:
        yield mesh
    assert tagged(home) == []


# --- the mesh that stays well


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """A whole mesh that no test breaks. Its spans are written into `traces` of its home."""
    home = tmp_path_factory.mktemp("mesh")
    yield from _running(home, JOBMESH_TRACE_FILE=str(home / "traces"))


@pytest.fixture(scope="session")
def calm_room(mesh: RunningMesh) -> Iterator[WorkerRoom]:
    with WorkerRoom(mesh) as room:
        yield room


@pytest.fixture(scope="session")
def calm_worker(calm_room: WorkerRoom) -> Worker:
    """The worker that serves `TYPES`; started, perhaps not registered yet."""
    return calm_room.start("--types", ",".join(TYPES))


@pytest.fixture
async def client(mesh: RunningMesh, calm_worker: Worker) -> AsyncIterator[AsyncClient]:
    """A client of the mesh that stays well, with a worker for `TYPES`."""
    async with AsyncClient(mesh.enqueue_target) as client:
        await types_known(client, *TYPES)
        yield client


# --- the mesh that is broken


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """A whole mesh for tests that kill and restart parts of it."""
    yield from _running(tmp_path_factory.mktemp("storm"))


@pytest.fixture
def room(storm: RunningMesh) -> Iterator[WorkerRoom]:
    """Workers of one test in the storm."""
    with WorkerRoom(storm) as room:
        yield room


@pytest.fixture
async def storm_client(storm: RunningMesh) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(storm.enqueue_target, timeout=30, attempts=60) as client:
        yield client


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)
