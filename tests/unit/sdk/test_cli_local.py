"""The commands about the mesh on this machine, as far as they need none."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobmesh.cli import connect, local
from jobmesh.cli.app import app
from jobmesh.cli.failures import exit_code, explain
from jobmesh.cli.screen import Screen, console
from jobmesh.cli.steps import StepView
from localmesh.errors import LocalError, explained
from localmesh.mesh import UpReport
from localmesh.plan import Plan
from localmesh.progress import Step
from localmesh.settings import MeshSettings
from localmesh.state import State, StateFile
from typer.testing import CliRunner


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in list(os.environ):
        if variable.startswith("JOBMESH_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("JOBMESH_HOME", str(tmp_path / "mesh"))
    return tmp_path / "mesh"


def saved(home: Path, base_port: int) -> None:
    """A folder in which a mesh was up once."""
    home.mkdir()
    StateFile(home).save(State(MeshSettings(base_port=base_port)))


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", [["status"], ["worker", "--app", "x"]])
def test_without_a_mesh_the_way_out_is_up(home: Path, command: list[str]) -> None:
    code, out, err = run(*command)
    assert (code, out) == (3, "")
    assert err == f"error: no mesh runs in {home} — {local.WAY_OUT}\n"


def test_down_without_a_mesh_is_no_error(home: Path) -> None:
    code, _, err = run("down")
    assert code == 0
    assert "there is no mesh in" in err


def test_a_mesh_that_is_down_is_not_ready(home: Path) -> None:
    saved(home, 24999)
    assert run("status")[0] == 3


def test_logs_of_nobody_are_refused_naming_the_known(home: Path) -> None:
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "enqueue.log").write_text("one\ntwo\n")
    assert run("logs", "enqueue", "--lines", "1") == (0, "two\n", "")
    assert run("logs")[1].split() == ["enqueue", "one", "enqueue", "two"]
    code, _, err = run("logs", "nobody")
    assert code == 1
    assert "there is no log of 'nobody'" in err
    assert "enqueue" in err


def test_addresses_come_from_the_flag_the_variable_the_folder_or_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect.address_of("enqueue") == "127.0.0.1:7101"
    assert connect.address_of("scaler") == "127.0.0.1:7105"
    saved(home, 9000)
    assert connect.address_of("enqueue") == "127.0.0.1:9001"
    assert connect.address_of("orchestrator") == "127.0.0.1:9002"
    monkeypatch.setenv("JOBMESH_ADDRESS", "elsewhere:1")
    assert connect.address_of("enqueue") == "elsewhere:1"
    assert connect.address_of("enqueue", "here:2") == "here:2"


def test_what_to_try_next_is_what_would_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a demo no example has a pool."""

    def bring_up(home: Path, settings: MeshSettings, progress: object) -> UpReport:
        return UpReport(Plan(home, settings), (), (), 0.0)

    async def run_demo(screen: Screen, plan: Plan) -> None: ...

    monkeypatch.setattr("localmesh.mesh.up", bring_up)
    monkeypatch.setattr("jobmesh.cli.demo.run_demo", run_demo)
    assert "submit primes" in run("up")[1]
    bare = run("up", "--no-demo")[1]
    assert "submit primes" not in bare
    assert "worker --app MODULE" in bare


def test_a_worker_that_is_not_installed_is_told_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(home, 9000)
    monkeypatch.setattr(os, "execve", lambda *arguments: pytest.fail("it was started"))
    monkeypatch.setitem(sys.modules, "nats", None)
    code, _, err = run("worker", "--app", "shop")
    assert (code, err) == (
        1,
        "error: the worker is not installed — pip install '/path/to/jobmesh[worker,cli]'\n",
    )


def test_a_folder_that_is_not_writable_is_told_by_its_own_name(tmp_path: Path) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".writable"))
    with pytest.raises(LocalError, match=f"the folder {tmp_path} is not"), explained(tmp_path):
        raise refused


@dataclass
class Executed(Exception):  # noqa: N818 - not an error: the end of the test's road
    command: list[str]
    environment: dict[str, str]


def test_worker_becomes_a_worker_of_the_folders_mesh(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        raise Executed(command[1:], environment)

    saved(home, 9000)
    monkeypatch.setattr(os, "execve", execve)
    result = CliRunner().invoke(
        app,
        ["worker", "--app", "shop:app", "--types", "a,b", "--capacity", "3"],
        env={"JOBMESH_DEBUG": "1"},
    )
    executed = result.exception
    assert isinstance(executed, Executed)
    assert executed.command == [
        *("-m", "services.worker", "--app", "shop:app"),
        *("--types", "a,b", "--capacity", "3"),
    ]
    assert executed.environment["JOBMESH_ORCHESTRATOR_TARGET"] == "127.0.0.1:9002"
    assert executed.environment["JOBMESH_S3_ENDPOINT"] == "http://127.0.0.1:9062"
    assert executed.environment["JOBMESH_NATS_URL"].endswith(":9042")


def test_worker_is_given_programs_without_any_app(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        raise Executed(command[1:], environment)

    saved(home, 9000)
    monkeypatch.setattr(os, "execve", execve)
    line = ["worker", "--command", "count=wc -w", "--command", "cut=cut -d = -f 2", "--attach"]
    executed = CliRunner().invoke(app, line, env={"JOBMESH_DEBUG": "1"}).exception
    assert isinstance(executed, Executed)
    words = '{"count": ["wc", "-w"], "cut": ["cut", "-d", "=", "-f", "2"]}'
    assert executed.command == [
        *("-m", "services.worker", "--app", "", "--commands", words, "--attach"),
    ]
    line = ["worker", "--attach", "--listen", "127.0.0.1:7190"]
    executed = CliRunner().invoke(app, line, env={"JOBMESH_DEBUG": "1"}).exception
    assert isinstance(executed, Executed)
    assert executed.command == [
        *("-m", "services.worker", "--app", "", "--attach", "--listen", "127.0.0.1:7190"),
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "nothing would be served"),
        (["--command", "wc"], "is not TYPE=PROGRAM"),
        (["--command", "x=wc", "--command", "x=ls"], "stands twice"),
        (["--command", "x="], "names no program"),
        (["--command", "X Y=wc"], "is not allowed"),
    ],
)
def test_worker_refuses_programs_that_are_none(home: Path, flags: list[str], said: str) -> None:
    saved(home, 9000)
    result = CliRunner().invoke(app, ["worker", *flags], env={"JOBMESH_DEBUG": "1"})
    assert result.exit_code != 0
    assert said in str(result.exception)


def test_settings_come_from_flags_over_variables(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBMESH_BASE_PORT", "8000")
    assert local._settings(home, None, None).base_port == 8000
    assert local._settings(home, 2, 9000).shards == 2
    assert local._settings(home, 2, 9000).base_port == 9000


def test_steps_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with StepView(Screen()) as view:
        view(Step("nats", "server", "starting", 0.1))
        view(Step("nats", "server", "ready", 0.85))
        view(Step("etcd", "server", "kept", 0.9))
        view(Step("s3", "server", "killed", 1.0))
    assert capsys.readouterr().err.splitlines() == [
        "✓ nats           ready      750 ms",
        "✓ etcd           kept",
        "✗ s3             killed",
    ]


def test_the_moving_line_names_what_is_under_way() -> None:
    view = StepView(Screen())
    view(Step("nats", "server", "starting", 0.1))
    view(Step("etcd", "server", "starting", 0.1))
    assert view.__rich__().plain.startswith("starting nats, etcd  ")


def test_a_local_problem_is_said_in_its_own_words() -> None:
    error = LocalError("the disk is full", "Free some space")
    assert (explain(error), exit_code(error)) == ("the disk is full. Free some space", 1)
    assert "JOBMESH_DEBUG=1" in explain(RuntimeError("boom"))


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "COLORTERM"])
def test_a_pipe_is_never_coloured(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    pipe = io.StringIO()
    console(pipe).print("word", style="red")
    assert pipe.getvalue() == "word\n"


def test_json_lines_are_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(as_json=True)
    screen.line({"a": "ä\n"})
    screen.line({"b": 1})
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"a": "ä\n"}, {"b": 1}]


def test_workers_of_a_pool_start_where_its_maker_stands(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert connect.folder_for_workers(None) == str(tmp_path)
    assert connect.folder_for_workers("localhost:7105") == str(tmp_path)
    assert connect.folder_for_workers("scaler.example.org:7105") == ""


def test_up_keeps_the_number_of_shards_that_a_mesh_has(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []

    def bring_up(home: Path, settings: MeshSettings, progress: object) -> None:
        wanted.append(settings.shards)
        raise LocalError("that is enough", "")

    monkeypatch.setattr("localmesh.mesh.up", bring_up)
    run("up")
    home.mkdir()
    StateFile(home).save(State(MeshSettings(shards=2)))
    run("up")
    run("up", "--shards", "4")
    monkeypatch.setenv("JOBMESH_LOCAL_SHARDS", "5")
    run("up")
    assert wanted == [3, 2, 4, 5]
