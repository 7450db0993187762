"""up, down, status, logs, worker: the mesh on this machine.

`localmesh` does the work and tells its steps; here they are shown.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.failures import UNAVAILABLE, CommandError
from jobmesh.cli.options import AsJson, Home, parse_app
from jobmesh.cli.screen import Screen, columns
from jobmesh.cli.steps import StepView
from jobmesh.times import human, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from localmesh.plan import Plan
    from localmesh.settings import MeshSettings
    from localmesh.status import Row
    from rich.text import Text

#: What to try next: where the examples have pools, and where nothing is served yet.
EXAMPLE_COMMANDS = (
    "submit primes --input '{\"below\": 2000000}' --wait",
    "submit echo --every 10s --name tick",
    "pool watch",
)
COMMANDS = ("worker --app MODULE", "type list", "doctor")
WAY_OUT = "start one: jobmesh up, or name the folder of one: --home, JOBMESH_HOME"


def up(
    home: Home = None,
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Make pools for the examples, run one job.")
    ] = True,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, max=10, help="How many Postgres shards.", show_default="those it has, or 3"
        ),
    ] = None,
    base_port: Annotated[
        int | None, typer.Option(help="First of the ports to use.", show_default="7100")
    ] = None,
) -> None:
    """Start a mesh here: servers, services, a first job.

    Needs no docker and no root. Quick and harmless when it runs already: what is ready is kept,
    what is missing is started.
    """
    from localmesh.mesh import up as bring_up

    screen = Screen()
    folder = connect.home_folder(home)
    settings = _settings(folder, shards, base_port)
    with StepView(screen) as view:
        report = bring_up(folder, settings, view)
    kept = f", {len(report.kept)} were up" if report.kept else ""
    screen.note(f"{len(report.started)} started{kept} in {human(report.seconds)}")
    if demo:
        from jobmesh.cli.demo import run_demo

        connect.run(run_demo(screen, report.plan))
    _show_addresses(screen, report.plan)
    _show_next(screen, EXAMPLE_COMMANDS if demo else COMMANDS)


def _settings(home: Path, shards: int | None, base_port: int | None) -> MeshSettings:
    from localmesh.settings import MeshSettings
    from localmesh.state import StateFile

    settings = MeshSettings.from_environment(os.environ)
    saved = StateFile(home).load().settings
    if shards is None and saved is not None and "JOBMESH_LOCAL_SHARDS" not in os.environ:
        shards = saved.shards
    if shards is not None:
        settings = replace(settings, shards=shards)
    if base_port is not None:
        settings = replace(settings, base_port=base_port)
    return settings


def _show_addresses(screen: Screen, plan: Plan) -> None:
    address = plan.targets("enqueue")[0]
    rows = [
        ("submit and watch jobs", f"{address}   gRPC, with reflection"),
        ("pools and scaling", plan.targets("scaler")[0]),
        ("shards", plan.targets("orchestrator")[0]),
        ("metrics", f"http://127.0.0.1:{plan.settings.port('enqueue.metrics')}/metrics"),
        ("data and logs", str(plan.home)),
    ]
    screen.text("")
    screen.show(columns(rows))


def _show_next(screen: Screen, commands: Sequence[str]) -> None:
    screen.text("\ntry next:")
    for command in commands:
        screen.text(f"  {_own_name()} {command}")


def _own_name() -> str:
    """How to call this command again from here: by name if the shell finds it, else by path."""
    if shutil.which("jobmesh"):
        return "jobmesh"
    own = Path(sys.argv[0])
    if own.name == "__main__.py":
        return "python -m jobmesh.cli"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def down(
    home: Home = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove all its data too.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="SPAN", help="How long running jobs may finish.")
    ] = "10s",
) -> None:
    """Stop the mesh; its data stays unless --clean."""
    from localmesh import mesh

    screen = Screen()
    work = mesh.clean if clean else mesh.down
    folder = connect.home_folder(home)
    if not folder.exists():
        screen.note(f"there is no mesh in {folder}")
        return
    with StepView(screen) as view:
        work(folder, view, seconds(grace))
    screen.note("down, all data removed" if clean else "down; the data stays for the next up")


def status(home: Home = None, json: AsJson = False) -> None:
    """Show every process, shard and pool of the mesh. Exit code 3 if a process is not ready."""
    from localmesh.status import status as look

    screen = Screen(json)
    folder = connect.home_folder(home)
    rows = look(folder) if folder.exists() else []
    if not any(row.alive for row in rows):
        raise CommandError(f"no mesh runs in {folder}", WAY_OUT, UNAVAILABLE)
    if screen.as_json:
        for row in rows:
            screen.line(_as_json(row))
    else:
        headings = ("NAME", "KIND", "STATE", "PID", "ADDRESS", "CPU", "MEMORY", "UP")
        screen.table(headings, map(_status_row, rows))
    _show_inside(screen, folder)
    if not all(row.ready for row in rows):
        raise typer.Exit(UNAVAILABLE)


def _show_inside(screen: Screen, folder: Path) -> None:
    """The shards and the pools, as far as their services answer."""
    from localmesh.mesh import LocalMesh

    from jobmesh.errors import JobmeshError

    plan = LocalMesh.saved(folder).plan
    for kind, service, look, headings, row_of in (
        ("shard", "orchestrator", _shards, render.SHARD_COLUMNS, render.shard_row),
        ("pool", "scaler", _pools, render.POOL_COLUMNS, render.pool_row),
    ):
        try:
            found = connect.run(look(plan.targets(service)[0]))
        except JobmeshError as error:
            screen.note(f"{kind}s: {error}")
            continue
        if screen.as_json:
            for one in found:
                screen.line({"kind": kind, **screen.as_dict(one)})
        elif found:
            screen.text("")
            screen.table(headings, map(row_of, found))


async def _shards(address: str) -> Sequence[Any]:
    from jobmesh.client.caller import Caller
    from jobmesh.client.operators import topology

    return list((await topology(Caller(address, attempts=1))).shards)


async def _pools(address: str) -> Sequence[Any]:
    from jobmesh.client.caller import Caller
    from jobmesh.client.operators import Pools

    async with Pools(Caller(address, attempts=1)) as pools:
        return [pool async for pool in pools.list()]


def _condition(row: Row) -> str:
    return "ready" if row.ready else "alive" if row.alive else "down"


def _status_row(row: Row) -> tuple[str | Text, ...]:
    port = next(iter(row.ports.values()), None)
    return (
        row.name,
        row.kind,
        render.styled(_condition(row)),
        str(row.pid or ""),
        f"127.0.0.1:{port}" if port else "",
        f"{row.cpu_seconds:.1f} s",
        f"{row.memory_bytes >> 20} MB",
        human(row.uptime_seconds) if row.alive else "",
    )


def _as_json(row: Row) -> Mapping[str, object]:
    return {
        "name": row.name,
        "kind": row.kind,
        "state": _condition(row),
        "pid": row.pid,
        "ports": dict(row.ports),
        "cpuSeconds": round(row.cpu_seconds, 3),
        "memoryBytes": row.memory_bytes,
        "uptimeSeconds": round(row.uptime_seconds, 1),
    }


def mesh_logs(service: str, *, follow: bool, lines: int, home: Path | None) -> None:
    """Print the logs of the services on this machine; `logs` is the command."""
    from localmesh.logs import tail_logs

    screen = Screen()
    for line in tail_logs(connect.home_folder(home), service, follow=follow, lines=lines):
        screen.text(f"{line.name:<14} {line.text}" if not service else line.text)


def worker(
    app: Annotated[
        str | None, typer.Option("--app", metavar="MODULE[:APP]", help="Where the handlers are.")
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=PROGRAM", help="A program that serves a type; repeatable."),
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Let executors in other languages attach.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where it answers.", show_default="any free port"),
    ] = None,
    types: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these types.", show_default="all")
    ] = None,
    capacity: Annotated[int | None, typer.Option(min=1, help="Attempts at once per type.")] = None,
    home: Home = None,
) -> None:
    """Run a worker here: serve a module's handlers, or programs, until Ctrl-C.

    It joins the mesh of this folder, or the one that the JOBMESH_… variables name.
    """
    app = parse_app(app)
    if app is None and not command and not attach:
        raise ValueError("give --app, --command or --attach: nothing would be served")
    _require_worker()
    arguments = [sys.executable, "-m", "services.worker", "--app", app or ""]
    if command:
        arguments += ["--commands", _commands(command)]
    if attach:
        arguments += ["--attach"]
    if listen is not None:
        arguments += ["--listen", listen]
    if types is not None:
        arguments += ["--types", types]
    if capacity is not None:
        arguments += ["--capacity", str(capacity)]
    environment = {**os.environ, **_mesh_environment(connect.home_folder(home))}
    if sys.stderr.isatty():
        environment.setdefault("JOBMESH_LOG_FORMAT", "console")
    sys.stdout.flush()
    os.execve(arguments[0], arguments, environment)


def _require_worker() -> None:
    from importlib.util import find_spec

    if find_spec("nats") is None or find_spec("prometheus_client") is None:
        way_out = "pip install '/path/to/jobmesh[worker,cli]'"
        raise CommandError("the worker is not installed", way_out)


def _commands(given: list[str]) -> str:
    """`type=program arguments`, each, as the worker's setting; ValueError names what is none."""
    from json import dumps

    from jobmesh.commands import command_of

    found: dict[str, list[str]] = {}
    for text in given:
        type, separator, line = text.partition("=")
        if not separator:
            raise ValueError(f"--command: {text!r} is not TYPE=PROGRAM")
        if type in found:
            raise ValueError(f"--command: {type!r} stands twice")
        found[type] = list(command_of(type, line).argv)
    return dumps(found)


def _mesh_environment(home: Path) -> dict[str, str]:
    """How a worker finds the local mesh; nothing if the variables are set already."""
    if "JOBMESH_NATS_URL" in os.environ:
        return {}
    if not (home / "state.json").exists():
        raise CommandError(f"no mesh runs in {home}", WAY_OUT, UNAVAILABLE)
    from localmesh.mesh import LocalMesh

    return LocalMesh.saved(home).plan.environment("s3", "orchestrator", "workers")
