"""What an operator relies on: reflection, health, metrics, and an orderly end on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from jobmesh.client import AsyncClient
from jobmesh.v1 import enqueue_service_pb2 as pb
from localmesh.harness import RunningMesh
from localmesh.ports import LOOPBACK

from tests.e2e.hands import PATIENCE, Gates, Worker, WorkerRoom, aside, samples, types_known

BUF = Path(sys.executable).with_name("buf")
READY = {
    "enqueue": "jobmesh.v1.EnqueueService",
    "orchestrator": "jobmesh.v1.OrchestratorService",
    "scheduler": "jobmesh.v1.SchedulerService",
    "scaler": "jobmesh.v1.ScalerService",
}
#: Below the 30 seconds that platforms give.
GRACE_SECONDS = 25.0


# --- reflection


def buf_curl(target: str, *arguments: str) -> str:
    """Asks a service as somebody with no files of ours; TARGET stands for its URL."""
    told = [argument.replace("TARGET", f"http://{target}") for argument in arguments]
    done = subprocess.run(
        [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *told],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("role", READY)
def test_a_service_lists_itself_by_reflection(mesh: RunningMesh, role: str) -> None:
    listed = buf_curl(mesh.targets(role)[0], "--list-services", "TARGET").split()
    assert {READY[role], "grpc.health.v1.Health"} <= set(listed)


@pytest.mark.parametrize("role", READY)
def test_a_service_lists_its_methods_by_reflection(mesh: RunningMesh, role: str) -> None:
    listed = buf_curl(mesh.targets(role)[0], "--list-methods", "TARGET").split()
    assert any(method.startswith(f"{READY[role]}/") for method in listed)
    assert "grpc.reflection.v1.ServerReflection/ServerReflectionInfo" in listed


async def test_a_job_can_be_asked_for_with_nothing_but_reflection(
    mesh: RunningMesh, client: AsyncClient
) -> None:
    handle = await client.enqueue("echo", "reflected")
    await handle.wait(PATIENCE)
    method = f"TARGET/{READY['enqueue']}/GetJob"
    asked = json.dumps({"jobId": handle.id, "view": "JOB_VIEW_FULL"})
    answer = await aside(buf_curl, mesh.enqueue_target, "--data", asked, method)
    job = json.loads(answer)["job"]
    assert (job["id"], job["state"]) == (handle.id, "JOB_STATE_SUCCEEDED")
    assert job["attempts"][0]["outcome"] == "ATTEMPT_OUTCOME_SUCCEEDED"


# --- health and metrics


@pytest.mark.parametrize("role", READY)
async def test_a_service_is_alive_and_ready(mesh: RunningMesh, role: str) -> None:
    for target in mesh.targets(role):
        async with grpc.aio.insecure_channel(target) as channel:
            health: Any = HealthStub(channel)
            for service in ("", READY[role]):
                answer = await health.Check(HealthCheckRequest(service=service), timeout=5)
                assert answer.status == HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health.Check(HealthCheckRequest(service="no.such.Service"), timeout=5)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_every_process_has_metrics(mesh: RunningMesh, calm_worker: Worker) -> None:
    ports = [unit.metrics_port for unit in mesh.plan.services]
    urls = [f"http://{LOOPBACK}:{port}/metrics" for port in ports]
    for url in [*urls, calm_worker.metrics_url]:
        names = {name for name, _, _ in samples(url)}
        assert {"jobmesh_build_info", "jobmesh_dependency_up"} <= names


# --- the end


@pytest.mark.parametrize("name", ["scaler", "scheduler", "enqueue", "orchestrator"])
async def test_a_service_ends_with_0_on_sigterm_though_streams_are_open(
    storm: RunningMesh, storm_client: AsyncClient, room: WorkerRoom, gates: Gates, name: str
) -> None:
    await room.ready("--types", "gated")
    await types_known(storm_client, "gated")
    handle = await storm_client.enqueue("gated", gates.input)
    await gates.started(1)
    watch = storm_client.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[handle.id]), timeout=PATIENCE)
    first = await watch.read()
    assert isinstance(first, pb.WatchJobsResponse)
    assert first.HasField("snapshot")
    try:
        began = time.monotonic()
        code = await aside(_terminate, storm, name)
        print(f"{name} ended {time.monotonic() - began:.2f} s after SIGTERM")
        assert code == 0
        if name == "enqueue":
            assert (await _last(watch)).HasField("drain")
            assert await watch.code() is grpc.StatusCode.OK
    finally:
        watch.cancel()
        await aside(storm.start, name)
    gates.open()
    assert await handle.result(PATIENCE) == "dispatch 1"


async def _last(
    watch: grpc.aio.UnaryStreamCall[pb.WatchJobsRequest, pb.WatchJobsResponse],
) -> pb.WatchJobsResponse:
    """What the stream said last before it ended; the snapshot was read."""
    last = pb.WatchJobsResponse()
    async with asyncio.timeout(PATIENCE):
        while isinstance(response := await watch.read(), pb.WatchJobsResponse):
            last = response
    return last


def _terminate(mesh: RunningMesh, name: str) -> int:
    """Sends SIGTERM and returns the exit code; it stays for the harness to collect."""
    process = mesh.process(name)
    watched = os.pidfd_open(process.pid)
    try:
        process.signal(signal.SIGTERM)
        # A pidfd is readable when the process has ended.
        assert select.select([watched], [], [], GRACE_SECONDS)[0], f"{name} does not end"
        ended = os.waitid(os.P_PIDFD, watched, os.WEXITED | os.WNOWAIT)
    finally:
        os.close(watched)
    assert ended is not None
    assert ended.si_code == os.CLD_EXITED
    return ended.si_status
