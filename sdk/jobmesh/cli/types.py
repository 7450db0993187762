"""type: which types there are, pausing them, and what holds for all jobs of one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from jobmesh.cli import connect
from jobmesh.cli.options import DEFAULT_NAMESPACE, Address, AsJson, SchedulerAddress
from jobmesh.cli.screen import Screen
from jobmesh.times import human

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobmesh.client.types import TypeChanges
    from jobmesh.model import TypeSettings
    from jobmesh.retry import Retry

type_app = typer.Typer(
    no_args_is_help=True, help="Look at the job types; pause, resume, set defaults and limits."
)

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The job type.")]
#: What takes a setting away again.
DEFAULT = "default"


class TypeRetry(StrEnum):
    DEFAULT = "default"
    NONE = "none"
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


def _span(help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="SPAN", help=help)
    return option


@type_app.command("list")
def type_list(address: Address = None, json: AsJson = False) -> None:
    """List the job types that workers or pools have announced."""

    async def run() -> Sequence[str]:
        async with connect.client(address, DEFAULT_NAMESPACE) as client:
            return await client.types()

    screen, found = Screen(json), connect.run(run())
    for name in found:
        if screen.as_json:
            screen.line({"type": name})
        else:
            screen.text(name)
    if not found and not json:
        screen.note("no types yet — start a worker: jobmesh worker --app MODULE")


@type_app.command("pause")
def type_pause(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type.")],
    note: Annotated[str, typer.Option(help="Why.")] = "",
    address: SchedulerAddress = None,
) -> None:
    """Start no more jobs of a type, in the whole mesh; those that run go on."""

    async def run() -> None:
        from jobmesh.client.operators import pause_type

        await connect.ask_any("scheduler", address, lambda one: pause_type(one, type, note))

    connect.run(run())
    Screen().note(f"paused {type}")


@type_app.command("resume")
def type_resume(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type.")],
    address: SchedulerAddress = None,
) -> None:
    """Start jobs of a type again."""

    async def run() -> None:
        from jobmesh.client.operators import resume_type

        await connect.ask_any("scheduler", address, lambda one: resume_type(one, type))

    connect.run(run())
    Screen().note(f"resumed {type}")


# --- settings


@type_app.command("show")
def type_show(type: TypeName, address: Address = None, json: AsJson = False) -> None:
    """Show what holds for all jobs of a type: defaults, limits, retention."""

    async def run() -> TypeSettings:
        async with connect.client(address, DEFAULT_NAMESPACE) as client:
            return await client.type_settings(type)

    _show(Screen(json), connect.run(run()))


@type_app.command("set")
def type_set(
    type: TypeName,
    max_running: Annotated[
        int | None, typer.Option(min=0, help="Attempts at once in the whole mesh; 0: no limit.")
    ] = None,
    max_running_per_key: Annotated[
        int | None,
        typer.Option(min=0, help="Attempts at once with one concurrency key; 0: no limit."),
    ] = None,
    retry: Annotated[
        TypeRetry | None, typer.Option(help="What follows a failure of a job that says nothing.")
    ] = None,
    retry_delay: Annotated[str, _span("The first wait before a retry.")] = "1s",
    attempts: Annotated[
        int, typer.Option(min=1, max=1000, help="Attempts in all, for --retry.")
    ] = 5,
    run_timeout: Annotated[str | None, _span("How long an attempt may run.")] = None,
    start_timeout: Annotated[str | None, _span("How long a due job may wait.")] = None,
    progress_timeout: Annotated[str | None, _span("Longest silence of a handler.")] = None,
    total_timeout: Annotated[str | None, _span("From first due to the end.")] = None,
    keep_succeeded: Annotated[str | None, _span("How long jobs that SUCCEEDED are kept.")] = None,
    keep_failed: Annotated[str | None, _span("The same for those that FAILED.")] = None,
    keep_cancelled: Annotated[str | None, _span("The same for those that were CANCELLED.")] = None,
    keep_expired: Annotated[str | None, _span("The same for those that EXPIRED.")] = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Change what holds for all jobs of a type; what is not named stays as it is.

    A span may be "default": then the setting is taken away. Defaults of retry and timeouts hold for
    jobs made afterwards; limits and retention hold for all.
    """
    changes: TypeChanges = {}
    if max_running is not None:
        changes["max_running"] = max_running
    if max_running_per_key is not None:
        changes["max_running_per_key"] = max_running_per_key
    if retry is not None:
        changes["retry"] = _retry(retry, retry_delay, attempts)
    spans = {
        "run_timeout": run_timeout,
        "start_timeout": start_timeout,
        "progress_timeout": progress_timeout,
        "total_timeout": total_timeout,
        "keep_succeeded": keep_succeeded,
        "keep_failed": keep_failed,
        "keep_cancelled": keep_cancelled,
        "keep_expired": keep_expired,
    }
    for name, span in spans.items():
        if span is not None:
            changes[name] = None if span == DEFAULT else span  # type: ignore[literal-required]
    if not changes:
        raise ValueError("say what to change, such as --max-running 2")

    async def run() -> TypeSettings:
        async with connect.client(address, DEFAULT_NAMESPACE) as client:
            return await client.set_type_settings(type, **changes)

    _show(Screen(json), connect.run(run()))


def _retry(kind: TypeRetry, delay: str, attempts: int) -> Retry | None:
    from jobmesh.retry import Retry

    match kind:
        case TypeRetry.DEFAULT:
            return None
        case TypeRetry.NONE:
            return Retry.none()
        case TypeRetry.FIXED:
            return Retry.fixed(delay, attempts=attempts)
        case TypeRetry.LINEAR:
            return Retry.linear(delay, attempts=attempts)
        case TypeRetry.EXPONENTIAL:
            return Retry.exponential(delay, attempts=attempts)


def _show(screen: Screen, settings: TypeSettings) -> None:
    if screen.as_json:
        screen.message(settings.message)
        return
    for name, value in _lines(settings):
        screen.text(f"{name:<20} {value}")


def _lines(settings: TypeSettings) -> Iterator[tuple[str, str]]:
    yield "type", settings.type
    yield "max running", str(settings.max_running or "no limit")
    yield "max running per key", str(settings.max_running_per_key or "no limit")
    yield "retry", _retry_line(settings)
    if "run" not in settings.timeouts and settings.handler_timeout is not None:
        yield "run timeout", f"{human(settings.handler_timeout)} (by the handler)"
    for bound, seconds in settings.timeouts.items():
        yield f"{bound} timeout", human(seconds)
    for state in ("succeeded", "failed", "cancelled", "expired"):
        kept = settings.keep.get(state)
        yield f"keep {state}", "as the mesh is set" if kept is None else human(kept)


def _retry_line(settings: TypeSettings) -> str:
    if not settings.retry and settings.handler_retry:
        return f"{settings.handler_retry} (by the handler)"
    return settings.retry or "none"
