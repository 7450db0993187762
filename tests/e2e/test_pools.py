"""Pools: none at rest, a worker when there is work, none again; and every change explained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration
from jobmesh import JobState
from jobmesh.client import AsyncClient
from jobmesh.client.caller import Caller
from jobmesh.client.operators import Pools
from jobmesh.v1.pool_pb2 import DecisionReason, Pool, PoolSpec, ProcessDriver
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, types_known

SPEC = PoolSpec(
    type="primes",
    max_workers=2,
    empty_for=Duration(seconds=1),
    cooldown=Duration(seconds=1),
    drain_timeout=Duration(seconds=5),
    process=ProcessDriver(app="jobmesh.examples"),
)


@pytest.fixture
async def pools(mesh: RunningMesh) -> AsyncIterator[Pools]:
    async with Pools(Caller(mesh.scaler_target)) as pools:
        yield pools


class PoolLog:
    """All that a watch says about one pool."""

    def __init__(self, pools: Pools, type_: str) -> None:
        self._pools, self._type = pools, type_
        self.seen: list[Pool] = []

    async def follow(self) -> None:
        async for change in self._pools.watch([self._type]):
            self.seen.append(change.pool)

    def counts(self) -> list[int]:
        return _without_repeats([pool.actual for pool in self.seen])

    def reasons(self) -> list[str]:
        names = [DecisionReason.Name(pool.decision.reason) for pool in self.seen]
        return _without_repeats([name.removeprefix("DECISION_REASON_") for name in names])


async def test_a_pool_grows_from_zero_for_a_job_and_rests_at_zero_again(
    mesh: RunningMesh, client: AsyncClient, pools: Pools
) -> None:
    await pools.create(SPEC)
    await types_known(client, "primes")
    log = PoolLog(pools, "primes")
    following = asyncio.create_task(log.follow(), name="follow-pool")
    try:
        await eventually(lambda: log.seen != [], PATIENCE)
        assert (log.seen[-1].desired, log.seen[-1].actual) == (0, 0)

        began = time.monotonic()
        job = await (await client.enqueue("primes", {"below": 1000})).wait(PATIENCE)
        print(f"from an empty pool to the result in {time.monotonic() - began:.2f} s")
        assert job.state is JobState.SUCCEEDED
        assert any(one.worker_id == job.worker_id for one in mesh.workers())

        ended = time.monotonic()
        await eventually(lambda: log.counts() == [0, 1, 0], PATIENCE)
        print(f"back at zero {time.monotonic() - ended:.2f} s after the result")
        await eventually(lambda: job.worker_id not in _living(mesh), PATIENCE)
        reasons = log.reasons()
        assert reasons.index("BACKLOG") < reasons.index("EMPTY"), reasons
        grown = next(
            p
            for p in log.seen
            if p.decision.reason == DecisionReason.Value("DECISION_REASON_BACKLOG")
        )
        assert (grown.decision.previous, grown.decision.desired) == (0, 1)
        assert grown.decision.explanation
    finally:
        following.cancel()
        await asyncio.wait({following})
    listed = {pool.spec.type: pool async for pool in pools.list()}["primes"]
    assert (listed.desired, listed.actual) == (0, 0)
    assert listed.decision.explanation
    assert {alarm.name for alarm in listed.alarms} == {"backlog-high", "empty"}
    await pools.delete("primes")


def _living(mesh: RunningMesh) -> set[str]:
    return {worker.worker_id for worker in mesh.workers()}


def _without_repeats(items: list) -> list:  # type: ignore[type-arg]
    return [item for n, item in enumerate(items) if n == 0 or items[n - 1] != item]
