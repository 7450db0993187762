"""The S3 adapter: any S3-compatible store with conditional writes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from services.mesh.blob.connection import S3Connection, S3Settings, UploadGone, WriteRefused
from services.mesh.blob.download import Download
from services.mesh.blob.port import (
    CHUNK_BYTES,
    DEPENDENCY,
    OCTETS,
    BlobStore,
    Listed,
    PresignedUpload,
    StoredObject,
)
from services.mesh.blob.upload import PART_BYTES, Upload, parts_of, upload_lost
from services.mesh.errors import (
    AlreadyExists,
    DependencyUnavailable,
    ObjectNotFound,
    PayloadTooLarge,
)
from services.mesh.jobs.model import ObjectRef
from services.mesh.runtime import Backoff, in_own_thread

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, PutObjectRequestTypeDef

__all__ = ["S3BlobStore", "S3Connection", "S3Settings"]

BACKOFF = Backoff(first=0.1, ceiling=1.0)
#: The user metadata that carries an object's SHA-256, in hex.
SHA256 = "sha256"
DELETE_BATCH = 1000


class S3BlobStore(BlobStore):
    """One bucket of a connection."""

    def __init__(self, connection: S3Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    async def ensure_bucket(self) -> None:
        await self._connection.call(self._bucket, self._create_bucket)

    # --- writing ---

    async def put_bytes(
        self, key: str, data: bytes, *, content_type: str = OCTETS, write_once: bool = False
    ) -> ObjectRef:
        ref = ObjectRef(key, len(data), await in_own_thread(_sha256, data))
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": key,
            "Body": data,
            "ContentType": content_type,
            "Metadata": {SHA256: ref.sha256.hex()},
        }
        if write_once:
            request["IfNoneMatch"] = "*"
        return await self._write(ref, lambda client: client.put_object(**request))

    async def put_stream(
        self,
        key: str,
        chunks: AsyncIterable[bytes],
        *,
        content_type: str = OCTETS,
        write_once: bool = False,
        max_size: int | None = None,
    ) -> ObjectRef:
        async with aclosing(parts_of(chunks, max_size)) as parts:
            first = await anext(parts)
            if len(first) < PART_BYTES:
                return await self.put_bytes(
                    key, first, content_type=content_type, write_once=write_once
                )
            upload = Upload(self._connection, self._bucket, key)
            try:
                ref = await upload.send(first, parts, content_type)
                return await self._complete(upload, ref, write_once=write_once)
            except BaseException:
                # Also when we are cancelled: nobody else knows of the parts.
                await asyncio.shield(asyncio.create_task(upload.abort(), name="blob-abort"))
                raise

    async def _complete(self, upload: Upload, ref: ObjectRef, *, write_once: bool) -> ObjectRef:
        try:
            return await self._write(
                ref, lambda client: upload.complete(client, write_once=write_once)
            )
        except UploadGone as gone:
            return await self._completed_before(ref, gone, write_once=write_once)

    async def _completed_before(
        self, ref: ObjectRef, gone: UploadGone, *, write_once: bool
    ) -> ObjectRef:
        """Ours, if the object is there: only the answer to an earlier try was lost."""
        try:
            return await self._unless_other(ref)
        except ObjectNotFound:
            raise upload_lost(ref.key) from gone
        except AlreadyExists:
            if write_once:
                raise
            # What this upload was to replace is still there.
            raise upload_lost(ref.key) from gone

    async def _write(self, ref: ObjectRef, write: Callable[[S3Client], object]) -> ObjectRef:
        failures = 0
        while True:
            try:
                await self._connection.call(ref.key, write)
            except WriteRefused as refused:
                if not refused.conflict:
                    return await self._unless_other(ref)
                failures += 1
                if failures >= self._connection.settings.attempts:
                    said = f"somebody else is writing {ref.key!r}"
                    raise DependencyUnavailable(DEPENDENCY, said) from refused
            else:
                return ref
            await asyncio.sleep(BACKOFF.delay(failures))

    async def _unless_other(self, ref: ObjectRef) -> ObjectRef:
        """Ours, if the stored object has our bytes: then an earlier write of ours was the one."""
        stored = (await self.head(ref.key)).ref
        if stored.size == ref.size and await self._hash(stored) == ref.sha256:
            return ref
        raise AlreadyExists(ref.key, f"the object {ref.key!r} exists, with other bytes")

    async def _hash(self, stored: ObjectRef) -> bytes:
        """The stored object's SHA-256: as noted when it was written, or by reading it all."""
        if stored.sha256:
            return stored.sha256
        digest = hashlib.sha256()
        async with aclosing(self.get_stream(stored.key)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
        return digest.digest()

    # --- reading ---

    async def get_bytes(
        self, key: str, *, sha256: bytes = b"", max_size: int | None = None
    ) -> bytes:
        found = bytearray()
        async with aclosing(self.get_stream(key, sha256=sha256)) as chunks:
            async for chunk in chunks:
                found += chunk
                if max_size is not None and len(found) > max_size:
                    raise PayloadTooLarge(len(found), max_size, f"the object {key!r}")
        return bytes(found)

    def get_stream(
        self,
        key: str,
        *,
        sha256: bytes = b"",
        offset: int = 0,
        length: int | None = None,
        chunk_size: int = CHUNK_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        if sha256 and (offset or length is not None):
            raise ValueError("a range cannot be verified against the whole object's sha256")
        end = None if length is None else offset + length
        return Download(self._connection, self._bucket, key, offset, end).chunks(chunk_size, sha256)

    async def head(self, key: str) -> StoredObject:
        found = await self._connection.call(
            key, lambda client: client.head_object(Bucket=self._bucket, Key=key)
        )
        sha256 = bytes.fromhex(found.get("Metadata", {}).get(SHA256, ""))
        ref = ObjectRef(key, found["ContentLength"], sha256)
        return StoredObject(ref, found.get("ContentType", OCTETS), found.get("LastModified"))

    async def delete(self, keys: Iterable[str]) -> None:
        every = list(keys)
        for start in range(0, len(every), DELETE_BATCH):
            drop = partial(self._drop, keys=every[start : start + DELETE_BATCH])
            await self._connection.call(every[start], drop)

    async def copy(self, source: str, target: str) -> ObjectRef:
        await self._connection.call(source, partial(self._copy, source=source, target=target))
        return (await self.head(target)).ref

    async def page(self, after: str = "", limit: int = 1000) -> list[Listed]:
        def list_objects(client: S3Client) -> ListObjectsV2OutputTypeDef:
            return client.list_objects_v2(Bucket=self._bucket, StartAfter=after, MaxKeys=limit)

        found = await self._connection.call(after or self._bucket, list_objects)
        return [
            Listed(one["Key"], one["Size"], one["LastModified"])
            for one in found.get("Contents", ())
        ]

    # --- for others ---

    async def presign_get(self, key: str, expires_seconds: int, *, filename: str = "") -> str:
        parameters = {"Bucket": self._bucket, "Key": key}
        if filename:
            parameters["ResponseContentDisposition"] = f'attachment; filename="{filename}"'
        return await self._sign("get_object", parameters, expires_seconds)

    async def presign_put(
        self,
        key: str,
        expires_seconds: int,
        *,
        size: int | None = None,
        sha256: bytes = b"",
        content_type: str = "",
        write_once: bool = False,
    ) -> PresignedUpload:
        parameters: dict[str, Any] = {"Bucket": self._bucket, "Key": key}
        headers: dict[str, str] = {}
        if size is not None:
            parameters["ContentLength"] = size
            headers["Content-Length"] = str(size)
        if content_type:
            parameters["ContentType"] = headers["Content-Type"] = content_type
        if sha256:
            checksum = base64.b64encode(sha256).decode()
            parameters["ChecksumSHA256"] = headers["x-amz-checksum-sha256"] = checksum
            parameters["Metadata"] = {SHA256: sha256.hex()}
            headers[f"x-amz-meta-{SHA256}"] = sha256.hex()
        if write_once:
            parameters["IfNoneMatch"] = headers["If-None-Match"] = "*"
        return PresignedUpload(await self._sign("put_object", parameters, expires_seconds), headers)

    async def _sign(self, method: str, parameters: dict[str, Any], expires_seconds: int) -> str:
        return await self._connection.sign(
            lambda client: client.generate_presigned_url(
                method, Params=parameters, ExpiresIn=expires_seconds
            )
        )

    # --- in a thread ---

    def _create_bucket(self, client: S3Client) -> None:
        from botocore.exceptions import ClientError

        region = self._connection.settings.region
        place: Any = {"LocationConstraint": region}
        options = {} if region == "us-east-1" else {"CreateBucketConfiguration": place}
        try:
            client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            try:
                client.create_bucket(Bucket=self._bucket, **options)
            except client.exceptions.BucketAlreadyOwnedByYou:
                return  # another process was quicker

    def _copy(self, client: S3Client, source: str, target: str) -> None:
        # In parts, where it is larger than one call may copy; with its metadata.
        client.copy({"Bucket": self._bucket, "Key": source}, self._bucket, target)

    def _drop(self, client: S3Client, keys: list[str]) -> None:
        objects: Any = [{"Key": key} for key in keys]
        client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
