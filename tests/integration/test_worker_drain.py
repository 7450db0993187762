"""How a worker ends: it finishes what it can, hands back the rest, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jobmesh.client.caller import Caller
from jobmesh.client.operators import drain_worker
from jobmesh.v1 import worker_service_pb2 as pb

from services.mesh.errors import AttemptNotFound
from services.mesh.testing.waiting import eventually
from tests.integration.worker_rig import RETRY, Rig, dispatch, new_job, rigged

TYPES = ("noop", "shout", "waits", "sleeps")


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=TYPES,
        local_workers_dir=str(tmp_path / "workers"),
    )
    async with around as made:
        yield await made.start()


async def test_a_drain_hands_back_what_does_not_finish(rig: Rig, tmp_path: Path) -> None:
    async_job, plain_job = new_job(), new_job()
    await rig.scheduler.dispatch("waits", dispatch(async_job))
    await rig.scheduler.dispatch("sleeps", dispatch(plain_job, {}))
    for job in (async_job, plain_job):
        await rig.orchestrator.reported(job, "started")
    assert await rig.stop() == 0
    for job in (async_job, plain_job):
        assert rig.orchestrator.kinds(job) == ["started", "handed_back"]
        assert rig.orchestrator.of(job)[-1].handed_back.reason == "drain"
        assert await rig.lock_of(job) is None
    assert await rig.worker_ids() == []
    assert os.listdir(tmp_path / "workers") == []
    assert [name for name in os.listdir(tmp_path) if name.startswith("jobmesh-worker-")] == []


async def test_a_drain_lets_attempts_finish(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job, timeout=0.5))
    await rig.orchestrator.reported(job, "started")
    assert await rig.stop() == 0
    assert rig.orchestrator.kinds(job) == ["started", "failed"]


async def test_a_drain_takes_back_the_grabs_that_wait(rig: Rig) -> None:
    blocker = new_job()
    await rig.scheduler.dispatch("waits", dispatch(blocker))
    await rig.orchestrator.reported(blocker, "started")
    await rig.scheduler.waiting("shout")
    rig.process.stop("test")
    await eventually(lambda: "shout" not in rig.scheduler.parked)
    assert rig.orchestrator.kinds(blocker) == ["started"]  # nobody had to wait for its end
    await rig.ended()


async def test_a_dispatch_that_arrives_during_a_drain_is_handed_back(rig: Rig) -> None:
    blocker, job = new_job(), new_job()
    await rig.scheduler.dispatch("waits", dispatch(blocker))
    await rig.orchestrator.reported(blocker, "started")
    parked = await rig.scheduler.waiting("shout")
    rig.process.stop("test")
    await eventually(lambda: not rig.process.readiness.alive)
    await rig.scheduler.answer(parked, dispatch(job, "a"))
    await rig.ended()
    assert rig.orchestrator.kinds(job) == ["handed_back"]


async def test_a_drain_waits_for_verdicts(rig: Rig) -> None:
    job = new_job()
    verdicts = iter([RETRY, RETRY])
    commit = rig.orchestrator.judge
    rig.orchestrator.judge = lambda report: next(verdicts, commit(report))
    await rig.scheduler.dispatch("noop", dispatch(job))
    await rig.orchestrator.reported(job, "succeeded")
    assert await rig.stop() == 0
    assert rig.orchestrator.kinds(job) == ["succeeded"] * 3
    assert await rig.lock_of(job) is None


async def test_an_idle_worker_ends_at_once(rig: Rig) -> None:
    assert await rig.stop(seconds=2.0) == 0


# --- its own service


async def test_drain_by_rpc_ends_the_process(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job))
    await rig.orchestrator.reported(job, "started")
    async with rig.stub() as stub:
        request = pb.WorkerServiceDrainRequest()
        request.timeout.FromMilliseconds(300)
        assert (await stub.Drain(request)).running == 1
        assert (await stub.Describe(pb.WorkerServiceDescribeRequest())).draining
    assert await rig.ended() == 0
    assert rig.orchestrator.kinds(job) == ["started", "handed_back"]


async def test_an_operator_drains_a_worker_by_its_address(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("waits", dispatch(job))
    await rig.orchestrator.reported(job, "started")
    assert await drain_worker(Caller((await rig.info()).address), grace=0.3) == 1
    assert await rig.ended() == 0
    assert rig.orchestrator.kinds(job) == ["started", "handed_back"]


async def test_describe_tells_what_the_worker_is_and_did(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("shout", dispatch(job, "a"))
    await rig.orchestrator.reported(job, "succeeded")
    async with rig.stub() as stub:
        about = await stub.Describe(pb.WorkerServiceDescribeRequest())
    assert about.worker.worker_id == await rig.worker_id()
    assert about.worker.pid == os.getpid()
    assert dict(about.finished) == {"succeeded": 1}
    assert about.lease_trusted_until.ToSeconds() > 0


async def test_running_attempts_are_listed_and_can_be_stopped(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("sleeps", dispatch(job, {}, fence=4))
    await rig.orchestrator.reported(job, "started")
    async with rig.stub() as stub:
        (running,) = (await stub.ListRunning(pb.ListRunningRequest())).attempts
        assert (running.job_id, running.dispatch_no) == (str(job), 4)
        assert running.executor_pid not in (0, os.getpid())
        await stub.CancelAttempt(pb.CancelAttemptRequest(job_id=str(job)))
        await rig.orchestrator.reported(job, "handed_back")
        with pytest.raises(AttemptNotFound):
            await stub.CancelAttempt(pb.CancelAttemptRequest(job_id=str(job)))


async def test_an_attempt_that_is_not_here_cannot_be_watched(rig: Rig) -> None:
    async with rig.stub() as stub:
        with pytest.raises(AttemptNotFound):
            async for _ in stub.WatchAttempt(pb.WatchAttemptRequest(job_id=str(new_job()))):
                pass


# --- as a process of its own


async def spawn(rig: Rig, tmp_path: Path, *arguments: str, **more: str) -> Any:
    config = rig.config
    environ = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JOBMESH_ETCD_ENDPOINTS": ",".join(config.etcd_endpoints),
        "JOBMESH_ETCD_PREFIX": config.etcd_prefix,
        "JOBMESH_NATS_URL": config.nats_url,
        "JOBMESH_NATS_PREFIX": config.nats_prefix,
        "JOBMESH_ORCHESTRATOR_TARGET": config.orchestrator_target,
        "JOBMESH_SPOOL_DIR": str(tmp_path),
        **more,
    }
    command = (sys.executable, "-m", "services.worker", "--app", config.app, *arguments)
    return await asyncio.create_subprocess_exec(*command, env=environ)


@pytest.fixture
async def bare(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    """The surroundings, without a worker."""
    around = rigged(
        nats_url=nats_url, etcd=etcd_endpoint, prefix=unique_prefix, spool=tmp_path, types=()
    )
    async with around as made:
        yield made


async def test_sigterm_ends_a_worker_process_with_zero(bare: Rig, tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    worker = await spawn(
        bare, tmp_path, "--types", "upper,shout", JOBMESH_LOCAL_WORKERS_DIR=str(folder)
    )
    job = new_job()
    await bare.scheduler.dispatch("upper", dispatch(job, "a"))
    await bare.orchestrator.reported(job, "succeeded")
    (name,) = os.listdir(folder)
    assert name == f"{await bare.worker_id()}.json"
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0
    assert await bare.worker_ids() == []
    assert os.listdir(folder) == []


async def test_a_second_signal_does_not_wait(bare: Rig, tmp_path: Path) -> None:
    worker = await spawn(bare, tmp_path, "--types", "waits", "--drain-seconds", "60")
    job = new_job()
    await bare.scheduler.dispatch("waits", dispatch(job))
    await bare.orchestrator.reported(job, "started")
    worker.send_signal(signal.SIGTERM)
    await eventually(lambda: _draining(bare))
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 128 + signal.SIGTERM
    assert await bare.worker_ids() == []


async def _draining(rig: Rig) -> bool:
    return (await rig.info()).draining


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--types", "nosuch"), 1, "no type 'nosuch'"),
        (("--app", "no.such.module"), 1, "cannot import app module"),
        (("--capacity", "0"), 2, "JOBMESH_CAPACITY"),
    ],
)
async def test_a_worker_that_cannot_start_says_why(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    command = (
        sys.executable,
        "-m",
        "services.worker",
        "--app",
        "tests.integration.worker_handlers",
        *arguments,
    )
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    worker = await asyncio.create_subprocess_exec(
        *command, env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await worker.communicate()
    assert worker.returncode == code
    assert said in errors.decode()
