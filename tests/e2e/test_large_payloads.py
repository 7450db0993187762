"""Inputs and outputs too large for a row: they go through the object store, and the row links."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from jobmesh import JobState
from jobmesh.client import AsyncClient
from jobmesh.v1 import job_pb2
from localmesh.harness import RunningMesh
from mypy_boto3_s3 import S3Client

from tests.e2e.hands import PATIENCE

SIZE = 5 * 1024 * 1024


async def test_a_large_input_and_output_travel_through_the_object_store(
    client: AsyncClient, mesh: RunningMesh, tmp_path: Path
) -> None:
    text = _text(tmp_path / "book.txt")
    payload = await client.upload(text, "text/plain")
    assert payload.object.size_bytes == SIZE
    handle = await client.enqueue("wordcount", text)
    job = await handle.wait(PATIENCE)
    assert job.state is JobState.SUCCEEDED, job.failure

    message = job.message
    assert isinstance(message, job_pb2.Job)
    sent, made = message.spec.input.object, message.output.object
    assert not message.spec.input.data
    assert not message.output.data
    with _s3(mesh) as s3:
        stored = _object(s3, mesh.plan.settings.s3_input_bucket, sent.key)
        assert stored == text.read_bytes()
        result = _object(s3, mesh.plan.settings.s3_output_bucket, made.key)
    assert hashlib.sha256(stored).digest() == sent.sha256
    assert (len(result), hashlib.sha256(result).digest()) == (made.size_bytes, made.sha256)

    await handle.download(tmp_path / "words.csv")
    assert (tmp_path / "words.csv").read_bytes() == result
    counted = dict(line.rsplit(",", 1) for line in result.decode().splitlines())
    expected = Counter(text.read_text().split())
    assert counted == {word: str(count) for word, count in expected.items()}


async def test_an_input_above_the_inline_threshold_becomes_an_object_and_the_output_too(
    client: AsyncClient,
) -> None:
    value = {"text": "x" * 100_000}
    handle = await client.enqueue("echo", value)
    job = await handle.wait(PATIENCE)
    assert isinstance(job.message, job_pb2.Job)
    assert job.message.spec.input.HasField("object")
    assert job.message.output.HasField("object")
    assert await handle.result(PATIENCE) == value


def _text(path: Path) -> Path:
    """5 MB of words, many of them distinct, so that the output is large as well."""
    with path.open("w") as file:
        for number in range(SIZE // 10):
            file.write(f"w{number % 40_000:07d}\n ")
        file.truncate(SIZE)
    assert path.stat().st_size == SIZE
    return path


def _s3(mesh: RunningMesh):  # type: ignore[no-untyped-def]
    from contextlib import closing

    import boto3
    from botocore.config import Config

    settings = mesh.plan.settings
    return closing(
        boto3.client(
            "s3",
            endpoint_url=mesh.plan.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key,
            aws_secret_access_key=settings.s3_secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )
    )


def _object(s3: S3Client, bucket: str, key: str) -> bytes:
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()
