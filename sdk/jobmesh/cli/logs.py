"""logs: what the handlers of a job logged, or what the services of the mesh on this machine log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from jobmesh.cli import connect
from jobmesh.cli.local import mesh_logs
from jobmesh.cli.options import DEFAULT_NAMESPACE, Address, AsJson, Home, Namespace
from jobmesh.cli.screen import Screen

if TYPE_CHECKING:
    from jobmesh.model import LogLine


def logs(
    whose: Annotated[
        str,
        typer.Argument(
            metavar="[JOB|SERVICE]",
            help="A job's id; or a service of the local mesh: enqueue, scheduler, shard-0, …",
            show_default="all services",
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    attempt: Annotated[
        int, typer.Option(min=0, help="Of a job: only this attempt.", show_default="all")
    ] = 0,
    lines: Annotated[
        int, typer.Option("--lines", min=0, help="Of services: how many of the last.")
    ] = 100,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
    home: Home = None,
) -> None:
    """Print what a job's handlers logged, or what the services on this machine log.

    Of a job: all lines so far; with --follow also those to come, over retries, until it has ended.
    """
    if not is_job_id(whose):
        if attempt or json:
            raise ValueError("--attempt and --json are for the log of a job: give its id")
        mesh_logs(whose, follow=follow, lines=lines, home=home)
        return

    async def run(screen: Screen) -> None:
        shown = 0
        async with connect.client(address, namespace) as client:
            async for line in client.job(whose).logs(attempt=attempt, follow=follow):
                _print(screen, line, first=line.dispatch_no != shown)
                shown = line.dispatch_no
        if not shown and not json:
            screen.note("no lines")

    connect.run(run(Screen(json)))


def is_job_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def _print(screen: Screen, line: LogLine, *, first: bool) -> None:
    if screen.as_json:
        screen.message(line.message)
        return
    if first:
        screen.note(f"attempt {line.attempt} (dispatch {line.dispatch_no})", style="dim")
    # In local time, like all times that commands show.
    time = "" if line.time is None else line.time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    screen.text(f"{time}  {line.text}")
