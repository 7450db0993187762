"""Services that are killed: nothing acknowledged is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import datetime

import grpc
import psycopg
import pytest
from jobmesh import JobState, NewJob
from jobmesh.client import AsyncClient
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2, scheduler_service_pb2
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, WorkerRoom, aside, types_known


@pytest.fixture
async def client(storm_client: AsyncClient, room: WorkerRoom) -> AsyncClient:
    """A client of the storm, with a worker for the examples."""
    await room.ready("--types", "echo,pause")
    await types_known(storm_client, "echo", "pause")
    return storm_client


async def test_a_killed_scheduler_costs_no_job(storm: RunningMesh, client: AsyncClient) -> None:
    ids: list[str] = []
    killed = asyncio.Event()

    async def stream() -> None:
        after = 0
        while after < 50:
            ids.append((await client.enqueue("echo", len(ids))).id)
            after += killed.is_set()

    streaming = asyncio.create_task(stream(), name="stream")
    await eventually(lambda: len(ids) >= 20, PATIENCE)
    victim = await _holder_of_credit(storm, "echo")
    storm.kill(victim)
    killed.set()
    await streaming
    try:
        jobs = [await client.job(job_id).wait(PATIENCE) for job_id in ids]
    finally:
        await aside(storm.start, victim)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    worst = max(_seconds(job.create_time, job.end_time) for job in jobs)
    print(f"{len(ids)} jobs, {victim} killed after 20: the slowest took {worst:.2f} s")
    assert worst < 8


async def test_a_frozen_scheduler_takes_no_credit_along(
    storm: RunningMesh, client: AsyncClient
) -> None:
    victim = await _holder_of_credit(storm, "echo")
    storm.kill(victim, signal.SIGSTOP)  # it stays in the broker's queue group, and never answers
    try:
        handles = [await client.enqueue("echo", number) for number in range(20)]
        jobs = [await handle.wait(PATIENCE) for handle in handles]
    finally:
        storm.kill(victim, signal.SIGCONT)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    worst = max(_seconds(job.create_time, job.end_time) for job in jobs)
    print(f"{victim} frozen: the slowest job took {worst:.2f} s")
    assert worst < 5, "another scheduler calls for the credit"


async def test_keyed_jobs_exist_once_though_enqueue_and_orchestrator_die_in_between(
    storm: RunningMesh, client: AsyncClient
) -> None:
    jobs = [NewJob("echo", n, idempotency_key=f"storm-{n}") for n in range(1500)]
    submitting = asyncio.create_task(_in_small_batches(client, jobs), name="submit")
    for victim, stored in (("orchestrator", 100), ("enqueue", 500)):
        await eventually(lambda: aside(_has_stored, storm, stored), PATIENCE)  # noqa: B023
        storm.kill(victim)
        assert not submitting.done()
        await aside(storm.start, victim)
    ids = await submitting
    assert len(set(ids)) == len(jobs)
    again = await client.enqueue_many(jobs)
    assert [ack.id for ack in again] == ids
    assert all(ack.existing for ack in again)
    counts = Counter(key for key in _keys(storm) if key.startswith("storm-"))
    assert counts == {job.idempotency_key: 1 for job in jobs}
    for job_id in ids[::50]:
        assert (await client.job(job_id).wait(PATIENCE)).state is JobState.SUCCEEDED


async def test_single_calls_under_way_when_their_orchestrator_dies_exist_once(
    storm: RunningMesh, client: AsyncClient
) -> None:
    """They share a stream to it: of those that broke with it nobody says that they failed."""
    keys = [f"single-{n}" for n in range(600)]
    left, stored, codes = iter(keys), set[str](), Counter[grpc.StatusCode]()

    async def caller() -> None:
        for key in left:
            while key not in stored:
                code = await _enqueued(client, key)
                codes[code] += 1
                if code is grpc.StatusCode.OK:
                    stored.add(key)

    calling = [asyncio.create_task(caller(), name="caller") for _ in range(16)]
    await eventually(lambda: len(stored) >= 100, PATIENCE)
    storm.kill("orchestrator")
    await aside(storm.start, "orchestrator")
    await asyncio.gather(*calling)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert Counter(key for key in _keys(storm) if key.startswith("single-")) == Counter(keys)


async def test_a_watch_goes_on_where_it_was_after_enqueue_was_killed(
    storm: RunningMesh, client: AsyncClient
) -> None:
    handles = [await client.enqueue("pause", {"seconds": n / 5}) for n in range(10)]
    request = pb.WatchJobsRequest(job_ids=[handle.id for handle in handles])
    seen: list[tuple[str, int]] = []
    token = await _read(client, request, seen, until=len(handles) + 5)
    before = len(seen)
    storm.kill("enqueue")
    await aside(storm.start, "enqueue")

    request.resume_token = token
    await _read(client, request, seen)
    assert len(seen) > before
    for handle in handles:
        versions = [version for job_id, version in seen if job_id == handle.id]
        last = (await handle.get()).version
        assert versions == list(range(versions[0], last + 1))


async def test_the_sdk_watches_over_a_restart_by_itself(
    storm: RunningMesh, client: AsyncClient
) -> None:
    handle = await client.enqueue("pause", {"seconds": 2})
    versions: list[int] = []
    async for event in handle.events():
        versions.append(event.version)
        if len(versions) == 1:
            await aside(storm.kill, "enqueue")
            await aside(storm.start, "enqueue")
    assert versions == list(range(versions[0], 5))


async def _holder_of_credit(mesh: RunningMesh, type_: str) -> str:
    """The scheduler at which a worker waits for jobs of this type: the one that is missed most."""
    names = [unit.name for unit in mesh.plan.services if unit.role == "scheduler"]
    for _ in range(50):
        for name, target in zip(names, mesh.targets("scheduler"), strict=True):
            async with grpc.aio.insecure_channel(target) as channel:
                asked = scheduler_service_pb2.SchedulerServiceDescribeRequest()
                told = await SchedulerServiceStub(channel).Describe(asked, timeout=5)
            if any(parked.type == type_ for parked in told.parked):
                return name
    return names[0]  # busy: no credit was parked whenever we looked


async def _in_small_batches(client: AsyncClient, jobs: list[NewJob]) -> list[str]:
    ids: list[str] = []
    for first in range(0, len(jobs), 20):
        ids += [ack.id for ack in await client.enqueue_many(jobs[first : first + 20])]
    return ids


async def _enqueued(client: AsyncClient, key: str) -> grpc.StatusCode:
    """Submit by one bare call, which nobody sends again; how it ended."""
    spec = job_pb2.JobSpec(type="echo", input=payload_pb2.Payload(data=b"1"))
    request = pb.EnqueueRequest(job=spec, idempotency_key=key)
    try:
        await client.stub.Enqueue(request, timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _read(
    client: AsyncClient,
    request: pb.WatchJobsRequest,
    seen: list[tuple[str, int]],
    until: int | None = None,
) -> str:
    """Reads versions until so many are seen (or to the end); returns the token to go on with.

    Only what the token covers counts: what came after it comes again.
    """
    token, fresh = request.resume_token, list[tuple[str, int]]()
    stream = client.stub.WatchJobs(request, timeout=PATIENCE)
    async for response in stream:
        kind = response.WhichOneof("message")
        if kind == "snapshot":
            fresh.append((response.snapshot.id, response.snapshot.version))
        elif kind == "event":
            fresh.append((response.event.job_id, response.event.version))
        if response.resume_token:
            token = response.resume_token
            seen += fresh
            fresh.clear()
        if until is not None and len(seen) >= until:
            stream.cancel()
            break
    return token


def _has_stored(mesh: RunningMesh, count: int) -> bool:
    return sum(key.startswith("storm-") for key in _keys(mesh)) >= count


def _keys(mesh: RunningMesh) -> list[str]:
    """The idempotency keys in all shards, as often as they are there."""
    keys: list[str] = []
    for dsn in mesh.shard_dsns.values():
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(
                "SELECT idempotency_key FROM jobs WHERE idempotency_key IS NOT NULL"
            )
            keys += [row[0] for row in rows]
    return keys


def _seconds(start: datetime | None, end: datetime | None) -> float:
    assert start is not None
    assert end is not None
    return (end - start).total_seconds()
