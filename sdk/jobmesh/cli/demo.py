"""The end of `jobmesh up`: pools for the example types, and one job followed from end to end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from jobmesh.cli.follow import follow
from jobmesh.cli.submit import summary
from jobmesh.errors import AlreadyExists

if TYPE_CHECKING:
    from localmesh.plan import Plan

    from jobmesh.cli.screen import Screen
    from jobmesh.client.operators import Pools

EXAMPLES = "jobmesh.examples"
DEMO_TYPE = "echo"
DEMO_INPUT = {"hello": "mesh"}
DEMO_SECONDS = 60.0


async def run_demo(screen: Screen, plan: Plan) -> None:
    """Shows that the mesh works: a pool grows from nothing, a job passes through every service."""
    await _make_pools(screen, plan.targets("scaler")[0])
    await _run_job(screen, plan.targets("enqueue")[0])


async def _make_pools(screen: Screen, address: str) -> None:
    from jobmesh.client.caller import Caller
    from jobmesh.client.operators import Pools
    from jobmesh.handlers import load_handlers

    async with Pools(Caller(address)) as pools:
        known = {pool.spec.type async for pool in pools.list()}
        missing = [type for type in load_handlers(EXAMPLES) if type not in known]
        for type in missing:
            await _make_pool(pools, type)
    if missing:
        screen.note(f"made pools for the examples: {', '.join(missing)}")


async def _make_pool(pools: Pools, type: str) -> None:
    from jobmesh.v1.pool_pb2 import PoolSpec, ProcessDriver

    # If somebody made it meanwhile with other settings, it is theirs to keep.
    with suppress(AlreadyExists):
        await pools.create(PoolSpec(type=type, process=ProcessDriver(app=EXAMPLES)))


async def _run_job(screen: Screen, address: str) -> None:
    import asyncio

    from jobmesh.client import AsyncClient

    async with AsyncClient(address) as client:
        handle = await client.enqueue(DEMO_TYPE, DEMO_INPUT, labels={"demo": "up"})
        screen.note("")
        screen.note(f"a first job, {DEMO_TYPE} {handle.id}:")
        try:
            async with asyncio.timeout(DEMO_SECONDS):
                await follow(client, [handle.id], screen, screen.err)
        except TimeoutError:
            screen.note(f"it still waits after {DEMO_SECONDS:g} s: jobmesh watch {handle.id}")
            return
        screen.note(summary(await handle.get()))
