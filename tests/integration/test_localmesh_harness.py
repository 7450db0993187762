"""The harness: a mesh for the length of a test, with every process under the test's thumb."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from localmesh.errors import LocalError
from localmesh.harness import RunningMesh, running_mesh
from localmesh.processes import Process, tagged
from localmesh.settings import SERVICES, MeshSettings, ServiceSpec
from localmesh.state import read_workers

STANDIN = str(Path(__file__).with_name("localmesh_standin.py"))
SETTINGS = MeshSettings(
    s3_endpoint="http://nowhere:3",
    services={
        name: ServiceSpec((STANDIN, name), spec.health, spec.port_offset, spec.wants)
        for name, spec in SERVICES.items()
    },
)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    home = tmp_path_factory.mktemp("mesh")
    with running_mesh(home, shards=2, settings=SETTINGS) as mesh:
        yield mesh
    assert tagged(home) == []


def test_everything_is_ready_inside_the_block(mesh: RunningMesh) -> None:
    assert all(row.ready for row in mesh.status())
    assert len(mesh.targets("scheduler")) == 2
    assert mesh.enqueue_target != mesh.orchestrator_target
    assert set(mesh.shard_dsns) == {"s0", "s1"}


def test_a_killed_service_stays_away_until_restarted(mesh: RunningMesh) -> None:
    before = mesh.process("scheduler")
    mesh.kill("scheduler")
    assert not before.alive()
    with pytest.raises(LocalError, match="scheduler is not ready"):
        mesh.wait_ready("scheduler", seconds=0)
    mesh.restart("scheduler")
    mesh.wait_ready("scheduler", seconds=0)
    assert mesh.process("scheduler") != before


def test_a_shard_can_be_stopped_and_started_again(mesh: RunningMesh) -> None:
    dsn = mesh.shard_dsns["s1"]
    mesh.stop_server("shard-1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    mesh.start_server("shard-1")
    psycopg.connect(dsn).close()


def test_a_shard_can_be_killed_and_started_again(mesh: RunningMesh) -> None:
    mesh.kill("shard-0")
    mesh.start_server("shard-0")
    psycopg.connect(mesh.shard_dsns["s0"]).close()


def test_a_frozen_service_is_not_ready_until_it_thaws(mesh: RunningMesh) -> None:
    mesh.kill("enqueue", signal.SIGSTOP)
    with pytest.raises(LocalError):
        mesh.wait_ready("enqueue", seconds=0)
    mesh.kill("enqueue", signal.SIGCONT)
    mesh.wait_ready("enqueue")


async def test_processes_started_from_any_thread_outlive_it(mesh: RunningMesh) -> None:
    await asyncio.to_thread(mesh.restart, "scaler")
    mesh.wait_ready("scaler", seconds=0)


async def test_it_also_enters_asynchronously(tmp_path: Path) -> None:
    async with running_mesh(
        tmp_path, schedulers=0, scalers=0, enqueues=0, shards=1, settings=SETTINGS
    ) as mesh:
        assert mesh.process("orchestrator").alive()
    assert tagged(tmp_path) == []


def test_the_logs_of_a_failed_test_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = running_mesh(tmp_path, schedulers=0, scalers=0, enqueues=0, shards=1, settings=SETTINGS)
    with pytest.raises(ZeroDivisionError), only:
        raise ZeroDivisionError
    assert "orchestrator serves" in capsys.readouterr().err


def test_nothing_outlives_a_killed_test_process(tmp_path: Path) -> None:
    script = f"""
        import sys, time
        sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
        from pathlib import Path
        from localmesh.harness import running_mesh
        from test_localmesh_harness import SETTINGS
        home = Path({str(tmp_path)!r})
        workers = {{"STANDIN_WORKER": "1"}}
        with running_mesh(home, shards=1, settings=SETTINGS, environment=workers):
            print("ready", flush=True)
            time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        processes = tagged(tmp_path)
        (worker,) = read_workers(tmp_path / "workers")
        assert worker.process in processes
        assert len(processes) >= 9
        parent.kill()
    assert _all_end(processes)


def _all_end(processes: list[Process]) -> bool:
    return all(process.wait(10) for process in processes)
