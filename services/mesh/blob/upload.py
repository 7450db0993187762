"""Uploading a stream in parts, within bounded memory."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from services.mesh.blob.connection import S3Connection, UploadGone
from services.mesh.blob.port import DEPENDENCY
from services.mesh.errors import DependencyUnavailable, PayloadTooLarge
from services.mesh.jobs.model import ObjectRef

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
    )

log = logging.getLogger(__name__)

T = TypeVar("T")

PART_BYTES = 8 * 1024 * 1024
#: S3 numbers parts from 1 to this.
MAX_PARTS = 10_000


async def parts_of(
    chunks: AsyncIterable[bytes], max_size: int | None
) -> AsyncGenerator[bytes, None]:
    """The same bytes in parts of PART_BYTES, the last one shorter; one empty part for no bytes."""
    limit = PART_BYTES * MAX_PARTS if max_size is None else min(max_size, PART_BYTES * MAX_PARTS)
    held, total = bytearray(), 0
    async for chunk in chunks:
        total += len(chunk)
        if total > limit:
            raise PayloadTooLarge(total, limit, "the upload")
        held += chunk
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held or not total:
        yield bytes(held)


class Upload:
    """One multipart upload: begun, fed part by part, then completed or aborted."""

    def __init__(self, connection: S3Connection, bucket: str, key: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._key = key
        self._id = ""
        #: The call under way, if any: a thread that carries it out cannot be cancelled.
        self._under_way: asyncio.Task[Any] | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self._parts: list[CompletedPartTypeDef] = []

    async def send(self, first: bytes, rest: AsyncIterator[bytes], content_type: str) -> ObjectRef:
        """Send all parts; the object exists only after `complete`."""
        await self._begin(content_type)
        await self._send_part(first)
        async for part in rest:
            await self._send_part(part)
        return ObjectRef(self._key, self._size, self._digest.digest())

    def complete(self, client: S3Client, *, write_once: bool) -> None:
        """Make the object out of the parts; runs in a thread of the connection."""
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._key,
            "UploadId": self._id,
            "MultipartUpload": {"Parts": self._parts},
        }
        if write_once:
            request["IfNoneMatch"] = "*"
        client.complete_multipart_upload(**request)

    async def abort(self) -> None:
        """Throw the parts away; if that fails, the bucket's lifecycle rule has to.

        First what is under way must be over: it may be the begin, whose id nobody knows yet, or a
        part, which would come after the abort and stay.
        """
        if self._under_way is not None:
            await asyncio.wait({self._under_way})
        if not self._id:
            return
        try:
            await self._connection.call(
                self._key,
                lambda client: client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._key, UploadId=self._id
                ),
            )
        except UploadGone:
            return  # and its parts with it
        except Exception as error:
            extra = {"action": "upload_abort_failed", "key": self._key, "error": str(error)}
            log.warning("could not abort upload", extra=extra)

    async def _begin(self, content_type: str) -> None:
        def begin(client: S3Client) -> None:
            begun = client.create_multipart_upload(
                Bucket=self._bucket, Key=self._key, ContentType=content_type
            )
            self._id = begun["UploadId"]

        await self._call(begin)

    async def _send_part(self, part: bytes) -> None:
        number = len(self._parts) + 1

        def send(client: S3Client) -> str:
            answer = client.upload_part(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=self._id,
                PartNumber=number,
                Body=part,
            )
            self._digest.update(part)
            return answer["ETag"]

        try:
            etag = await self._call(send)
        except UploadGone as gone:
            raise upload_lost(self._key) from gone
        self._parts.append({"PartNumber": number, "ETag": etag})
        self._size += len(part)

    async def _call(self, function: Callable[[S3Client], T]) -> T:
        call = asyncio.create_task(self._connection.call(self._key, function), name="blob-upload")
        self._under_way = call
        return await asyncio.shield(call)


def upload_lost(key: str) -> DependencyUnavailable:
    """The parts are gone: all of them are to be sent again."""
    return DependencyUnavailable(DEPENDENCY, f"the object store forgot the upload of {key!r}")
