"""Programs as handlers: started by a pool or by a flag, judged by their exit codes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from jobmesh import JobState, Retry
from jobmesh.client import AsyncClient
from jobmesh.client.caller import Caller
from jobmesh.client.operators import Pools
from jobmesh.v1.pool_pb2 import PoolSpec, ProcessDriver
from localmesh.harness import RunningMesh

from tests.e2e.hands import APPS, PATIENCE, WorkerRoom, aside, types_known

JOBMESH = str(Path(sys.executable).with_name("jobmesh"))
POOL = PoolSpec(
    type="cmd-upper",
    max_workers=1,
    empty_for=Duration(seconds=1),
    cooldown=Duration(seconds=1),
    process=ProcessDriver(app="command_app:app", directory=str(APPS)),
)


async def test_a_pool_runs_a_program_on_a_large_input(
    mesh: RunningMesh, client: AsyncClient, tmp_path: Path
) -> None:
    file, came = tmp_path / "large", tmp_path / "came"
    file.write_bytes(b"abcdefgh" * (3 << 17))  # 3 MiB
    async with Pools(Caller(mesh.scaler_target)) as pools:
        await pools.create(POOL)
        await types_known(client, "cmd-upper")
        handle = await client.enqueue("cmd-upper", file)
        job = await handle.wait(PATIENCE)
        assert job.state is JobState.SUCCEEDED, job.failure
        await handle.download(came)
        await pools.delete("cmd-upper")
    want = hashlib.sha256(file.read_bytes().upper()).hexdigest()
    assert hashlib.sha256(came.read_bytes()).hexdigest() == want


async def test_the_exit_code_of_a_program_decides_what_follows(
    mesh: RunningMesh, client: AsyncClient, calm_room: WorkerRoom, tmp_path: Path
) -> None:
    line = "cmd-exit=sh -c 'code=$(cat); echo code is $code >&2; exit $code'"
    command = [JOBMESH, "worker", "--command", line, "--home", str(mesh.home)]
    worker = calm_room.run(command, tmp_path)
    await types_known(client, "cmd-exit")
    retry = Retry.fixed("50ms", attempts=3).only_on_exit(75)
    again = await client.enqueue("cmd-exit", 75, retry=retry)
    never = await client.enqueue("cmd-exit", 2, retry=retry)
    fine = await client.enqueue("cmd-exit", 0, retry=retry)
    job = await again.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.FAILED, 3)
    job = await never.wait(PATIENCE)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert job.failure is not None
    assert (job.failure.type, job.failure.message) == ("CommandFailed", "exit code 2: code is 2")
    assert job.failure.exit_code == 2
    assert (await fine.wait(PATIENCE)).state is JobState.SUCCEEDED
    assert await aside(worker.stop) == 0
