"""Downloading an object in chunks; a read that breaks off goes on where it stopped."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.mesh.blob.connection import S3Connection, WriteRefused
from services.mesh.errors import DependencyUnavailable, ObjectCorrupt
from services.mesh.runtime import Backoff

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.1, ceiling=1.0)


@dataclass(slots=True)
class Download:
    """One read of one object, or of [offset, end) of it."""

    connection: S3Connection
    bucket: str
    key: str
    offset: int = 0
    end: int | None = None
    #: Of the version that was read first; another one must not be mixed in.
    etag: str = ""

    async def chunks(self, size: int, sha256: bytes = b"") -> AsyncGenerator[bytes, None]:
        digest = hashlib.sha256()
        failures = 0
        while True:
            body = await self._opened()
            try:
                while chunk := await self._read(body, size, digest):
                    self.offset += len(chunk)
                    failures = 0
                    yield chunk
                break
            except DependencyUnavailable as error:
                failures += 1
                if failures >= self.connection.settings.attempts:
                    raise
                extra = {"action": "download_resumed", "key": self.key, "error": str(error)}
                log.info("download broke off", extra=extra)
            finally:
                body.close()
            await asyncio.sleep(BACKOFF.delay(failures))
        if sha256 and digest.digest() != sha256:
            raise ObjectCorrupt(self.key)

    async def _opened(self) -> StreamingBody:
        try:
            return await self.connection.call(self.key, self._open)
        except WriteRefused as changed:
            # Our condition on the version did not hold: another object has taken its place.
            raise ObjectCorrupt(self.key) from changed

    def _open(self, client: S3Client) -> StreamingBody:
        request: GetObjectRequestTypeDef = {"Bucket": self.bucket, "Key": self.key}
        if self.offset or self.end is not None:
            last = "" if self.end is None else str(self.end - 1)
            request["Range"] = f"bytes={self.offset}-{last}"
        if self.etag:
            request["IfMatch"] = self.etag
        answer = client.get_object(**request)
        self.etag = answer["ETag"]
        return answer["Body"]

    async def _read(self, body: StreamingBody, size: int, digest: hashlib._Hash) -> bytes:
        def read(_: S3Client) -> bytes:
            chunk: bytes = body.read(size)
            digest.update(chunk)
            return chunk

        return await self.connection.call(self.key, read)
