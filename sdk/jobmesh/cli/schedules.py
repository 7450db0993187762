"""schedule create|get|list|update|pause|resume|delete|trigger|preview|backfill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from jobmesh.cli import connect, render, timeline
from jobmesh.cli import job_options as per_job
from jobmesh.cli import schedule_options as flags
from jobmesh.cli.inputs import read_input
from jobmesh.cli.options import (
    DEFAULT_NAMESPACE,
    Address,
    AsJson,
    Labels,
    Namespace,
)
from jobmesh.cli.retry_options import (
    FirstWait,
    Growth,
    Jitter,
    NoRetryOn,
    Retries,
    RetryOn,
    Waits,
    Window,
)
from jobmesh.cli.screen import Screen, columns
from jobmesh.times import instant

if TYPE_CHECKING:
    from jobmesh.client import AsyncSchedules
    from jobmesh.client.timing import ScheduleOptions
    from jobmesh.model import Backfill, Job, Schedule, SchedulePreview

schedule_app = typer.Typer(no_args_is_help=True, help="Make, look at, change and run schedules.")

#: Runs that `get` shows.
COMING = 5

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Input = Annotated[
    str | None,
    typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="What each job is given."),
]


@schedule_app.command()
def create(
    name: Name,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of its jobs.")],
    input: Input = None,
    every: flags.Every = None,
    phase: flags.Phase = None,
    cron: flags.Cron = None,
    time_zone: flags.TimeZone = None,
    exclude: flags.Exclude = None,
    start: flags.Start = None,
    end: flags.End = None,
    max_runs: flags.MaxRuns = None,
    jitter: flags.Jitter = None,
    overlap: flags.Overlap = None,
    catch_up: flags.CatchUp = None,
    catch_up_window: flags.CatchUpWindow = None,
    dst_gap: flags.DstGap = None,
    dst_overlap: flags.DstOverlap = None,
    pause_on_failure: flags.PauseOnFailure = None,
    priority: per_job.Priority = None,
    retries: Retries = None,
    backoff: Growth = None,
    retry_delay: FirstWait = None,
    retry_waits: Waits = None,
    retry_jitter: Jitter = None,
    retry_window: Window = None,
    retry_on: RetryOn = None,
    no_retry_on: NoRetryOn = None,
    timeout: per_job.Timeout = None,
    start_timeout: per_job.StartTimeout = None,
    progress_timeout: per_job.ProgressTimeout = None,
    total_timeout: per_job.TotalTimeout = None,
    concurrency_key: per_job.ConcurrencyKey = None,
    label: Labels = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Make a schedule: one job of TYPE per nominal time."""
    said = dict(locals())
    given = read_input(input)
    options = _options(said)
    options["content_type"] = given.content_type

    async def make() -> Schedule:
        client = connect.client(address, namespace)
        async with client, connect.near_types_named(client, type):
            return await client.schedules.create(name, type, given.content, **options)

    _show(Screen(json), [connect.run(make())])


@schedule_app.command()
def update(
    name: Name,
    input: Input = None,
    every: flags.Every = None,
    phase: flags.Phase = None,
    cron: flags.Cron = None,
    time_zone: flags.TimeZone = None,
    exclude: flags.Exclude = None,
    start: flags.Start = None,
    end: flags.End = None,
    max_runs: flags.MaxRuns = None,
    jitter: flags.Jitter = None,
    overlap: flags.Overlap = None,
    catch_up: flags.CatchUp = None,
    catch_up_window: flags.CatchUpWindow = None,
    dst_gap: flags.DstGap = None,
    dst_overlap: flags.DstOverlap = None,
    pause_on_failure: flags.PauseOnFailure = None,
    priority: per_job.Priority = None,
    retries: Retries = None,
    backoff: Growth = None,
    retry_delay: FirstWait = None,
    retry_waits: Waits = None,
    retry_jitter: Jitter = None,
    retry_window: Window = None,
    retry_on: RetryOn = None,
    no_retry_on: NoRetryOn = None,
    timeout: per_job.Timeout = None,
    start_timeout: per_job.StartTimeout = None,
    progress_timeout: per_job.ProgressTimeout = None,
    total_timeout: per_job.TotalTimeout = None,
    concurrency_key: per_job.ConcurrencyKey = None,
    label: Labels = None,
    etag: Annotated[str, typer.Option(help="Only if this is its etag (schedule get --json).")] = "",
    allow_many: flags.AllowMany = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Change what is said and nothing else; 'none' takes a time or span back."""
    options = _options(dict(locals()), has_rules=True)
    changes: dict[str, Any] = {"etag": etag, "allow_many": allow_many}
    if input is not None:
        given = read_input(input)
        changes["input"], options["content_type"] = given.content, given.content_type

    def change(schedules: AsyncSchedules) -> Awaitable[Schedule]:
        return schedules.update(name, **changes, **options)

    _act(address, namespace, json, change)


@schedule_app.command("list")
def list_(
    namespace: Namespace = DEFAULT_NAMESPACE, address: Address = None, json: AsJson = False
) -> None:
    """List schedules by name."""

    async def run() -> list[Schedule]:
        async with connect.client(address, namespace) as client:
            return [schedule async for schedule in client.schedules.list()]

    found = connect.run(run())
    _show(Screen(json), found)
    if not found and not json:
        Screen().note("no schedules — make one: jobmesh schedule create tick echo --every 10s")


@schedule_app.command()
def get(
    name: Name,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Show one schedule, with its coming runs."""

    async def run() -> tuple[Schedule, SchedulePreview | None]:
        async with connect.client(address, namespace) as client:
            found = await client.schedules.get(name)
            if json or found.paused:
                return found, None
            return found, await client.schedules.preview(name, limit=COMING)

    schedule, coming = connect.run(run())
    screen = Screen(json)
    if json:
        screen.message(schedule.message)
        return
    zone = timeline.zone_of(render.schedule_message(schedule))
    screen.show(columns(render.schedule_details(schedule, zone)))
    if coming is not None and coming.times:
        screen.text(timeline.strip(coming.times, datetime.now(UTC)))


@schedule_app.command()
def pause(
    name: Name,
    note: Annotated[str, typer.Option(help="Why.")] = "",
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Let it make no more jobs until it is resumed."""
    _act(address, namespace, json, lambda schedules: schedules.pause(name, note=note))


@schedule_app.command()
def resume(
    name: Name,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Let it make jobs again."""
    _act(address, namespace, json, lambda schedules: schedules.resume(name))


@schedule_app.command()
def delete(name: Name, namespace: Namespace = DEFAULT_NAMESPACE, address: Address = None) -> None:
    """Remove it. Jobs it has made are not touched."""

    async def run() -> None:
        async with connect.client(address, namespace) as client:
            await client.schedules.delete(name)

    connect.run(run())
    Screen().note(f"deleted {name}")


@schedule_app.command()
def trigger(
    name: Name,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Make one job now, whatever the time, a pause or an earlier run; prints its id."""

    async def run() -> Job:
        async with connect.client(address, namespace) as client:
            return await client.schedules.trigger(name)

    job, screen = connect.run(run()), Screen(json)
    if json:
        screen.message(job.message)
    else:
        screen.text(job.id)


@schedule_app.command()
def preview(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="A schedule; or say --cron or --every.")
    ] = "",
    every: flags.Every = None,
    phase: flags.Phase = None,
    cron: flags.Cron = None,
    time_zone: flags.TimeZone = None,
    exclude: flags.Exclude = None,
    start: flags.Start = None,
    end: flags.End = None,
    max_runs: flags.MaxRuns = None,
    dst_gap: flags.DstGap = None,
    dst_overlap: flags.DstOverlap = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many runs.")] = 10,
    after: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="From when on.", show_default="now")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="At most five years on.")
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Show when it is going to run, here and in its zone, with the nights the clocks change."""
    rules = ("every", "phase", "cron", "time_zone", "exclude", "start", "end", "max_runs")
    said = dict(locals())
    proposed = flags.timing({key: said[key] for key in (*rules, "dst_gap", "dst_overlap")})
    now = datetime.now(UTC)

    async def run() -> tuple[SchedulePreview, Schedule | None]:
        async with connect.client(address, namespace) as client:
            found = await client.schedules.preview(
                name,
                after=instant(after, now) if after else None,
                until=instant(until, now) if until else None,
                limit=limit,
                **proposed,
            )
            return found, await client.schedules.get(name) if name and not proposed else None

    coming, known = connect.run(run())
    zone = timeline.named_zone(time_zone or "")
    if known is not None:
        zone = timeline.zone_of(render.schedule_message(known))
    screen = Screen(json)
    if json:
        screen.message(coming.message)
        return
    screen.table(timeline.COLUMNS, timeline.rows(coming, zone, now))
    screen.note(timeline.strip(coming.times, now) or "no run in that time")
    for night in timeline.skipped(coming):
        screen.note(f"clocks change: {night}")


@schedule_app.command()
def backfill(
    name: Name,
    after: Annotated[str, typer.Option("--from", metavar="TIME", help="From when on.")],
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Until when, exclusive.", show_default="now")
    ] = "now",
    allow_many: flags.AllowMany = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
) -> None:
    """Make the jobs of past times that made none, under its overlap policy. Safe to repeat."""
    now = datetime.now(UTC)

    async def run() -> tuple[Backfill, Schedule]:
        async with connect.client(address, namespace) as client:
            span = instant(after, now), instant(until, now)
            done = await client.schedules.backfill(name, *span, allow_many=allow_many)
            return done, await client.schedules.get(name)

    done, schedule = connect.run(run())
    words = f"{done.count} made"
    words += f", {done.waiting} waiting for their turn" if done.waiting else ""
    screen = Screen()
    screen.text(words + (f", {done.left_out} left out" if done.left_out else ""))
    if done.left_out:
        screen.note(_why_left_out(schedule))


def _why_left_out(schedule: Schedule) -> str:
    policy = render.overlap_of(schedule)
    why = f"left out by the overlap policy, {policy}: the jobs of a backfill overlap each other"
    if policy == "buffer-all":  # then more than may wait
        return why
    way = f"jobmesh schedule update {schedule.name} --overlap buffer-all, and backfill again"
    return f"{why} — to have them all: {way}"


def _options(said: dict[str, Any], *, has_rules: bool = False) -> ScheduleOptions:
    """What was said of the options of a schedule and its jobs."""
    from jobmesh.client.timing import TIMING

    timing = flags.timing({key: said.get(key) for key in TIMING}, has_rules=has_rules)
    return cast("ScheduleOptions", {**timing, **per_job.job_options(said)})


def _act(
    address: str | None,
    namespace: str,
    json: bool,
    work: Callable[[AsyncSchedules], Awaitable[Schedule]],
) -> None:
    """Does one thing to one schedule and shows it as it is then."""

    async def run() -> Schedule:
        async with connect.client(address, namespace) as client:
            return await work(client.schedules)

    _show(Screen(json), [connect.run(run())])


def _show(screen: Screen, schedules: list[Schedule]) -> None:
    if screen.as_json:
        for schedule in schedules:
            screen.message(schedule.message)
    elif schedules:
        now = datetime.now(UTC)
        rows = (render.schedule_row(schedule, now) for schedule in schedules)
        screen.table(render.SCHEDULE_COLUMNS, rows)
