"""Inputs and outputs that are objects: uploads, downloads, and URLs past the mesh."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from services.mesh.errors import (
    ForbiddenTransition,
    InvalidField,
    ObjectNotFound,
)
from tests.integration.enqueue_desk import Desk, desk, rows  # noqa: F401


async def iter_async(items):
    for item in items:
        yield item


async def test_an_input_above_the_threshold_becomes_an_object(desk):
    job = (await desk.enqueue(b"x" * 20_000)).job
    stored = await desk.get(job.id)
    assert stored.spec.input.object.size_bytes == 20_000
    assert stored.spec.input.object.key.startswith("default/")


async def test_an_upload_becomes_the_input_of_a_job(desk):
    start = pb.UploadStart(content_type="text/plain", size_bytes=3_000_000)
    messages = [pb.UploadInputRequest(start=start)]
    messages += [pb.UploadInputRequest(chunk=b"y" * 500_000) for _ in range(6)]
    uploaded = (await desk.stub.UploadInput(iter_async(messages))).payload
    assert uploaded.object.size_bytes == 3_000_000
    spec = job_pb2.JobSpec(type="echo", input=uploaded)
    job = (await desk.stub.Enqueue(pb.EnqueueRequest(job=spec))).job
    assert (await desk.get(job.id)).spec.input.object.sha256 == uploaded.object.sha256


async def test_an_upload_that_is_not_what_it_said_is_refused(desk):
    start = pb.UploadInputRequest(start=pb.UploadStart(size_bytes=5))
    chunk = pb.UploadInputRequest(chunk=b"four")
    with pytest.raises(InvalidField, match="size_bytes"):
        await desk.stub.UploadInput(iter_async([start, chunk]))
    with pytest.raises(InvalidField, match="start"):
        await desk.stub.UploadInput(iter_async([chunk]))


async def test_objects_of_others_and_missing_ones_do_not_exist(desk):
    for key in ["other/inputs/1", "default/inputs/none"]:
        spec = job_pb2.JobSpec(type="echo", input={"object": {"key": key}})
        with pytest.raises(ObjectNotFound):
            await desk.stub.Enqueue(pb.EnqueueRequest(job=spec))
    assert await rows(desk) == 0


async def test_presigned_urls_carry_bytes_past_the_mesh(desk):
    made = await desk.stub.CreateUploadUrl(pb.CreateUploadUrlRequest(content_type="text/plain"))
    put = urllib.request.Request(made.url, data=b"direct", method="PUT", headers=dict(made.headers))
    await asyncio.to_thread(lambda: urllib.request.urlopen(put, timeout=10).close())
    spec = job_pb2.JobSpec(type="echo", input=made.payload)
    job = (await desk.stub.Enqueue(pb.EnqueueRequest(job=spec))).job
    assert (await desk.get(job.id)).spec.input.object.size_bytes == 6


async def download(desk: Desk, job_id: str) -> tuple[pb.OutputInfo, bytes]:
    call = desk.stub.DownloadOutput(pb.DownloadOutputRequest(job_id=job_id))
    parts = [part async for part in call]
    return parts[0].info, b"".join(part.chunk for part in parts)


async def test_an_inline_output_downloads(desk):
    job = (await desk.enqueue()).job
    with pytest.raises(ForbiddenTransition):
        await download(desk, job.id)
    await desk.run(job, payload_pb2.Payload(data=b"out", content_type="text/plain"))
    info, data = await download(desk, job.id)
    assert (info.content_type, info.size_bytes, data) == ("text/plain", 3, b"out")
    with pytest.raises(ObjectNotFound):
        await desk.stub.CreateDownloadUrl(pb.CreateDownloadUrlRequest(job_id=job.id))


async def test_a_large_keyed_input_sent_twice_is_the_same_job(desk):
    first = await desk.enqueue(b"x" * 100_000, key="k")
    again = await desk.enqueue(b"x" * 100_000, key="k")
    assert again.job.id == first.job.id


async def test_a_file_uploaded_twice_under_one_key_is_one_job(desk):
    async def submit() -> pb.EnqueueResponse:
        start = pb.UploadInputRequest(start=pb.UploadStart())
        uploaded = await desk.stub.UploadInput(
            iter_async([start, pb.UploadInputRequest(chunk=b"same bytes")])
        )
        spec = job_pb2.JobSpec(type="echo", input=uploaded.payload)
        return await desk.stub.Enqueue(pb.EnqueueRequest(job=spec, idempotency_key="k"))

    assert (await submit()).job.id == (await submit()).job.id
