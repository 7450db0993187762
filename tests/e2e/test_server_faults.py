"""Servers that are killed: a shard, the broker, etcd. What does not need them goes on, the rest
waits, and all is well again when they are back.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from jobmesh import CallError, JobState
from jobmesh.client import AsyncClient, AsyncJobHandle
from jobmesh.errors import Unavailable
from localmesh.harness import RunningMesh
from localmesh.processes import descendants

from services.mesh.jobs.ids import bucket_for_key
from services.mesh.jobs.topology import BucketMap
from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Gates, WorkerRoom, aside, types_known

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
#: In which a shard that hangs is found out.
BREAKER_SECONDS = 2.0
READY = {
    "enqueue": "jobmesh.v1.EnqueueService",
    "orchestrator": "jobmesh.v1.OrchestratorService",
    "scheduler": "jobmesh.v1.SchedulerService",
    "scaler": "jobmesh.v1.ScalerService",
}


@pytest.fixture
async def client(storm_client: AsyncClient, room: WorkerRoom) -> AsyncClient:
    await room.ready("--types", "echo")
    await types_known(storm_client, "echo")
    return storm_client


@pytest.fixture
async def impatient(storm: RunningMesh) -> AsyncIterator[AsyncClient]:
    """A client that hears the first answer and does not try again."""
    async with AsyncClient(storm.enqueue_target, attempts=1) as client:
        yield client


@asynccontextmanager
async def killed(mesh: RunningMesh, server: str) -> AsyncIterator[None]:
    """The server is gone inside the block, and back after it."""
    mesh.kill(server)
    try:
        yield
    finally:
        await aside(mesh.start_server, server)


@contextmanager
def frozen(mesh: RunningMesh, server: str) -> Iterator[None]:
    """The server and its children live inside the block, and do nothing."""
    process = mesh.process(server)
    family = [process, *descendants({process})]
    for member in family:
        member.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for member in family:
            member.signal(signal.SIGCONT)


# --- one shard of three


async def test_a_killed_shard_takes_only_its_own_jobs_with_it(
    storm: RunningMesh, client: AsyncClient, impatient: AsyncClient
) -> None:
    homes = await _jobs_by_shard(client, delay="3s")
    lost = homes.pop("s1")
    async with killed(storm, "shard-1"):
        await eventually(lambda: _is_away(impatient, lost), PATIENCE)
        with pytest.raises(Unavailable) as caught:
            await impatient.get(lost.id)
        assert (caught.value.reason, caught.value.metadata["shard"]) == ("SHARD_UNAVAILABLE", "s1")
        await _others_go_on(impatient, homes)
        page = await anext(impatient.pages())
        assert page.missing_shards == ["s1"]
        began = time.monotonic()
    job = await lost.wait(PATIENCE)
    print(f"a job of the killed shard was done {time.monotonic() - began:.2f} s after it was back")
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


async def test_a_frozen_shard_holds_up_others_no_longer_than_its_breaker_takes(
    storm: RunningMesh, client: AsyncClient
) -> None:
    # Calls that come together share a batch, and a batch is answered when all its shards have.
    async with asyncio.TaskGroup() as calls:
        with frozen(storm, "shard-1"):
            others = []
            until = time.monotonic() + BREAKER_SECONDS
            while time.monotonic() < until:
                for _ in range(3):
                    calls.create_task(client.enqueue("echo", "any"))
                key = _key_on("s0")
                others.append(calls.create_task(_seconds_to_end(client, key), name=key))
                await asyncio.sleep(0.02)
            worst = max(await asyncio.gather(*others))
    print(f"while a shard was frozen, the slowest of {len(others)} of another took {worst:.2f} s")
    assert worst < 4
    await eventually(lambda: _serves(client, "s1"), PATIENCE)


async def _seconds_to_end(client: AsyncClient, key: str) -> float:
    began = time.monotonic()
    handle = await client.enqueue("echo", "other", idempotency_key=key)
    assert (await handle.wait(PATIENCE)).state is JobState.SUCCEEDED
    return time.monotonic() - began


async def _serves(client: AsyncClient, shard: str) -> bool:
    return await _seconds_to_end(client, _key_on(shard)) < 1


async def _others_go_on(client: AsyncClient, homes: dict[str, AsyncJobHandle]) -> None:
    for handle in homes.values():
        assert (await handle.wait(PATIENCE)).state is JobState.SUCCEEDED
    # New jobs go to the shards that are left; one whose key belongs to the lost shard cannot.
    for _ in range(10):
        handle = await client.enqueue("echo", "new", idempotency_key="")
        assert (await handle.wait(PATIENCE)).shard in homes
    with pytest.raises(Unavailable) as caught:
        await client.enqueue("echo", "keyed", idempotency_key=_key_on("s1"))
    assert caught.value.reason == "SHARD_UNAVAILABLE"


async def _is_away(client: AsyncClient, handle: AsyncJobHandle) -> bool:
    try:
        await client.get(handle.id)
    except CallError as error:
        return error.reason == "SHARD_UNAVAILABLE"
    return False


async def _jobs_by_shard(client: AsyncClient, delay: str) -> dict[str, AsyncJobHandle]:
    """One job on each shard, due later."""
    found: dict[str, AsyncJobHandle] = {}
    for shard in ("s0", "s1", "s2"):
        key = _key_on(shard)
        found[shard] = await client.enqueue("echo", shard, delay=delay, idempotency_key=key)
        assert (await found[shard].get()).shard == shard
    return found


def _key_on(shard: str) -> str:
    """An idempotency key that no other call has used, whose jobs live on this shard."""
    buckets = BucketMap.even(("s0", "s1", "s2"))
    for number in count():
        key = f"{uuid.uuid4().hex}-{number}"
        if buckets.shard_of(bucket_for_key("default", key)) == shard:
            return key
    raise AssertionError("count has no end")


# --- the broker


async def test_jobs_taken_while_the_broker_is_away_run_when_it_is_back(
    storm: RunningMesh, client: AsyncClient
) -> None:
    await (await client.enqueue("echo", 0)).wait(PATIENCE)
    async with killed(storm, "nats"):
        for role in ("enqueue", "orchestrator", "scheduler"):
            await eventually(lambda: _health(storm, role, NOT_SERVING), PATIENCE)  # noqa: B023
            assert await _status(storm, role, "") == SERVING
        handles = [await client.enqueue("echo", n) for n in range(20)]
        began = time.monotonic()
    for handle in handles:
        assert (await handle.wait(PATIENCE)).attempt == 1
    print(f"20 jobs done {time.monotonic() - began:.2f} s after the broker's restart began")
    for role in READY:
        await eventually(lambda: _health(storm, role, SERVING), PATIENCE)  # noqa: B023


# --- the object store


async def test_large_jobs_wait_for_the_object_store_and_small_ones_do_not(
    storm: RunningMesh, client: AsyncClient
) -> None:
    text = "large" * 400_000
    large = await client.enqueue("echo", text, delay="1s")
    async with killed(storm, "s3"):
        await eventually(lambda: _was_handed_back(large), PATIENCE)
        small = await client.enqueue("echo", "small")
        assert (await small.wait(PATIENCE)).state is JobState.SUCCEEDED
    job = await large.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert await large.result() == text


async def _was_handed_back(handle: AsyncJobHandle) -> bool:
    job = await handle.get(full=True)
    return "HANDED_BACK" in [attempt.outcome for attempt in job.attempts]


# --- etcd


async def test_jobs_go_on_after_etcd_was_away(storm: RunningMesh, client: AsyncClient) -> None:
    await (await client.enqueue("echo", 0)).wait(PATIENCE)
    async with killed(storm, "etcd"):
        handles = [await client.enqueue("echo", n) for n in range(20)]
        began = time.monotonic()
    for handle in handles:
        job = await handle.wait(PATIENCE)
        assert job.state is JobState.SUCCEEDED
    print(f"20 jobs done {time.monotonic() - began:.2f} s after etcd's restart began")
    for role in READY:
        await eventually(lambda: _health(storm, role, SERVING), PATIENCE)  # noqa: B023


async def test_jobs_go_on_after_etcd_was_away_for_longer_than_every_lease(
    storm: RunningMesh, client: AsyncClient, room: WorkerRoom, gates: Gates
) -> None:
    await room.ready("--types", "gated")
    await types_known(client, "gated")
    running = await client.enqueue("gated", gates.input)
    await gates.started(1)
    async with killed(storm, "etcd"):
        # Every lease is 5 seconds; the scheduler says when it stops trusting its own.
        await eventually(lambda: _health(storm, "scheduler", NOT_SERVING), PATIENCE)
        waiting = await client.enqueue("echo", "waits")
    gates.open()
    for handle in (waiting, running):
        assert (await handle.wait(PATIENCE)).state is JobState.SUCCEEDED
    job = await running.get(full=True)
    assert [one.outcome for one in job.attempts].count("SUCCEEDED") == 1
    for role in READY:
        await eventually(lambda: _health(storm, role, SERVING), PATIENCE)  # noqa: B023


async def _health(mesh: RunningMesh, role: str, wanted: int) -> bool:
    return await _status(mesh, role, READY[role]) == wanted


async def _status(mesh: RunningMesh, role: str, service: str) -> int:
    async with grpc.aio.insecure_channel(mesh.targets(role)[0]) as channel:
        stub: Any = HealthStub(channel)
        answer = await stub.Check(HealthCheckRequest(service=service), timeout=5)
    return int(answer.status)
