"""Streams without end through the whole mesh: many jobs in, every transition out, over deaths."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path

import grpc
import pytest
from jobmesh import NewJob
from jobmesh.client import AsyncClient
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, WorkerRoom, aside, types_known

#: A million, to see the figures of the documentation: `MANY_JOBS=1000000 pytest …`.
MANY = int(os.environ.get("MANY_JOBS", "60000"))
PAGES = 20
WATCHERS = 1000
KIB = 1024


def resident(mesh: RunningMesh, name: str) -> int:
    """Bytes of memory that a service holds."""
    status = Path(f"/proc/{mesh.process(name).pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * KIB


def cpu_seconds(mesh: RunningMesh, name: str) -> float:
    fields = Path(f"/proc/{mesh.process(name).pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.timeout(240 + MANY // 1000)
async def test_memory_stays_flat_however_many_jobs_a_stream_brings(
    mesh: RunningMesh, client: AsyncClient
) -> None:
    """None of them is due, so that only what is stored counts."""
    jobs = (NewJob("echo", n, delay="1d", labels={"many": "1"}) for n in range(MANY))
    stored, growth, base = 0, [], 0
    began = time.perf_counter()
    async for ack in client.enqueue_stream(jobs, make_keys=False):
        assert ack.ok
        stored += 1
        if stored % 20_000 == 0:
            now = resident(mesh, "enqueue")
            base = base or now  # after the first 20,000 the process is warm
            growth.append(now - base)
    seconds = time.perf_counter() - began
    print(f"{stored:,} jobs in {seconds:.1f} s: {stored / seconds:,.0f}/s; growth of Enqueue"
          f" {max(growth) / 2**20:.1f} MiB to {resident(mesh, 'enqueue') / 2**20:.0f} MiB,"
          f" Orchestrator {resident(mesh, 'orchestrator') / 2**20:.0f} MiB")  # fmt: skip
    assert stored == MANY
    assert max(growth) < 32 * 2**20
    for unit in mesh.plan.services:
        assert resident(mesh, unit.name) < 300 * 2**20, unit.name
    pages = [await _seconds_of_first_page(client) for _ in range(PAGES)]
    print(f"first page of the list: {statistics.median(pages) * 1000:.1f} ms in the middle")


async def _seconds_of_first_page(client: AsyncClient) -> float:
    began = time.perf_counter()
    page = [job async for job in client.list(labels={"many": "1"}, limit=50)]
    assert len(page) == 50
    return time.perf_counter() - began


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["filter", "ids"])
async def test_a_thousand_watches_cost_less_than_fifty_kilobytes_each(
    mesh: RunningMesh, client: AsyncClient, kind: str
) -> None:
    labels = {"seen-by": kind}
    job = await client.enqueue("echo", 1, labels=labels, delay="1d")
    request = pb.WatchJobsRequest(job_ids=[job.id])
    if kind == "filter":
        request = pb.WatchJobsRequest(filter=job_pb2.JobFilter(types=["echo"], labels=labels))
    async with grpc.aio.insecure_channel(mesh.enqueue_target) as channel:
        stub = EnqueueServiceStub(channel)
        (warm,) = await _watches(stub, request, 1)
        before = resident(mesh, "enqueue")
        calls = await _watches(stub, request, WATCHERS - 10)
        each = (resident(mesh, "enqueue") - before) / len(calls)
        spent = cpu_seconds(mesh, "enqueue")
        await asyncio.sleep(5)  # measures rest: there is nothing to wait for
        idle = (cpu_seconds(mesh, "enqueue") - spent) / 5
        spent, began = cpu_seconds(mesh, "enqueue"), time.perf_counter()
        await job.cancel()
        await asyncio.gather(*(_until_cancelled(call) for call in [warm, *calls]))
        took, busy = time.perf_counter() - began, cpu_seconds(mesh, "enqueue") - spent
        for call in [warm, *calls]:
            call.cancel()
    print(f"{len(calls)} watches by {kind}: {each / KIB:.1f} KiB each, {idle:.1%} of a core idle;"
          f" a cancel seen by all in {took:.2f} s ({busy:.2f} s of CPU)")  # fmt: skip
    assert each < 50 * KIB


async def _watches(
    stub: EnqueueServiceStub, request: pb.WatchJobsRequest, count: int
) -> list[grpc.aio.UnaryStreamCall[pb.WatchJobsRequest, pb.WatchJobsResponse]]:
    calls = [stub.WatchJobs(request) for _ in range(count)]
    for call in calls:
        async with asyncio.timeout(PATIENCE):
            assert (await call.read()).HasField("snapshot")
    return calls


async def _until_cancelled(
    call: grpc.aio.UnaryStreamCall[pb.WatchJobsRequest, pb.WatchJobsResponse],
) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await call.read()).event.state != job_pb2.JOB_STATE_CANCELLED:
            pass


async def test_transitions_reach_a_watch_by_filter_long_before_the_next_reading(
    client: AsyncClient,
) -> None:
    """Readings without a hint are two seconds apart."""
    labels = {"timed": "1"}
    request = pb.WatchJobsRequest(filter=job_pb2.JobFilter(types=["echo"], labels=labels))
    call = client.stub.WatchJobs(request)
    assert (await call.read()).HasField("heartbeat")
    waits = []
    for _ in range(20):
        began = time.perf_counter()
        await client.enqueue("echo", 1, labels=labels)
        async with asyncio.timeout(PATIENCE):
            while (await call.read()).event.state != job_pb2.JOB_STATE_SUCCEEDED:
                pass
        waits.append(time.perf_counter() - began)
    call.cancel()
    waits.sort()
    print(f"from submission to the end seen: p50 {waits[10] * 1000:.0f} ms")
    assert waits[10] < 1


async def test_a_watch_by_filter_misses_nothing_while_enqueue_dies_again_and_again(
    storm: RunningMesh, storm_client: AsyncClient, room: WorkerRoom
) -> None:
    client = storm_client
    await room.ready("--types", "echo")
    await types_known(client, "echo")
    labels = {"watched": "storm"}
    request = pb.WatchJobsRequest(filter=job_pb2.JobFilter(types=["echo"], labels=labels))
    seen: dict[str, list[int]] = defaultdict(list)
    ended: set[str] = set()
    began = asyncio.Event()

    async def watch() -> None:
        while True:
            call = client.stub.WatchJobs(request)
            try:
                while isinstance(response := await call.read(), pb.WatchJobsResponse):
                    _observe(response, request, seen, ended)
                    began.set()
            except grpc.aio.AioRpcError:
                pass

    watching = asyncio.create_task(watch(), name="watch")
    try:
        await asyncio.wait_for(began.wait(), PATIENCE)
        ids: list[str] = []
        for _ in range(3):
            ids += [(await client.enqueue("echo", n, labels=labels)).id for n in range(20)]
            await eventually(lambda: len(ended) > len(ids) - 15, PATIENCE)  # noqa: B023
            await aside(storm.kill, "enqueue")
            await aside(storm.start, "enqueue")
        await eventually(lambda: ended == set(ids), PATIENCE)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    for job_id in ids:
        last = (await client.get(job_id)).version
        assert seen[job_id] == list(range(1, last + 1)), "each version once, and in order"


def _observe(
    response: pb.WatchJobsResponse,
    request: pb.WatchJobsRequest,
    seen: dict[str, list[int]],
    ended: set[str],
) -> None:
    if response.resume_token:
        request.resume_token = response.resume_token
    if response.HasField("event"):
        seen[response.event.job_id].append(response.event.version)
        if response.event.state == job_pb2.JOB_STATE_SUCCEEDED:
            ended.add(response.event.job_id)
