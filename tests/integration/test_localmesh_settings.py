"""Settings of a local mesh: the documented ports, variables that are read or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from localmesh.errors import LocalError
from localmesh.plan import Plan
from localmesh.settings import MeshSettings, default_home


def test_default_ports_are_the_documented_ones() -> None:
    plan = Plan(Path("/mesh"), MeshSettings())
    ports = {name: next(iter(unit.ports.values())) for name, unit in plan.units.items()}
    assert ports == {
        "shard-0": 7132,
        "shard-1": 7133,
        "shard-2": 7134,
        "nats": 7142,
        "etcd": 7152,
        "s3": 7162,
        "enqueue": 7101,
        "orchestrator": 7102,
        "scheduler": 7103,
        "scheduler-2": 7113,
        "scaler": 7105,
    }
    assert plan.units["scheduler-2"].ports["metrics"] == 8113


def test_no_port_is_given_twice_however_large_the_mesh() -> None:
    names = ("enqueue", "orchestrator", "scheduler", "scaler")
    settings = MeshSettings(shards=10, replicas=dict.fromkeys(names, 8))
    plan = Plan(Path("/mesh"), settings)
    ports = [port for unit in plan.units.values() for port in unit.ports.values()]
    assert len(ports) == len(set(ports))


def test_a_base_port_moves_every_port() -> None:
    here, there = MeshSettings(), MeshSettings(base_port=9100)
    assert {there.port(key) - here.port(key) for key in here.port_keys()} == {2000}


def test_an_address_of_a_server_means_that_none_is_started() -> None:
    environ = {
        "JOBMESH_POSTGRES_URLS": "postgresql://a:1,a:2/x, postgresql://b/y",
        "JOBMESH_NATS_URL": "nats://c:1",
        "JOBMESH_ETCD_ENDPOINTS": "d:2,e:3",
        "JOBMESH_S3_ENDPOINT": "http://f:4",
        "JOBMESH_S3_ACCESS_KEY": "g",
    }
    plan = Plan(Path("/mesh"), MeshSettings.from_environment(environ))
    assert plan.servers == []
    variables = plan.environment("shards", "s3")
    assert variables["JOBMESH_SHARD_DSNS"] == "s0=postgresql://a:1,a:2/x,s1=postgresql://b/y"
    assert variables["JOBMESH_ETCD_ENDPOINTS"] == "d:2,e:3"
    assert variables["JOBMESH_S3_ENDPOINT"] == "http://f:4"
    assert variables["JOBMESH_S3_ACCESS_KEY"] == "g"


@pytest.mark.parametrize(
    ("name", "value"),
    [("JOBMESH_BASE_PORT", "many"), ("JOBMESH_BASE_PORT", "80"), ("JOBMESH_LOCAL_SHARDS", "0")],
)
def test_a_value_that_cannot_be_used_is_refused_in_one_line(name: str, value: str) -> None:
    with pytest.raises(LocalError) as caught:
        MeshSettings.from_environment({name: value})
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)


def test_replicas_are_read_from_the_environment() -> None:
    settings = MeshSettings.from_environment({"JOBMESH_LOCAL_SCHEDULERS": "5"})
    assert settings.replicas["scheduler"] == 5
    assert settings.replicas["enqueue"] == 1


def test_settings_survive_the_state_file() -> None:
    settings = MeshSettings(shards=2, environment={"A": "b"}).with_ports(iter(range(5000)).__next__)
    assert MeshSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_the_folder_is_told_or_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_home({}) == tmp_path / ".jobmesh"
    assert default_home({"JOBMESH_HOME": "/data/mesh"}) == Path("/data/mesh")
