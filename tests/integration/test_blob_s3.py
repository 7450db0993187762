"""The S3 adapter of the object store does what the port promises, also while S3 misbehaves."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from localmesh.ports import LOOPBACK, PortPool
from localmesh.providers import S3Settings as Buckets

from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.blob.upload import PART_BYTES
from services.mesh.errors import AlreadyExists, DependencyUnavailable, ObjectNotFound
from services.mesh.runtime import Readiness
from services.mesh.testing.conformance.blob import (
    MIB,
    BlobConformance,
    collected,
    fresh_key,
    in_chunks,
)
from services.mesh.testing.faults import FaultProxy, Link
from services.mesh.testing.waiting import eventually

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def settings(of: Buckets, endpoint: str = "", **changes: float) -> S3Settings:
    return S3Settings(
        endpoint or of.endpoint,
        of.region,
        of.access_key,
        of.secret_key,
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
async def store(s3_settings: Buckets) -> AsyncIterator[S3BlobStore]:
    connection = S3Connection(settings(s3_settings))
    yield S3BlobStore(connection, s3_settings.output_bucket)
    await connection.close()


@pytest.fixture
async def proxy(s3_settings: Buckets) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(int(s3_settings.endpoint.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
async def shaky(s3_settings: Buckets, proxy: FaultProxy) -> AsyncIterator[S3BlobStore]:
    """The same bucket, by way of the proxy."""
    connection = S3Connection(settings(s3_settings, f"http://{proxy.address}", attempts=5))
    yield S3BlobStore(connection, s3_settings.output_bucket)
    proxy.become(Link.CUT)
    await connection.close()


@pytest.fixture
def ports() -> Iterator[PortPool]:
    with PortPool() as pool:
        yield pool


class Behind:
    """Does to an upload what only the store itself would, between its last part and its end."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def complete(self, key: str) -> None:
        """As an earlier try would, whose answer was lost."""
        upload = self._upload(key)
        sent = self._client.list_parts(Bucket=self._bucket, Key=key, UploadId=upload)["Parts"]
        self._client.complete_multipart_upload(
            Bucket=self._bucket,
            Key=key,
            UploadId=upload,
            MultipartUpload={
                "Parts": [{"PartNumber": one["PartNumber"], "ETag": one["ETag"]} for one in sent]
            },
        )

    def abort(self, key: str) -> None:
        """As a store does that loses it."""
        self._client.abort_multipart_upload(
            Bucket=self._bucket, Key=key, UploadId=self._upload(key)
        )

    def _upload(self, key: str) -> str:
        found = self._client.list_multipart_uploads(Bucket=self._bucket)["Uploads"]
        return next(one["UploadId"] for one in found if one["Key"] == key)


@pytest.fixture
def behind(s3_client: S3Client, s3_settings: Buckets) -> Behind:
    return Behind(s3_client, s3_settings.output_bucket)


async def one_part(part: bytes, afterwards: Callable[[], None]) -> AsyncIterator[bytes]:
    yield part
    await asyncio.to_thread(afterwards)


class TestS3BlobStore(BlobConformance):
    async def test_a_bucket_is_created_where_there_is_none(
        self, s3_settings: Buckets, s3_client: S3Client, unique_prefix: str
    ) -> None:
        connection = S3Connection(settings(s3_settings))
        store = S3BlobStore(connection, unique_prefix)
        await store.ensure_bucket()
        s3_client.head_bucket(Bucket=unique_prefix)
        s3_client.delete_bucket(Bucket=unique_prefix)
        await connection.close()

    async def test_a_broken_stream_leaves_no_parts_behind(
        self, store: S3BlobStore, s3_client: S3Client, s3_settings: Buckets
    ) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"x" * (9 * MIB)
            raise RuntimeError("the source went away")

        with pytest.raises(RuntimeError):
            await store.put_stream(fresh_key(), broken())
        left = s3_client.list_multipart_uploads(Bucket=s3_settings.output_bucket)
        assert left.get("Uploads", []) == []

    async def test_a_cancelled_upload_leaves_no_parts_behind(
        self, store: S3BlobStore, s3_client: S3Client, s3_settings: Buckets
    ) -> None:
        first_part_sent = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"x" * (9 * MIB)
            first_part_sent.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(store.put_stream(fresh_key(), endless()), name="upload")
        await first_part_sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = s3_client.list_multipart_uploads(Bucket=s3_settings.output_bucket)
        assert left.get("Uploads", []) == []

    @pytest.mark.parametrize("write_once", [True, False])
    async def test_an_upload_whose_completion_got_no_answer_is_stored(
        self, store: S3BlobStore, behind: Behind, write_once: bool
    ) -> None:
        key, part = fresh_key(), os.urandom(PART_BYTES)
        ref = await store.put_stream(
            key, one_part(part, partial(behind.complete, key)), write_once=write_once
        )
        assert await store.get_bytes(key, sha256=ref.sha256) == part

    @pytest.mark.parametrize("write_once", [True, False])
    async def test_an_upload_that_the_store_lost_is_the_stores_fault(
        self, store: S3BlobStore, behind: Behind, write_once: bool
    ) -> None:
        key, part = fresh_key(), os.urandom(PART_BYTES)
        with pytest.raises(DependencyUnavailable, match="forgot"):
            await store.put_stream(
                key, one_part(part, partial(behind.abort, key)), write_once=write_once
            )

    async def test_an_upload_that_was_to_replace_an_object_and_got_lost_did_not(
        self, store: S3BlobStore, behind: Behind
    ) -> None:
        key, part = fresh_key(), os.urandom(PART_BYTES)
        await store.put_bytes(key, b"before")
        with pytest.raises(DependencyUnavailable, match="forgot"):
            await store.put_stream(key, one_part(part, partial(behind.abort, key)))
        with pytest.raises(AlreadyExists):
            await store.put_stream(key, one_part(part, partial(behind.abort, key)), write_once=True)
        assert await store.get_bytes(key) == b"before"

    async def test_memory_stays_bounded_while_streaming(self, store: S3BlobStore) -> None:
        block = os.urandom(MIB)

        async def large() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield block

        key = fresh_key()
        await store.put_stream(key, in_chunks(b"x" * (9 * MIB), MIB))  # boto3 and its pools
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ref = await store.put_stream(key, large())
        total = 0
        async with aclosing(store.get_stream(key, sha256=ref.sha256)) as chunks:
            async for chunk in chunks:
                total += len(chunk)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert total == 100 * MIB
        assert grown < 60 * 1024, f"grew by {grown} KiB"


# --- pre-signed URLs ---


def _http(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_a_presigned_url_reads_one_object(store: S3BlobStore) -> None:
    key = fresh_key()
    await store.put_bytes(key, b"hello")
    url = await store.presign_get(key, 60, filename="out.txt")
    assert await asyncio.to_thread(_http, "GET", url) == (200, b"hello")
    other = url.replace("out.bin", "other.bin")
    assert (await asyncio.to_thread(_http, "GET", other))[0] == 403


async def test_a_presigned_url_writes_what_was_signed_and_nothing_else(
    store: S3BlobStore,
) -> None:
    key, body = fresh_key(), b"exactly this"
    upload = await store.presign_put(
        key,
        60,
        size=len(body),
        sha256=hashlib.sha256(body).digest(),
        content_type="text/plain",
        write_once=True,
    )

    async def put(data: bytes) -> int:
        headers = {k: v for k, v in upload.headers.items() if k != "Content-Length"}
        return (await asyncio.to_thread(_http, "PUT", upload.url, data, **headers))[0]

    assert await put(b"longer than this") == 403
    assert await put(b"EXACTLY THIS") == 400
    assert await put(body) == 200
    assert await put(body) == 412
    stored = await store.head(key)
    assert stored.ref.sha256 == hashlib.sha256(body).digest()
    assert stored.content_type == "text/plain"


async def test_a_plain_presigned_url_needs_no_headers(store: S3BlobStore) -> None:
    key = fresh_key()
    upload = await store.presign_put(key, 60)
    assert upload.headers == {}
    assert (await asyncio.to_thread(_http, "PUT", upload.url, b"anything"))[0] == 200
    stored = await store.head(key)
    assert (stored.ref.size, stored.ref.sha256) == (8, b"")


async def test_presigned_urls_point_to_the_public_endpoint(s3_settings: Buckets) -> None:
    base = settings(s3_settings)
    public = S3Settings(
        base.endpoint, base.region, base.access_key, base.secret_key, "https://files.example"
    )
    connection = S3Connection(public)
    store = S3BlobStore(connection, s3_settings.output_bucket)
    url = await store.presign_get("default/inputs/x", 60)
    assert url.startswith(f"https://files.example/{s3_settings.output_bucket}/default/inputs/x?")
    await connection.close()


# --- faults ---


async def test_a_store_that_is_away_is_said_to_be_so_within_seconds(
    s3_settings: Buckets, ports: PortPool
) -> None:
    readiness = Readiness()
    connection = S3Connection(
        settings(s3_settings, f"http://{LOOPBACK}:{ports.take()}"),
        dependency=readiness.require("s3"),
    )
    store = S3BlobStore(connection, s3_settings.output_bucket)
    began = time.monotonic()
    with pytest.raises(DependencyUnavailable) as raised:
        await store.put_bytes(fresh_key(), b"x")
    assert time.monotonic() - began < 8
    assert raised.value.metadata == {"dependency": "s3"}
    assert not readiness.ready
    await connection.close()


async def test_a_store_that_hangs_is_given_up_within_seconds(
    s3_settings: Buckets, proxy: FaultProxy
) -> None:
    endpoint = f"http://{proxy.address}"
    connection = S3Connection(settings(s3_settings, endpoint, timeout_seconds=0.5))
    store = S3BlobStore(connection, s3_settings.output_bucket)
    proxy.become(Link.HANG)
    began = time.monotonic()
    with pytest.raises(DependencyUnavailable):
        await store.get_bytes(fresh_key())
    assert time.monotonic() - began < 8
    await connection.close()


async def test_wrong_keys_are_a_dependency_that_refuses(s3_settings: Buckets) -> None:
    wrong = S3Settings(s3_settings.endpoint, s3_settings.region, "nobody", "secret")
    connection = S3Connection(wrong)
    with pytest.raises(DependencyUnavailable, match="refused"):
        await S3BlobStore(connection, s3_settings.output_bucket).put_bytes(fresh_key(), b"x")
    await connection.close()


async def test_a_write_whose_answer_was_lost_succeeds_on_retry(
    shaky: S3BlobStore, store: S3BlobStore, proxy: FaultProxy
) -> None:
    key = fresh_key()
    proxy.become(Link.DROP_REPLIES)
    writing = asyncio.create_task(shaky.put_bytes(key, b"x" * 1000, write_once=True), name="put")

    async def stored() -> bool:
        try:
            await store.head(key)
        except ObjectNotFound:
            return False
        return True

    await eventually(stored)
    proxy.become(Link.CUT)
    proxy.become(Link.PASS)
    ref = await writing
    assert await store.get_bytes(key, sha256=ref.sha256) == b"x" * 1000
    with pytest.raises(AlreadyExists):
        await shaky.put_bytes(key, b"y" * 1000, write_once=True)


async def test_a_read_that_breaks_off_goes_on_where_it_stopped(
    shaky: S3BlobStore, store: S3BlobStore, proxy: FaultProxy
) -> None:
    key, data = fresh_key(), os.urandom(20 * MIB)
    ref = await store.put_stream(key, in_chunks(data, MIB))
    found = bytearray()
    async with aclosing(shaky.get_stream(key, sha256=ref.sha256)) as chunks:
        async for chunk in chunks:
            found += chunk
            if len(found) in (3 * MIB, 11 * MIB):
                proxy.become(Link.CUT)
                proxy.become(Link.PASS)
    assert found == data


async def test_a_read_that_keeps_breaking_off_ends(
    shaky: S3BlobStore, store: S3BlobStore, proxy: FaultProxy
) -> None:
    key = fresh_key()
    await store.put_stream(key, in_chunks(os.urandom(20 * MIB), MIB))

    async def read() -> None:
        async with aclosing(shaky.get_stream(key)) as chunks:
            async for _ in chunks:
                proxy.become(Link.CUT)

    with pytest.raises(DependencyUnavailable):
        await read()


async def test_an_upload_goes_on_after_a_short_outage(
    shaky: S3BlobStore, store: S3BlobStore, proxy: FaultProxy
) -> None:
    data = os.urandom(20 * MIB)

    async def source() -> AsyncIterator[bytes]:
        async for chunk in in_chunks(data, MIB):
            yield chunk
            if chunk == data[9 * MIB : 10 * MIB]:
                proxy.become(Link.CUT)
                asyncio.get_running_loop().call_later(0.2, proxy.become, Link.PASS)

    key = fresh_key()
    ref = await shaky.put_stream(key, source())
    assert await collected(store, key) == data
    assert ref.sha256 == hashlib.sha256(data).digest()
