"""pool: the workers of a type, how many there are, and what is wanted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.options import AsJson, ScalerAddress, parse_app
from jobmesh.cli.screen import Screen
from jobmesh.times import human, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.duration_pb2 import Duration

    from jobmesh.client.operators import Pools
    from jobmesh.v1.pool_pb2 import Pool, PoolSpec
    from jobmesh.v1.scaler_service_pb2 import WatchPoolsResponse

pool_app = typer.Typer(
    no_args_is_help=True, help="Look at worker pools; make, change, watch, delete."
)

PoolType = Annotated[str, typer.Argument(metavar="TYPE", help="The pool's job type.")]
#: What takes a setting away again.
DEFAULT = "default"
#: What the Scaler takes where a pool says nothing, by its contract.
MAX_WORKERS, JOBS_PER_WORKER, GROWS_FROM = 4, 100, 1
IDLE_SECONDS = COOLDOWN_SECONDS = 10.0
DRAIN_SECONDS = 30.0


def _span(help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="SPAN", help=help)
    return option


@pool_app.command("list")
def pool_list(address: ScalerAddress = None, json: AsJson = False) -> None:
    """List pools: how many workers there are, how many there should be, and why."""

    async def run() -> list[Pool]:
        async with connect.pools(address) as pools:
            return [pool async for pool in pools.list()]

    found = connect.run(run())
    _show_pools(Screen(json), found)
    if not found and not json:
        Screen().note("no pools — make one: jobmesh pool create TYPE --app MODULE")


@pool_app.command("create")
def pool_create(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type; one pool per type.")],
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE[:APP]", help="Handlers for the worker processes it starts."),
    ] = None,
    minimum: Annotated[int, typer.Option("--min", min=0, help="Fewest workers.")] = 0,
    maximum: Annotated[int, typer.Option("--max", min=1, help="Most workers.")] = 4,
    capacity: Annotated[
        int, typer.Option(min=0, help="Attempts at once per worker; 0 asks the handler.")
    ] = 0,
    idle: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Empty for this long: back to the minimum.")
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            help="Where its worker processes start.",
            show_default="this folder, if the Scaler is on this machine",
        ),
    ] = None,
    address: ScalerAddress = None,
    json: AsJson = False,
) -> None:
    """Make a pool. Without --app it is only watched: somebody else runs its workers."""
    from jobmesh.v1.pool_pb2 import PoolSpec, ProcessDriver

    spec = PoolSpec(type=type, min_workers=minimum, max_workers=maximum)
    app = parse_app(app)
    if app is not None:
        where = connect.folder_for_workers(address) if directory is None else directory
        driver = ProcessDriver(app=app, capacity=capacity, directory=where)
        spec.process.CopyFrom(driver)
    elif capacity or directory:
        raise ValueError("--capacity and --directory are about workers it starts: give --app")
    if idle is not None:
        spec.empty_for.FromNanoseconds(round(seconds(idle) * 1e9))
    _show_pools(Screen(json), [connect.run(_create_pool(address, spec))])


async def _create_pool(address: str | None, spec: PoolSpec) -> Pool:
    async with connect.pools(address) as pools:
        return await pools.create(spec)


@pool_app.command("delete")
def pool_delete(
    type: PoolType,
    address: ScalerAddress = None,
) -> None:
    """Remove a pool and drain the workers it started."""

    async def run() -> None:
        async with connect.pools(address) as pools:
            await pools.delete(type)

    connect.run(run())
    Screen().note(f"deleted the pool of {type}")


@pool_app.command("watch")
def pool_watch(
    types: Annotated[list[str] | None, typer.Argument(metavar="[TYPE]...")] = None,
    address: ScalerAddress = None,
    json: AsJson = False,
) -> None:
    """Follow pools as they grow and shrink, until interrupted."""

    async def run(screen: Screen) -> None:
        async with connect.pools(address) as pools:
            if types:
                await _note_missing(screen, pools, types)
            async for change in pools.watch(types or []):
                _show_change(screen, change)

    connect.run(run(Screen(json)))


async def _note_missing(screen: Screen, pools: Pools, types: Sequence[str]) -> None:
    """A watch waits for pools that are yet to be made; of a misspelt one it would say nothing."""
    known = [pool.spec.type async for pool in pools.list()]
    for type in types:
        if type not in known:
            names = ", ".join(known) or "none"
            screen.note(f"there is no pool of {type} yet; there are: {names}")


def _show_change(screen: Screen, change: WatchPoolsResponse) -> None:
    if screen.as_json:
        screen.message(change)
        return
    from datetime import UTC, datetime

    pool = change.pool
    moving = "deleted" if change.deleted else f"{pool.actual} of {pool.desired} workers"
    screen.text(
        f"{render.clock(datetime.now(UTC))}  {pool.spec.type:<12} {moving:<16} "
        f"{pool.decision.explanation}".rstrip()
    )


def _show_pools(screen: Screen, pools: Sequence[Pool]) -> None:
    if screen.as_json:
        for pool in pools:
            screen.message(pool)
    elif pools:
        screen.table(render.POOL_COLUMNS, map(render.pool_row, pools))


# --- settings


@pool_app.command("show")
def pool_show(type: PoolType, address: ScalerAddress = None, json: AsJson = False) -> None:
    """Show a pool: its workers, what is wanted of it, and why it has the size it has."""

    async def run() -> Pool:
        async with connect.pools(address) as pools:
            return await pools.get(type)

    _show(Screen(json), connect.run(run()))


@pool_app.command("set")
def pool_set(
    type: PoolType,
    minimum: Annotated[int | None, typer.Option("--min", min=0, help="Fewest workers.")] = None,
    maximum: Annotated[int | None, typer.Option("--max", min=1, help="Most workers.")] = None,
    jobs_per_worker: Annotated[
        int | None, typer.Option(min=1, help="Jobs, waiting or in hand, that a worker should have.")
    ] = None,
    grow_from: Annotated[
        int | None, typer.Option(min=1, help="Due jobs that must wait for it to grow.")
    ] = None,
    idle: Annotated[str | None, _span("Empty for this long: back to the minimum.")] = None,
    cooldown: Annotated[str | None, _span("No shrinking sooner after a change of size.")] = None,
    drain: Annotated[str | None, _span("How long a worker that stops may finish.")] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE[:APP]", help="Handlers of its worker processes.")
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(min=0, help="Attempts at once per worker; 0 asks the handler.")
    ] = None,
    directory: Annotated[str | None, typer.Option(help="Where its worker processes start.")] = None,
    address: ScalerAddress = None,
    json: AsJson = False,
) -> None:
    """Change what is wanted of a pool; what is not named stays as it is.

    A span may be "default". Workers that run keep their app, capacity and directory until they end.
    """
    numbers = {
        "min_workers": minimum,
        "max_workers": maximum,
        "target_backlog_per_worker": jobs_per_worker,
        "high_alarm_backlog": grow_from,
    }
    spans = {"empty_for": idle, "cooldown": cooldown, "drain_timeout": drain}
    process = {"app": parse_app(app), "capacity": capacity, "directory": directory}
    if all(value is None for value in (*numbers.values(), *spans.values(), *process.values())):
        raise ValueError("say what to change, such as --max 8")

    async def run() -> Pool:
        async with connect.pools(address) as pools:
            pool = await pools.get(type)
            paths = [*_set_numbers(pool.spec, numbers), *_set_spans(pool.spec, spans)]
            if any(value is not None for value in process.values()):
                _set_process(pool.spec, process, connect.folder_for_workers(address))
                paths.append("process")
            return await pools.update(pool.spec, paths, pool.etag)

    _show(Screen(json), connect.run(run()))


def _set_numbers(spec: PoolSpec, numbers: dict[str, int | None]) -> Iterator[str]:
    """The names of those that were given."""
    for name, number in numbers.items():
        if number is not None:
            setattr(spec, name, number)
            yield name


def _set_spans(spec: PoolSpec, spans: dict[str, str | None]) -> Iterator[str]:
    """As `_set_numbers`."""
    for name, span in spans.items():
        if span is None:
            continue
        spec.ClearField(name)  # type: ignore[arg-type]
        if span != DEFAULT:
            getattr(spec, name).FromNanoseconds(round(seconds(span) * 1e9))
        yield name


def _set_process(spec: PoolSpec, given: dict[str, int | str | None], folder: str) -> None:
    if not spec.HasField("process"):
        if given["app"] is None:
            raise ValueError("somebody else runs the workers of this pool; or give --app")
        spec.process.directory = folder
    for name, value in given.items():
        if value is not None:
            setattr(spec.process, name, value)


def _show(screen: Screen, pool: Pool) -> None:
    if screen.as_json:
        screen.message(pool)
        return
    for name, value in _lines(pool):
        screen.text(f"{name:<20} {value}")


def _lines(pool: Pool) -> Iterator[tuple[str, str]]:
    spec, process = pool.spec, pool.spec.process
    moving = render.moving(pool)
    workers = f"{pool.actual} ({moving})" if moving else str(pool.actual)
    yield "type", spec.type
    yield "workers", f"{workers}, desired {pool.desired}"
    yield "why", pool.decision.explanation or "no decision yet"
    yield "min", str(spec.min_workers)
    yield "max", str(spec.max_workers or MAX_WORKERS)
    yield "jobs per worker", str(spec.target_backlog_per_worker or JOBS_PER_WORKER)
    yield "grows from", f"{spec.high_alarm_backlog or GROWS_FROM} due"
    yield "idle", _seconds(spec.empty_for, spec.HasField("empty_for"), IDLE_SECONDS)
    yield "cooldown", _seconds(spec.cooldown, spec.HasField("cooldown"), COOLDOWN_SECONDS)
    yield "drain", _seconds(spec.drain_timeout, spec.HasField("drain_timeout"), DRAIN_SECONDS)
    if not spec.HasField("process"):
        yield "app", "none: somebody else runs its workers"
        return
    yield "app", process.app
    yield "capacity", str(process.capacity or "as the handler says")
    yield "directory", process.directory or "that of the Scaler"


def _seconds(span: Duration, said: bool, default: float) -> str:
    return human(span.ToNanoseconds() / 1e9 if said else default)
