"""pool, shard: what operators look at and change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.options import AsJson, OrchestratorAddress, ScalerAddress, parse_app
from jobmesh.cli.screen import Screen
from jobmesh.times import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobmesh.client.operators import Pools
    from jobmesh.v1.pool_pb2 import Pool, PoolSpec
    from jobmesh.v1.scaler_service_pb2 import WatchPoolsResponse
    from jobmesh.v1.topology_pb2 import Topology

pool_app = typer.Typer(no_args_is_help=True, help="Look at worker pools; make, watch, delete.")
shard_app = typer.Typer(no_args_is_help=True, help="Look at the shards that hold the jobs.")


# --- pools


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
    if idle is not None:
        spec.empty_for.FromNanoseconds(round(seconds(idle) * 1e9))
    _show_pools(Screen(json), [connect.run(_create_pool(address, spec))])


async def _create_pool(address: str | None, spec: PoolSpec) -> Pool:
    async with connect.pools(address) as pools:
        return await pools.create(spec)


@pool_app.command("delete")
def pool_delete(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The pool's job type.")],
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


# --- workers


def drain(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the worker answers.")],
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="How long running jobs may finish; then they are handed back, at no cost.",
            show_default="as the worker is set",
        ),
    ] = None,
) -> None:
    """Drain a worker: it takes no more work, finishes or hands back what it has, and ends.

    The address is what its --listen says; a worker that took any free port says it in its log.
    """

    async def run() -> int:
        from jobmesh.client.caller import Caller
        from jobmesh.client.operators import drain_worker

        span = None if grace is None else seconds(grace)
        return await drain_worker(Caller(address, attempts=connect.ATTEMPTS), span)

    running = connect.run(run())
    Screen().note(f"{address} drains; {running} running")


# --- shards


@shard_app.command("list")
def shard_list(address: OrchestratorAddress = None, json: AsJson = False) -> None:
    """List shards with their health and how many of the 4096 buckets each holds."""

    async def run() -> Topology:
        from jobmesh.client.operators import topology

        return await topology(connect.caller("orchestrator", address))

    screen, found = Screen(json), connect.run(run())
    if screen.as_json:
        for shard in found.shards:
            screen.message(shard)
        return
    screen.table(render.SHARD_COLUMNS, map(render.shard_row, found.shards))
    screen.note(f"epoch {found.epoch} of the bucket map")
