"""The local mesh with stand-ins for the services: up mends, down leaves nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
from localmesh.errors import LocalError
from localmesh.logs import tail_logs
from localmesh.mesh import clean, down, up
from localmesh.ports import PortPool
from localmesh.processes import Process, tagged
from localmesh.progress import Step
from localmesh.settings import SERVICES, MeshSettings, ServiceSpec
from localmesh.state import StateFile, read_workers
from localmesh.status import Row, status

WHOLE = {"orchestrator": 1, "scheduler": 2, "scaler": 1}
SMALL = {"orchestrator": 1, "scaler": 1}
STANDIN = str(Path(__file__).with_name("localmesh_standin.py"))
# Addresses where nobody is: the stand-ins do not mind, and no server is started.
ELSEWHERE = MeshSettings(
    postgres_urls=("postgresql://nowhere/a", "postgresql://nowhere/b"),
    nats_url="nats://nowhere:1",
    etcd_endpoints=("nowhere:2",),
    s3_endpoint="http://nowhere:3",
    replicas=WHOLE,
    services={
        name: ServiceSpec((STANDIN, name), spec.health, spec.port_offset, spec.wants)
        for name, spec in SERVICES.items()
    },
)


@dataclass
class World:
    """One folder with a mesh in it, and everything that was told about it."""

    home: Path
    settings: MeshSettings
    steps: list[Step] = field(default_factory=list)

    def up(self, **changes: object) -> tuple[set[str], set[str]]:
        report = up(self.home, replace(self.settings, **changes), self.steps.append)  # type: ignore[arg-type]
        return set(report.started), set(report.kept)

    def down(self, grace: float = 10.0) -> None:
        self.steps.clear()
        down(self.home, self.steps.append, grace)

    def process(self, name: str) -> Process:
        return StateFile(self.home).load().processes[name].process

    def rows(self) -> dict[str, Row]:
        return {row.name: row for row in status(self.home)}

    def told(self, action: str) -> list[str]:
        return [step.name for step in self.steps if step.action == action]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    home = tmp_path / "mesh"
    with PortPool() as pool:
        yield World(home, replace(ELSEWHERE.with_ports(pool.take), replicas=SMALL))
        clean(home, grace=1.0)
    assert tagged(home) == []


def test_up_starts_everything_and_a_second_up_nothing(world: World) -> None:
    everything = {"orchestrator", "scheduler", "scheduler-2", "scaler"}
    assert world.up(replicas=WHOLE) == (everything, set())
    pids = {name: world.process(name) for name in everything}
    assert world.up(replicas=WHOLE) == (set(), everything)
    assert {name: world.process(name) for name in everything} == pids
    assert all(row.alive and row.ready for row in world.rows().values())


def test_up_starts_only_what_is_missing(world: World) -> None:
    world.up()
    world.process("scaler").stop()
    assert world.up() == ({"scaler"}, {"orchestrator"})


def test_up_restarts_what_has_other_settings_now(world: World) -> None:
    world.up()
    before = world.process("scaler")
    assert world.up(s3_region="eu-central-1") == ({"scaler"}, {"orchestrator"})
    assert not before.alive()


def test_up_from_another_folder_or_shell_restarts_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.up()
    monkeypatch.setenv("JOBMESH_ADDRESS", "127.0.0.1:1")
    assert world.up(folder=str(tmp_path)) == (set(), set(SMALL))
    monkeypatch.setenv("JOBMESH_LOG_LEVEL", "debug")
    assert world.up() == (set(SMALL), set())


def test_up_ends_surplus_replicas(world: World) -> None:
    world.up(replicas={"scheduler": 2})
    surplus = world.process("scheduler-2")
    world.up(replicas={"scheduler": 1})
    assert not surplus.alive()
    assert "scheduler-2" not in world.rows()


def test_up_finds_what_a_lost_state_file_forgot(world: World) -> None:
    world.up()
    forgotten = [world.process(name) for name in SMALL]
    (world.home / "state.json").unlink()
    world.up()
    assert not any(process.alive() for process in forgotten)
    assert all(row.ready for row in world.rows().values())


def test_state_from_before_a_reboot_names_no_process(world: World) -> None:
    world.up()
    path = world.home / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
    assert StateFile(world.home).load().processes == {}
    started, _ = world.up()
    assert started == set(SMALL)


def test_a_reused_pid_is_left_alone(world: World) -> None:
    world.up()
    world.process("orchestrator").stop()
    path = world.home / "state.json"
    state = json.loads(path.read_text())
    state["processes"]["orchestrator"]["pid"] = os.getpid()
    path.write_text(json.dumps(state))
    world.down()  # would end this very test


def test_services_know_only_what_they_should(world: World) -> None:
    world.up()
    for name, knows in (("orchestrator", True), ("scaler", False)):
        environ = Path(f"/proc/{world.process(name).pid}/environ").read_text()
        assert ("JOBMESH_SHARD_DSNS=s0=postgresql://nowhere/a,s1=" in environ) == knows, name
        assert "JOBMESH_NATS_URL=nats://nowhere:1" in environ
        assert ("JOBMESH_S3_SECRET_KEY" in environ) == (name == "scaler")


def test_down_stops_in_order_and_the_workers_after_the_scaler(world: World) -> None:
    world.up(environment={"STANDIN_WORKER": "1"}, replicas=WHOLE)
    (worker,) = read_workers(world.home / "workers")
    assert worker.type == "render"
    assert world.rows()[worker.worker_id].kind == "worker"
    world.down()
    stopped = world.told("stopped")
    assert stopped[:2] == ["scaler", worker.worker_id]
    assert set(stopped[2:4]) == {"scheduler", "scheduler-2"}
    assert stopped[4:] == ["orchestrator"]
    assert not worker.process.alive()
    assert not worker.file.exists()
    assert tagged(world.home) == []


def test_down_also_ends_workers_that_left_no_record(world: World) -> None:
    world.up(environment={"STANDIN_WORKER": "1"})
    (worker,) = read_workers(world.home / "workers")
    worker.file.unlink()
    world.down()
    assert not worker.process.alive()


def test_up_leaves_recorded_workers_alone(world: World) -> None:
    world.up(environment={"STANDIN_WORKER": "1"})
    (worker,) = read_workers(world.home / "workers")
    world.process("scaler").signal(signal.SIGKILL)
    world.process("scaler").wait(5)
    world.up(environment={"STANDIN_WORKER": "1"})
    assert worker.process.alive()


def test_down_kills_a_service_that_does_not_drain(world: World) -> None:
    world.up(environment={"STANDIN_STUBBORN": "orchestrator"}, replicas={"orchestrator": 1})
    world.down(grace=0.5)
    assert world.told("killed") == ["orchestrator"]
    assert tagged(world.home) == []


def test_down_has_busy_workers_hand_back_when_the_grace_is_over(world: World) -> None:
    world.up(environment={"STANDIN_WORKER": "busy"})
    (worker,) = read_workers(world.home / "workers")
    world.down(grace=2.0)
    assert worker.worker_id in world.told("stopped")
    assert (world.home / "workers" / "handed-back").exists()


def test_down_twice_and_without_a_mesh_is_fine(world: World) -> None:
    world.down()
    world.up()
    world.down()
    world.down()
    assert world.steps == []


def test_a_service_that_cannot_start_is_quoted_and_nothing_stays(world: World) -> None:
    with pytest.raises(LocalError) as caught:
        world.up(environment={"STANDIN_CRASH": "scaler"})
    assert "scaler" in str(caught.value)
    assert "the configuration is wrong" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tagged(world.home) == []


def test_a_taken_port_is_told_before_anything_is_started(world: World) -> None:
    taken = socket.create_server(("127.0.0.1", world.settings.port("scaler")))
    with taken, pytest.raises(LocalError, match=r"wanted by scaler, is in use by pid \d+"):
        world.up(nats_url="")
    assert world.steps == []


def test_a_failed_up_leaves_alone_what_ran_before(world: World) -> None:
    only = {"orchestrator": 1}
    world.up(replicas=only)
    before = world.process("orchestrator")
    with pytest.raises(LocalError):
        world.up(environment={"STANDIN_CRASH": "scaler"}, replicas={**only, "scaler": 1})
    assert before.alive()
    assert tagged(world.home) == [before]


def test_another_number_of_shards_is_refused_and_the_mesh_left_alone(world: World) -> None:
    for index in range(2):
        (world.home / "data" / f"shard-{index}").mkdir(parents=True)
    # As an `up` with two shards of its own left it.
    world.up(shards=2)
    saved = StateFile(world.home).load()
    assert saved.settings is not None
    StateFile(world.home).save(replace(saved, settings=replace(saved.settings, postgres_urls=())))
    running = world.process("orchestrator")
    for count in (1, 3):
        with pytest.raises(LocalError, match=rf"has 2 shards, not {count}.*--shards 2.*make clean"):
            world.up(shards=count, postgres_urls=())
    assert running.alive()
    (world.home / "state.json").rename(world.home / "state.lost")
    with pytest.raises(LocalError, match="has 2 shards, not 1"):
        world.up(shards=1, postgres_urls=())
    (world.home / "state.lost").rename(world.home / "state.json")


def test_a_second_command_at_the_same_time_is_refused(world: World) -> None:
    world.home.mkdir()
    with (world.home / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4711")
        file.flush()
        with pytest.raises(LocalError, match=r"another command \(pid 4711\)"):
            world.up()
        with pytest.raises(LocalError, match="another command"):
            world.down()


def test_clean_removes_what_the_mesh_made_and_nothing_else(world: World) -> None:
    world.up()
    (world.home / "notes.txt").write_text("mine")
    clean(world.home)
    assert [path.name for path in world.home.iterdir()] == ["notes.txt"]


def test_status_of_a_stopped_mesh_shows_everything_down(world: World) -> None:
    world.up()
    world.down()
    rows = world.rows()
    assert set(rows) == set(SMALL)
    assert not any(row.alive or row.ready or row.pid for row in rows.values())


def test_status_tells_a_frozen_service_from_a_ready_one(world: World) -> None:
    world.up()
    world.process("scaler").signal(signal.SIGSTOP)
    rows = world.rows()
    assert rows["scaler"].alive
    assert not rows["scaler"].ready
    assert rows["orchestrator"].ready
    world.process("scaler").signal(signal.SIGCONT)


def test_logs_are_read_by_name_and_followed(world: World) -> None:
    world.up(replicas={"scheduler": 2, "scaler": 1})
    lines = {line.name: line.text for line in tail_logs(world.home, "scheduler")}
    assert set(lines) == {"scheduler", "scheduler-2"}
    assert "serves" in lines["scheduler-2"]
    assert [line.name for line in tail_logs(world.home, "scheduler-2")] == ["scheduler-2"]
    following = tail_logs(world.home, "scaler", follow=True)
    assert "serves" in next(following).text
    with (world.home / "logs" / "scaler.log").open("a") as file:
        file.write("one more\n")
    assert next(following).text == "one more"
    following.close()
    with pytest.raises(LocalError, match="no log of 'nobody'"):
        list(tail_logs(world.home, "nobody"))


def test_a_whole_mesh_heals_after_its_servers_were_killed(tmp_path: Path) -> None:
    home = tmp_path / "mesh"
    with PortPool() as pool:
        elsewhere = replace(
            ELSEWHERE, postgres_urls=(), nats_url="", etcd_endpoints=(), s3_endpoint="", shards=2
        )
        world = World(home, replace(elsewhere.with_ports(pool.take), replicas=SMALL))
        started, _ = world.up()
        assert started >= {"shard-0", "shard-1", "nats", "etcd", "s3", "orchestrator"}
        dsn = _dsn(world, "orchestrator", "s1")
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
        for name in ("shard-0", "shard-1", "etcd", "s3", "nats"):
            world.process(name).signal(signal.SIGKILL)
        for name in ("shard-0", "shard-1", "etcd", "s3", "nats"):
            assert world.process(name).wait(5)
        assert not any(row.alive for row in world.rows().values() if row.kind == "server")
        started, kept = world.up()
        assert started == {"shard-0", "shard-1", "etcd", "s3", "nats"}
        assert "orchestrator" in kept
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT value FROM kept").fetchone() == (42,)
        world.down()
        assert tagged(home) == []
        clean(home)
        assert not home.exists()


def _dsn(world: World, service: str, shard: str) -> str:
    variables = Path(f"/proc/{world.process(service).pid}/environ").read_text().split("\0")
    (text,) = (v for v in variables if v.startswith("JOBMESH_SHARD_DSNS="))
    pairs = dict(pair.split("=", 1) for pair in text.partition("=")[2].split(","))
    return pairs[shard]
