"""explain, count, cancel, retry, update: what is done to jobs that exist, to one or to many."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobmesh.cli import connect
from jobmesh.cli.failures import CommandError
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
    parse_past,
)
from jobmesh.cli.screen import Screen
from jobmesh.times import instant

if TYPE_CHECKING:
    from jobmesh.client import AsyncClient
    from jobmesh.model import Explanation

States = Annotated[
    list[str] | None, typer.Option("--state", "-s", help="Only this state; may be repeated.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", "-t", help="Only this type; may be repeated.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
OneOrMany = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The job's id; without it, say which jobs.")
]
#: The options that say which jobs are meant.
CHOOSING = "--state, --type, --label, --schedule, --since, --until"


def explain(
    id: JobId,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Say why a job is not running, its place in the queue, and when it may start."""

    async def run() -> Explanation:
        async with connect.client(address, namespace) as client:
            return await client.explain(id)

    screen, found = Screen(json), connect.run(run())
    if screen.as_json:
        screen.message(found.message)
    else:
        screen.text(f"{found.reason}: {found.text}")


def count(
    state: States = None,
    type: Types = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    schedule: OfSchedule = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Count jobs by state."""
    chosen = choice(state, type, label, since, until, schedule)

    async def run() -> dict[Any, int]:
        async with connect.client(address, namespace) as client:
            return await client.count(**chosen)

    screen, found = Screen(json), connect.run(run())
    if screen.as_json:
        screen.line({str(name): number for name, number in found.items()})
    elif found:
        rows = [(str(name), str(number)) for name, number in found.items()]
        screen.table(("STATE", "JOBS"), rows)
    else:
        screen.note("no jobs")


def cancel(
    id: OneOrMany = None,
    state: States = None,
    type: Types = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    schedule: OfSchedule = "",
    reason: Annotated[str, typer.Option(help="Why; kept with the event.")] = "",
    dry_run: DryRun = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Cancel a job (exit code 1 if it had ended before), or all that match."""
    chosen = choice(state, type, label, since, until, schedule)
    _check_either(id, chosen, dry_run)
    client, screen = connect.client(address, namespace), Screen(json)
    if id is not None:
        connect.run(_cancel(client, screen, id, reason))
        return

    async def run() -> int:
        async with client:
            return await client.cancel_many(reason=reason, dry_run=dry_run, **chosen)

    _say(screen, connect.run(run()), "would be cancelled" if dry_run else "cancelled")


async def _cancel(client: AsyncClient, screen: Screen, job_id: str, reason: str) -> None:
    async with client:
        won = await client.cancel(job_id, reason=reason)
        job = await client.get(job_id)
    if screen.as_json:
        screen.message(job.message)
    elif won:
        screen.note(f"cancelled {job_id}")
    elif job.state == "CANCELLED":
        screen.note(f"{job_id} was cancelled before")
    if not won and job.state != "CANCELLED":
        raise CommandError(f"job {job_id} had ended before: it is {job.state}")


def retry(
    id: OneOrMany = None,
    state: States = None,
    type: Types = None,
    label: Labels = None,
    since: Since = None,
    until: Until = None,
    schedule: OfSchedule = "",
    dry_run: DryRun = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Start a job that ended without success over, as a new job; or all that match."""
    chosen = choice(state, type, label, since, until, schedule)
    _check_either(id, chosen, dry_run)
    client, screen = connect.client(address, namespace), Screen(json)
    if id is not None:
        connect.run(_retry(client, screen, id))
        return

    async def run() -> int:
        async with client:
            return await client.retry_many(dry_run=dry_run, **chosen)

    _say(screen, connect.run(run()), "would be started over" if dry_run else "started over")


async def _retry(client: AsyncClient, screen: Screen, job_id: str) -> None:
    async with client:
        handle = await client.retry(job_id)
        job = await handle.get()
    if screen.as_json:
        screen.message(job.message)
        return
    screen.text(handle.id)
    if handle.existing:
        screen.note(f"an earlier retry of {job_id} has not ended: it is {job.state}")


def update(
    id: JobId,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it is due: ISO time, 'in 5m' or now.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", "-p", min=0, max=9, help="Higher starts first.")
    ] = None,
    label: Labels = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Take all labels off.")] = False,
    version: Annotated[
        int, typer.Option(min=0, help="Only if the job still has this version.")
    ] = 0,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Change time, priority or labels of a job that waits."""
    labels = {} if no_labels else parse_labels(label) or None
    now = at is not None and at.strip().lower() == "now"
    due = instant(at, datetime.now(UTC)) if at is not None and not now else None

    async def run(screen: Screen) -> None:
        async with connect.client(address, namespace) as client:
            job = await client.update(
                id, at=due, now=now, priority=priority, labels=labels, version=version
            )
        if screen.as_json:
            screen.message(job.message)
        else:
            screen.note(f"updated {id}: version {job.version}")

    connect.run(run(Screen(json)))


def choice(
    states: list[str] | None,
    types: list[str] | None,
    labels: list[str] | None,
    since: str | None,
    until: str | None,
    schedule: str,
) -> dict[str, Any]:
    """Which jobs, as the client takes it."""
    return {
        "states": states or [],
        "types": types or [],
        "labels": parse_labels(labels),
        "since": parse_past(since),
        "until": parse_past(until),
        "schedule": schedule,
    }


def _check_either(job_id: str | None, chosen: dict[str, Any], dry_run: bool) -> None:
    """An id, or a filter that says something: never everything by accident."""
    many = any(chosen.values())
    if job_id is not None and (many or dry_run):
        raise ValueError(f"give an ID, or some of {CHOOSING}, not both")
    if job_id is None and not many:
        raise ValueError(f"give an ID, or say which jobs with {CHOOSING}")


def _say(screen: Screen, number: int, done: str) -> None:
    if screen.as_json:
        screen.line({"count": number})
    else:
        screen.text(f"{number} {'job' if number == 1 else 'jobs'} {done}")
