"""drain, shard: what operators look at and change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jobmesh.cli import connect, render
from jobmesh.cli.failures import UNAVAILABLE, CommandError
from jobmesh.cli.options import AsJson, OrchestratorAddress
from jobmesh.cli.screen import Screen
from jobmesh.errors import Unavailable
from jobmesh.times import seconds

if TYPE_CHECKING:
    from jobmesh.v1.topology_pb2 import Topology

shard_app = typer.Typer(no_args_is_help=True, help="Look at the shards that hold the jobs.")


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
        caller = Caller(address, attempts=connect.ATTEMPTS, service="worker")
        try:
            return await drain_worker(caller, span)
        except Unavailable as error:
            if error.reason != "UNREACHABLE":
                raise
            hint = "a worker's address is in its log; those of pools: jobmesh logs workers"
            raise CommandError(f"{error.message} ({error.reason})", hint, UNAVAILABLE) from None

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
