"""The tree of commands."""

from __future__ import annotations

import os
import sys

import typer

from jobmesh.cli import changes, doctor, jobs, local, logs, submit
from jobmesh.cli.failures import MeshGroup
from jobmesh.cli.operators import drain, shard_app
from jobmesh.cli.pools import pool_app
from jobmesh.cli.schedules import schedule_app
from jobmesh.cli.types import type_app

MESH, JOBS, OPERATIONS = "The mesh on this machine", "Jobs", "Operations"

app = typer.Typer(
    cls=MeshGroup,
    name="jobmesh",
    help="A distributed job scheduler and autoscaling job queue.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 unavailable, 4 out of time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: rich's would more than double the time it takes.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(rich_help_panel=MESH)(local.up)
app.command(rich_help_panel=MESH)(local.down)
app.command(rich_help_panel=MESH)(local.status)
app.command(rich_help_panel=MESH)(local.worker)
app.command(rich_help_panel=JOBS)(submit.submit)
app.command(rich_help_panel=JOBS)(jobs.get)
app.command("list", rich_help_panel=JOBS)(jobs.list_)
app.command(rich_help_panel=JOBS)(jobs.watch)
app.command(rich_help_panel=JOBS)(jobs.output)
app.command(rich_help_panel=JOBS)(logs.logs)
app.command(rich_help_panel=JOBS)(changes.explain)
app.command(rich_help_panel=JOBS)(changes.count)
app.command(rich_help_panel=JOBS)(changes.cancel)
app.command(rich_help_panel=JOBS)(changes.retry)
app.command(rich_help_panel=JOBS)(changes.update)
app.command(rich_help_panel=OPERATIONS)(doctor.doctor)
app.command(rich_help_panel=OPERATIONS)(drain)
app.add_typer(schedule_app, name="schedule", rich_help_panel=OPERATIONS)
app.add_typer(pool_app, name="pool", rich_help_panel=OPERATIONS)
app.add_typer(shard_app, name="shard", rich_help_panel=OPERATIONS)
app.add_typer(type_app, name="type", rich_help_panel=OPERATIONS)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"jobmesh {version('jobmesh')}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """The console script."""
    _open_streams()
    app()


def _open_streams() -> None:
    """Who closes an output (`>&-`) does not want it: Python has none then, and fails at a word."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
