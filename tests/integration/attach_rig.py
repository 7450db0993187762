"""An executor played by the test, and a worker that it attaches to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator
from jobmesh.v1 import worker_service_pb2 as pb

from tests.integration.worker_rig import Rig, dispatch, new_job, rigged

SECONDS = 15.0


class Executor:
    """An attached executor, played by the test."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.heard: list[pb.AttachResponse] = []

    async def say(self, **message: Any) -> None:
        await self.call.write(pb.AttachRequest(**message))

    async def report(self, attempt: pb.AttachAttempt, **what: Any) -> None:
        said = orchestrator.AttemptReport(
            job_id=attempt.job_id, dispatch_no=attempt.dispatch_no, **what
        )
        await self.say(report=said)

    async def extend(self, attempt: pb.AttachAttempt, seconds: float) -> None:
        duration = Duration()
        duration.FromNanoseconds(int(seconds * 1e9))
        about = {"job_id": attempt.job_id, "dispatch_no": attempt.dispatch_no}
        await self.say(extend=pb.AttachExtend(**about, duration=duration))

    async def hear(self, kind: str) -> Any:
        """The next message of the kind; others before it are remembered."""
        async with asyncio.timeout(SECONDS):
            while True:
                for n, message in enumerate(self.heard):
                    if message.WhichOneof("message") == kind:
                        return getattr(self.heard.pop(n), kind)
                message = await self.call.read()
                assert isinstance(message, pb.AttachResponse), f"the stream ended before {kind}"
                self.heard.append(message)

    async def verdict(self) -> int:
        return int((await self.hear("verdict")).verdict)

    async def end(self) -> None:
        """Read to the end; raises what the worker ended the stream with."""
        async with asyncio.timeout(SECONDS):
            async for _ in self.call:
                pass


@asynccontextmanager
async def attach(
    rig: Rig, *types: str, credit: int = 1, name: str = "test"
) -> AsyncIterator[Executor]:
    async with rig.stub() as stub:
        call = stub.Attach()
        executor = Executor(call)
        try:
            if types:
                await executor.say(hello=pb.AttachHello(types=types, name=name))
                if credit:
                    await executor.say(credit=pb.AttachCredit(credit=credit))
            yield executor
        finally:
            call.cancel()


@pytest.fixture(name="rig")
async def rig_of_test(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    """A worker that serves nothing by itself."""
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=(),
        app="",
        attach=True,
    )
    async with around as made:
        yield await made.start()


async def handed(
    rig: Rig, executor: Executor, type_: str = "draw", **fields: Any
) -> tuple[UUID, pb.AttachAttempt]:
    """An attempt in the executor's hands."""
    job = new_job()
    await rig.scheduler.dispatch(type_, dispatch(job, {"n": 1}, **fields))
    attempt = await executor.hear("attempt")
    assert attempt.job_id == job.bytes
    return job, attempt
