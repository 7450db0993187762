"""doctor: one line per part of the mesh, what is wrong with it, and the command that helps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import typer

from jobmesh.cli import connect
from jobmesh.cli.failures import UNAVAILABLE
from jobmesh.cli.options import DEFAULT_NAMESPACE, AsJson
from jobmesh.cli.screen import Screen
from jobmesh.errors import CallError
from jobmesh.times import human

if TYPE_CHECKING:
    from jobmesh.v1.pool_pb2 import Pool
    from jobmesh.v1.topology_pb2 import Shard

T = TypeVar("T")

#: How long doctor waits for workers that just start, and how often it looks.
SETTLE_SECONDS = 4.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    part: str
    ok: bool
    detail: str
    hint: str = ""


def doctor(json: AsJson = False) -> None:
    """Check every part of the mesh. Exit code 3 if one is ill."""

    async def run(screen: Screen) -> bool:
        healthy = True
        async for finding in _examine():
            healthy = healthy and finding.ok
            _show(screen, finding)
        return healthy

    if not connect.run(run(Screen(json))):
        raise typer.Exit(UNAVAILABLE)


def _show(screen: Screen, finding: Finding) -> None:
    if screen.as_json:
        screen.line(asdict(finding))
        return
    mark, style = ("✓", "green") if finding.ok else ("✗", "red")
    hint = f" — {finding.hint}" if finding.hint else ""
    screen.out.print(mark, style=style, end="")
    screen.out.print(f" {finding.part:<14} {finding.detail}{hint}")


async def _examine() -> AsyncIterator[Finding]:
    async for finding in _enqueue():
        yield finding
    async for finding in _orchestrator():
        yield finding
    async for finding in _schedulers():
        yield finding
    async for finding in _scaler():
        yield finding


async def _asked(
    service: str, ask: Callable[[], Awaitable[T]], address: str = ""
) -> tuple[Finding, T | None]:
    """Asks a service something, and notes how long it took to answer."""
    address = address or connect.address_of(service)
    began = time.monotonic()
    try:
        answer = await ask()
    except CallError as error:
        hint = f"look at: jobmesh logs {service}"
        if error.reason == "UNREACHABLE":
            hint = f"start what is down: jobmesh up; or {hint}"
        detail = f"{error.message} ({error.reason or error.status})"
        return Finding(service, False, detail, hint), None
    took = human(time.monotonic() - began)
    return Finding(service, True, f"answers at {address} in {took}"), answer


async def _enqueue() -> AsyncIterator[Finding]:
    async with connect.client(None, DEFAULT_NAMESPACE) as client:
        finding, types = await _asked("enqueue", client.types)
    yield finding
    if types is not None and not types:
        yield Finding("types", False, "none is known", "run: jobmesh worker --app MODULE")


async def _orchestrator() -> AsyncIterator[Finding]:
    from jobmesh.client.operators import topology

    caller = connect.caller("orchestrator", None)
    finding, found = await _asked("orchestrator", lambda: topology(caller))
    yield finding
    for shard in found.shards if found is not None else ():
        yield _of_shard(shard)


def _of_shard(shard: Shard) -> Finding:
    from jobmesh.v1.topology_pb2 import SHARD_HEALTH_HEALTHY, ShardHealth

    name = f"shard {shard.name}"
    if shard.health == SHARD_HEALTH_HEALTHY:
        detail = f"{shard.bucket_count} buckets, answers in {shard.probe_ms:.1f} ms"
        return Finding(name, True, detail)
    state = ShardHealth.Name(shard.health).removeprefix("SHARD_HEALTH_")
    hint = "its jobs wait, new ones go elsewhere; bring its database back"
    return Finding(name, False, f"{state}: {shard.last_error}".rstrip(": "), hint)


async def _schedulers() -> AsyncIterator[Finding]:
    """Each by itself: with none of them nothing starts, and the other services do not notice."""
    from jobmesh.client.operators import describe_scheduler

    for address in connect.addresses_of("scheduler"):
        caller = connect.caller("scheduler", address)
        finding, _ = await _asked("scheduler", partial(describe_scheduler, caller), address)
        yield finding


async def _scaler() -> AsyncIterator[Finding]:
    async with connect.pools(None) as pools:

        async def everything() -> list[Pool]:
            return [pool async for pool in pools.list()]

        finding, found = await _asked("scaler", everything)
        if found is not None:
            found = await _settled(found, everything)
    yield finding
    for pool in found or ():
        yield _of_pool(pool)


async def _settled(found: list[Pool], look: Callable[[], Awaitable[list[Pool]]]) -> list[Pool]:
    """The pools once the workers that just start have come, or died; or after a while.

    While a crash loop tries again, its pool looks like one that grows.
    """
    import asyncio

    deadline = time.monotonic() + SETTLE_SECONDS
    while any(pool.starting and not pool.actual for pool in found):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(LOOK_SECONDS)
        found = await look()
    return found


def _of_pool(pool: Pool) -> Finding:
    from jobmesh.v1.pool_pb2 import DECISION_REASON_CRASH_LOOP, DECISION_REASON_STALE_STATS

    name = f"pool {pool.spec.type}"
    detail = f"{pool.actual} of {pool.desired} workers, backlog {pool.decision.backlog}"
    if pool.decision.reason == DECISION_REASON_CRASH_LOOP:
        hint = f"try it here: jobmesh worker --app {pool.spec.process.app or 'MODULE'}"
        return Finding(name, False, pool.decision.explanation, hint)
    if pool.decision.reason == DECISION_REASON_STALE_STATS:
        return Finding(name, False, pool.decision.explanation, "look at: jobmesh logs orchestrator")
    return Finding(name, True, detail)
