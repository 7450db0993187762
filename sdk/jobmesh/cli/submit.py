"""submit: one job now or later, or a schedule of many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.failures import FAILED, OUT_OF_TIME, CommandError
from jobmesh.cli.follow import follow
from jobmesh.cli.inputs import Given, read_input
from jobmesh.cli.job_options import (
    ConcurrencyKey,
    Priority,
    ProgressTimeout,
    StartTimeout,
    Timeout,
    TotalTimeout,
    job_options,
)
from jobmesh.cli.many import submit_lines
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
from jobmesh.cli.screen import Screen
from jobmesh.cli.tie_options import AfterJobs, UniqueKey, parse_after, parse_unique
from jobmesh.times import human, instant, seconds

if TYPE_CHECKING:
    from jobmesh.client import AsyncClient, AsyncJobHandle
    from jobmesh.client.timing import Timing
    from jobmesh.model import Job, Schedule
    from jobmesh.options import EnqueueOptions


def submit(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type, such as echo.")],
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="What the handler is given."),
    ] = None,
    inputs_from: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Not one job: one per line of a file of JSON lines."),
    ] = None,
    chain: Annotated[
        bool, typer.Option("--chain", help="Of --inputs-from: each waits for the one before.")
    ] = False,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it is due: ISO time or 'in 5m'.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Due this long from now: 30s, 5m, 1h30m.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Not one job: a schedule that makes one this often."),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Not one job: a schedule at the times of '0 9 * * *'."),
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="Zone of --cron; UTC if not said.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the schedule.", show_default="TYPE-every-SPAN, TYPE-cron"),
    ] = None,
    retries: Retries = None,
    backoff: Growth = None,
    retry_delay: FirstWait = None,
    retry_waits: Waits = None,
    retry_jitter: Jitter = None,
    retry_window: Window = None,
    retry_on: RetryOn = None,
    no_retry_on: NoRetryOn = None,
    priority: Priority = None,
    label: Labels = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key gives the same job.")
    ] = None,
    timeout: Timeout = None,
    start_timeout: StartTimeout = None,
    progress_timeout: ProgressTimeout = None,
    total_timeout: TotalTimeout = None,
    expire: Annotated[
        str | None, typer.Option(metavar="TIME", help="EXPIRED if it has not started by then.")
    ] = None,
    concurrency_key: ConcurrencyKey = None,
    after: AfterJobs = None,
    unique: UniqueKey = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Follow it to its end and print its output.")
    ] = False,
    wait_timeout: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Wait no longer than this (exit code 4).")
    ] = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Submit a job, now, later, or again and again.

    Prints the job's id; with --wait its output (exit code 0 only if it SUCCEEDED). With
    --inputs-from, prints the ids in the order of the lines (exit code 1 if some were not stored).
    """
    said = dict(locals())
    if sum(option is not None for option in (at, delay, every, cron)) > 1:
        raise ValueError("give one of --at, --delay, --every and --cron")
    recurs = every is not None or cron is not None
    if recurs and (wait or wait_timeout):
        raise ValueError("--wait follows one job; a schedule (--every, --cron) has no end")
    if recurs and (after or unique or key or expire):
        raise ValueError("--after, --unique, --key, --expire: of one job, not of a schedule's")
    if time_zone is not None and cron is None:
        raise ValueError("--tz is the zone of --cron")
    if inputs_from is not None and (input or recurs or wait or wait_timeout or key or unique):
        raise ValueError("--inputs-from goes without --input, --every, --cron, --wait, and keys")
    if chain and inputs_from is None:
        raise ValueError("--chain is about the jobs of --inputs-from")
    given = read_input(input)
    options = cast("EnqueueOptions", job_options(said))
    options["content_type"] = given.content_type
    client, screen = connect.client(address, namespace), Screen(json)
    if recurs:
        rule = Rule(every, cron, time_zone)
        title = name or f"{type}-{rule.title}"
        connect.run(_create_schedule(client, screen, title, type, given, rule, options))
        return
    now = datetime.now(UTC)
    options["at"] = instant(at, now) if at else None
    options["expire"] = instant(expire, now) if expire else None
    options["delay"] = delay
    options["after"] = parse_after(after)
    if inputs_from is not None:
        connect.run(submit_lines(client, screen, type, inputs_from, options, chain))
        return
    options["idempotency_key"], options["unique"] = key, parse_unique(unique)
    patience = Patience(
        wait or wait_timeout is not None, seconds(wait_timeout) if wait_timeout else None
    )
    connect.run(_submit(client, screen, type, given, options, patience))


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule makes its jobs."""

    every: str | None
    cron: str | None
    time_zone: str | None

    @property
    def title(self) -> str:
        return "cron" if self.every is None else f"every-{self.every.replace(' ', '')}"

    def timing(self) -> Timing:
        if self.every is not None:
            return {"every": self.every}
        when: Timing = {"cron": self.cron or ""}
        if self.time_zone is not None:
            when["time_zone"] = self.time_zone
        return when


@dataclass(frozen=True, slots=True)
class Patience:
    """Whether to wait for the job's end, and for how long; None is for ever."""

    wait: bool
    seconds: float | None


async def _submit(
    client: AsyncClient,
    screen: Screen,
    type: str,
    given: Given,
    options: EnqueueOptions,
    patience: Patience,
) -> None:
    async with client:
        async with connect.near_types_named(client, type):
            handle = await client.enqueue(type, given.content, **options)
        if patience.wait:
            await _wait(client, handle, screen, patience.seconds)
        elif screen.as_json:
            screen.message((await handle.get(full=True)).message)
        else:
            screen.text(handle.id)
            if handle.existing:
                screen.note(_why_existing(options))
            elif screen.is_live:
                screen.note(f"follow it: jobmesh watch {handle.id}", style="dim")


def _why_existing(options: EnqueueOptions) -> str:
    if options.get("unique"):
        return "nothing new was stored: this job, which has not ended, holds the unique key"
    return "the idempotency key was known: this job was submitted before"


async def _wait(
    client: AsyncClient, handle: AsyncJobHandle, screen: Screen, limit: float | None
) -> None:
    import asyncio

    if screen.as_json:
        job = await handle.wait(limit)
        screen.message(job.message)
    else:
        screen.note(f"job {handle.id}")
        on = f"it goes on: jobmesh watch {handle.id}"
        try:
            async with asyncio.timeout(limit):
                await follow(client, [handle.id], screen, screen.err)
        except TimeoutError:
            text = f"job {handle.id} did not end within {limit:g} s"
            raise CommandError(text, on, OUT_OF_TIME) from None
        except asyncio.CancelledError:  # by Ctrl-C
            screen.note(on)
            raise
        job = await handle.get(full=True)
        screen.note(summary(job))
        if job.state == "SUCCEEDED":
            await _print_output(handle, screen, job)
    if job.state != "SUCCEEDED":
        raise typer.Exit(FAILED)


def summary(job: Job) -> str:
    """`SUCCEEDED in 31 ms (waited 12 ms, ran 19 ms)`."""
    words = f"{job.state}"
    if job.end_time and job.create_time:
        words += f" in {human((job.end_time - job.create_time).total_seconds())}"
    if job.end_time and job.start_time and job.due_time and job.attempt == 1:
        waited = max((job.start_time - job.due_time).total_seconds(), 0)
        ran = (job.end_time - job.start_time).total_seconds()
        words += f" (waited {human(waited)}, ran {human(ran)})"
    return words


async def _print_output(handle: AsyncJobHandle, screen: Screen, job: Job) -> None:
    """The output as it is. Only a terminal is spared a large one."""
    from jobmesh.v1.job_pb2 import Job as JobMessage

    assert isinstance(job.message, JobMessage)
    output = job.message.output
    if output.HasField("object") and screen.shows_results:
        screen.note(f"the output has {output.object.size_bytes:,} bytes: jobmesh output {job.id}")
    elif output.HasField("object"):
        screen.bytes(await handle.read())
    elif output.data:
        screen.bytes(output.data if output.data.endswith(b"\n") else output.data + b"\n")


async def _create_schedule(
    client: AsyncClient,
    screen: Screen,
    name: str,
    type: str,
    given: Given,
    rule: Rule,
    options: EnqueueOptions,
) -> None:
    async with client, connect.near_types_named(client, type):
        made = await client.schedules.create(name, type, given.content, **rule.timing(), **options)
    print_schedule(screen, made)


def print_schedule(screen: Screen, schedule: Schedule) -> None:
    if screen.as_json:
        screen.message(schedule.message)
        return
    screen.text(schedule.name)
    now = datetime.now(UTC)
    coming = render.clock(schedule.next_time) or "never"
    screen.note(
        f"{', '.join(schedule.rules)}, next at {coming} {render.ago(schedule.next_time, now)}"
    )
