"""get, list, watch, output: what everybody does with jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.changes import choice
from jobmesh.cli.failures import FAILED, CommandError
from jobmesh.cli.follow import follow, follow_all
from jobmesh.cli.options import (
    DEFAULT_NAMESPACE,
    Address,
    AsJson,
    JobId,
    Labels,
    Namespace,
    OfSchedule,
    Since,
    Until,
    parse_labels,
)
from jobmesh.cli.screen import Screen, columns
from jobmesh.cli.tracebacks import last_traceback

if TYPE_CHECKING:
    from jobmesh.client import AsyncClient
    from jobmesh.model import Job


def get(
    id: JobId,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Show one job: state, times, attempts, input and output, and where its handler failed."""
    connect.run(_get(connect.client(address, namespace), Screen(json), id))


async def _get(client: AsyncClient, screen: Screen, job_id: str) -> None:
    async with client:
        job = await client.get(job_id, full=True)
    if screen.as_json:
        screen.message(job.message)
        return
    screen.show(columns(render.job_details(job, datetime.now(UTC))))
    if job.attempts:
        screen.text("")
        if (left_out := job.attempts[0].dispatch_no - 1) > 0:
            screen.text(f"({left_out} earlier dispatches are not shown)")
        screen.table(render.ATTEMPT_COLUMNS, render.attempt_rows(job))
    if where := last_traceback(job):
        screen.text(f"\n{where}")


def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only this state; may be repeated.")
    ] = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", "-t", help="Only this type; may be repeated.")
    ] = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    schedule: OfSchedule = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    chosen = choice(state, type, label, since, until, schedule)
    connect.run(_list(connect.client(address, namespace), Screen(json), chosen, limit))


async def _list(
    client: AsyncClient,
    screen: Screen,
    chosen: dict[str, Any],
    limit: int,
) -> None:
    jobs: list[Job] = []
    missing: set[str] = set()
    async with client:
        async for page in client.pages(**chosen, page_size=min(limit, 200)):
            jobs += page.jobs[: limit - len(jobs)]
            missing.update(page.missing_shards)
            if len(jobs) >= limit:
                break
    if screen.as_json:
        for job in jobs:
            screen.message(job.message)
    elif jobs:
        now = datetime.now(UTC)
        width = len(render.JOB_COLUMNS) - (screen.out.width < render.NOTE_WIDTH)
        rows = (render.job_row(job, now)[:width] for job in jobs)
        screen.table(render.JOB_COLUMNS[:width], rows)
    else:
        screen.note("no jobs")
    if missing:
        screen.note(f"jobs of shards that are away are missing: {', '.join(sorted(missing))}")


def watch(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="The jobs' ids.")
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option("--type", "-t", help="All jobs of this type; may be repeated."),
    ] = None,
    label: Labels = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", help="Only transitions into this state; may be repeated."),
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Follow jobs, over lost connections.

    By id: to their end; exit code 0 if all SUCCEEDED. By type, label or state: what lives, then
    every transition, until interrupted.
    """
    by_filter = bool(type or label or state)
    if bool(ids) == by_filter:
        raise ValueError("give ids, or some of --type, --label and --state")

    async def run(screen: Screen) -> bool:
        async with connect.client(address, namespace) as client:
            if by_filter:
                labels = parse_labels(label)
                await follow_all(client, screen, state or [], type or [], labels)
                return True
            states = await follow(client, ids or [], screen, screen.out)
        return all(state == "SUCCEEDED" for state in states.values())

    if not connect.run(run(Screen(json))):
        raise typer.Exit(FAILED)


def output(
    id: JobId,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write it here.")
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
) -> None:
    """Print the output of a job that SUCCEEDED, or write it to a file."""

    async def run(screen: Screen) -> None:
        async with connect.client(address, namespace) as client:
            job = await client.get(id)
            if job.state != "SUCCEEDED":
                raise CommandError(f"job {id} has no output: it is {job.state}")
            if file is not None:
                kind = await _download(client, id, file)
                screen.note(f"wrote {file} ({kind or 'bytes'})")
                return
            screen.bytes(await client.job(id).read())

    connect.run(run(Screen()))


async def _download(client: AsyncClient, job_id: str, file: Path) -> str:
    try:
        return await client.download(job_id, file)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from None
