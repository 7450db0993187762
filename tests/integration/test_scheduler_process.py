"""The scheduler as a process of its own: its loop, its signals, its window for operators."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from jobmesh.v1 import scheduler_service_pb2 as pb
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from services.mesh.errors import InvalidField, ShardNotFound
from services.mesh.jobs.states import JobState
from services.mesh.rpc import open_channel
from tests.integration.scheduler_rig import Rig, Servers, eventually, open_rig, until

SERVICE = "jobmesh.v1.SchedulerService"


@pytest.fixture
async def rig(
    shard_dsns: list[str], nats_url: str, etcd_endpoint: str, unique_prefix: str
) -> AsyncIterator[Rig]:
    dsns = {f"s{index}": dsn for index, dsn in enumerate(shard_dsns)}
    async with open_rig(Servers(dsns, nats_url, etcd_endpoint, unique_prefix)) as opened:
        yield opened


@pytest.fixture
def address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_near_and_distant_future_jobs_fire_on_time_under_a_stream_of_others(
    rig: Rig,
) -> None:
    async with rig.scheduler_process(), rig.worker() as worker:
        await rig.wait_members(1)
        await worker.grab("t", 100, again=True)
        await rig.put("s0", "t")
        await until(lambda: len(worker.received) == 1)
        later = []
        for index in range(60):
            shard = f"s{index % 3}"
            later += await rig.put(shard, "t", delay=timedelta(milliseconds=30 * index))
            await rig.put(shard, "t", 2)
        await until(lambda: len(worker.received) == 181)
        for shard, store in rig.stores.items():
            here = [job_id for job_id in later if rig.placed[job_id] == shard]
            for row in await store.get_jobs(here):
                assert row.dispatch_time is not None
                lateness = row.dispatch_time - row.due_time
                assert timedelta(0) <= lateness < timedelta(milliseconds=600)


async def test_operators_see_duties_and_parked_credit(rig: Rig, address: str) -> None:
    async with (
        rig.scheduler_process(JOBMESH_LISTEN=address),
        open_channel(address, peer="scheduler") as channel,
        rig.worker() as worker,
    ):
        await rig.wait_members(1)
        stub = SchedulerServiceStub(channel)
        await worker.grab("t", 7, again=True)

        async def described() -> bool:
            view = await stub.Describe(pb.SchedulerServiceDescribeRequest())
            lagging = [shard.slot_lag.ToTimedelta() for shard in view.shards]
            return (
                {shard.shard for shard in view.shards} == {"s0", "s1", "s2"}
                and all(shard.HasField("slot_end_time") for shard in view.shards)
                and max(lagging) < timedelta(seconds=1)
                and [(p.worker_id, p.type, p.credit) for p in view.parked]
                == [(worker.worker_id, "t", 7)]
                and list(view.members) == [view.scheduler_id]
            )

        await eventually(described)


async def test_a_tick_does_every_duty_at_once_and_says_what_it_did(rig: Rig, address: str) -> None:
    slow = {
        "JOBMESH_TICK_SECONDS": "60",
        "JOBMESH_SLOT_SECONDS": "120",
        "JOBMESH_DISPATCH_SECONDS": "100ms",
        "JOBMESH_LISTEN": address,
    }
    async with (
        rig.scheduler_process(**slow),
        open_channel(address, peer="scheduler") as channel,
        rig.worker() as alive,
    ):
        await rig.wait_members(1)
        stub = SchedulerServiceStub(channel)
        await rig.put("s0", "due", nudge=False)
        await rig.put("s1", "later", delay=timedelta(seconds=30), nudge=False)
        jobs = await rig.put("s2", "dead", nudge=False) + await rig.put("s2", "lost", nudge=False)
        await rig.stores["s2"].claim("dead", "w-gone", 1)
        await rig.stores["s2"].claim("lost", alive.worker_id, 1)

        async def all_done() -> bool:
            # The first rounds of the process may still be under way, and take a share.
            answer = await stub.Tick(pb.TickRequest())
            rows = await rig.stores["s2"].get_jobs(jobs)
            returned = all(row.state is JobState.SCHEDULED for row in rows)
            return returned and {"due", "dead", "lost"} <= set(answer.due_types)

        await eventually(all_done)
        with pytest.raises(ShardNotFound):
            await stub.Tick(pb.TickRequest(shards=["s9"]))


async def test_a_paused_type_is_not_handed_out_until_it_is_resumed(rig: Rig, address: str) -> None:
    async with (
        rig.scheduler_process(JOBMESH_LISTEN=address),
        rig.scheduler() as other,
        open_channel(address, peer="scheduler") as channel,
        rig.worker() as worker,
    ):
        await rig.wait_members(2)
        stub = SchedulerServiceStub(channel)
        await stub.PauseType(pb.PauseTypeRequest(type="t", note="maintenance"))
        await worker.grab("t", 5, again=True)
        await worker.grab("u", 5, again=True)
        await asyncio.gather(*(rig.put(shard, "t") for shard in rig.stores))
        unpaused = await rig.put("s0", "u")
        await until(lambda: worker.ids() == unpaused)
        await stub.ResumeType(pb.ResumeTypeRequest(type="t"))
        await until(lambda: len(worker.received) == 4)
        with pytest.raises(InvalidField):
            await stub.PauseType(pb.PauseTypeRequest(type="Not A Type"))
        assert other.readiness.ready


async def test_health_tells_alive_from_ready(rig: Rig, address: str) -> None:
    broken = {"JOBMESH_NATS_URL": "nats://127.0.0.1:1", "JOBMESH_LISTEN": address}
    async with rig.scheduler_process(**broken), open_channel(address, peer="x") as channel:
        await rig.wait_members(1)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        alive = await stub.Check(health_pb2.HealthCheckRequest())
        ready = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        assert ready.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_bad_configuration_is_told_in_one_line_and_exits_with_two() -> None:
    command = [sys.executable, "-m", "services.scheduler", "--shard-dsns", "s0=postgresql://x/y"]
    flags = ["--tick-seconds", "5s", "--slot-seconds", "2s", "--check-config"]
    ended = subprocess.run(command + flags, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "slot_seconds must be" in ended.stderr
