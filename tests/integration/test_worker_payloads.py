"""Inputs and outputs that are too large to travel inline."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from jobmesh.v1 import bus_pb2
from localmesh.providers import S3Settings

from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.worker_rig import Rig, dispatch, new_job, rigged

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

TYPES = ("reads-file", "makes-file", "measures", "large", "shout", "awaits-file")


@pytest.fixture
async def rig(
    nats_url: str,
    etcd_endpoint: str,
    unique_prefix: str,
    tmp_path: Path,
    s3_settings: S3Settings,
) -> AsyncIterator[Rig]:
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=TYPES,
        s3=s3_settings,
    )
    async with around as made:
        yield await made.start()


@pytest.fixture
def upload(s3_client: S3Client, s3_settings: S3Settings) -> Upload:
    return Upload(s3_client, s3_settings.input_bucket)


class Upload:
    """Puts inputs where workers find them."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def __call__(self, job: UUID, data: bytes, *, claim: bytes | None = None) -> bus_pb2.Dispatch:
        """A dispatch of the job with this input; `claim` is what its hash is said to be of."""
        key = f"default/inputs/{job}"
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data)
        return refers_to(job, key, data if claim is None else claim)


def files_under(folder: Path) -> list[str]:
    return [name for _, _, names in os.walk(folder) for name in names]


def refers_to(job: UUID, key: str, data: bytes) -> bus_pb2.Dispatch:
    made = dispatch(job)
    made.input.object.key = key
    made.input.object.size_bytes = len(data)
    made.input.object.sha256 = hashlib.sha256(data).digest()
    return made


@pytest.fixture
async def hung_threads() -> AsyncIterator[None]:
    """All threads that `asyncio.to_thread` has hang, as handlers may leave them."""
    loop, gate = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hung = loop.run_in_executor(None, gate.wait)
    yield
    gate.set()
    await hung


@pytest.mark.usefixtures("hung_threads")
async def test_threads_of_handlers_that_hang_hold_up_no_inputs_and_outputs(
    rig: Rig, upload: Upload
) -> None:
    reads, waits, makes, returns = (new_job() for _ in range(4))
    await rig.scheduler.dispatch("reads-file", upload(reads, b"z" * 100_000))
    await rig.scheduler.dispatch("awaits-file", upload(waits, b"z" * 100_000))
    await rig.scheduler.dispatch("makes-file", dispatch(makes, 100_000))
    await rig.scheduler.dispatch("large", dispatch(returns, 100_000))
    for job in (reads, waits, makes, returns):
        await rig.orchestrator.reported(job, "succeeded")
    assert await rig.stop() == 0


@pytest.mark.parametrize("type_", ["reads-file", "measures"])
async def test_an_input_object_reaches_its_handler(rig: Rig, upload: Upload, type_: str) -> None:
    job, data = new_job(), b"z" * 3_000_000
    await rig.scheduler.dispatch(type_, upload(job, data))
    report = await rig.orchestrator.reported(job, "succeeded")
    assert json.loads(report.succeeded.output.data) == len(data)


@pytest.mark.parametrize("type_", ["large", "makes-file"])
async def test_a_large_output_becomes_an_object_of_the_attempt(
    rig: Rig, s3_client: S3Client, type_: str
) -> None:
    job, size = new_job(), 100_000
    await rig.scheduler.dispatch(type_, dispatch(job, size, fence=5))
    report = await rig.orchestrator.reported(job, "succeeded")
    ref = report.succeeded.output.object
    assert ref.key.startswith(f"default/outputs/{job}/5/")
    assert ref.size_bytes == size
    found = s3_client.get_object(Bucket=rig.config.s3_output_bucket, Key=ref.key)
    data = found["Body"].read()
    assert (len(data), hashlib.sha256(data).digest()) == (size, ref.sha256)


async def test_nothing_is_left_in_the_spool(rig: Rig, upload: Upload, tmp_path: Path) -> None:
    for type_ in ("reads-file", "makes-file"):
        job = new_job()
        one = upload(job, b"1") if type_ == "reads-file" else dispatch(job, 50_000)
        await rig.scheduler.dispatch(type_, one)
        await rig.orchestrator.reported(job, "succeeded")
        await rig.unlocked(job)
    assert files_under(tmp_path) == []


async def test_a_missing_input_fails_for_good(rig: Rig) -> None:
    job = new_job()
    await rig.scheduler.dispatch("reads-file", refers_to(job, f"default/inputs/{job}", b"x"))
    report = await rig.orchestrator.reported(job, "failed")
    assert report.failed.failure.permanent
    assert report.failed.failure.type == "InputUnreadable"


@pytest.mark.parametrize("type_", ["reads-file", "measures"])
async def test_a_corrupt_input_fails_for_good(rig: Rig, upload: Upload, type_: str) -> None:
    job = new_job()
    await rig.scheduler.dispatch(type_, upload(job, b"damaged", claim=b"genuine"))
    report = await rig.orchestrator.reported(job, "failed")
    assert report.failed.failure.permanent


async def test_a_store_that_is_away_costs_no_attempt(
    nats_url: str,
    etcd_endpoint: str,
    unique_prefix: str,
    tmp_path: Path,
    s3_settings: S3Settings,
    upload: Upload,
) -> None:
    port = int(s3_settings.endpoint.rpartition(":")[2])
    async with FaultProxy(port) as proxy:
        around = rigged(
            nats_url=nats_url,
            etcd=etcd_endpoint,
            prefix=unique_prefix,
            spool=tmp_path,
            types=TYPES,
            s3=s3_settings,
            s3_endpoint=f"http://{proxy.address}",
            output_patience_seconds=0.0,
        )
        async with around as rig:
            await rig.start()
            proxy.become(Link.CUT)
            reading, writing = new_job(), new_job()
            await rig.scheduler.dispatch("reads-file", upload(reading, b"x"))
            await rig.scheduler.dispatch("large", dispatch(writing, 50_000))
            for job in (reading, writing):
                report = await rig.orchestrator.reported(job, "handed_back", 30)
                assert report.handed_back.delay.seconds > 0
            proxy.become(Link.PASS)
            again = new_job()
            await rig.scheduler.dispatch("reads-file", upload(again, b"x"))
            await rig.orchestrator.reported(again, "succeeded")
