"""An object store within one process, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime

from services.mesh.blob.port import (
    CHUNK_BYTES,
    OCTETS,
    BlobStore,
    Listed,
    PresignedUpload,
    StoredObject,
)
from services.mesh.blob.upload import parts_of
from services.mesh.errors import AlreadyExists, ObjectCorrupt, ObjectNotFound, PayloadTooLarge
from services.mesh.jobs.model import ObjectRef


class MemoryBlobStore(BlobStore):
    def __init__(self) -> None:
        #: Bytes and media type by key; a test may look, or damage them.
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.times: dict[str, datetime] = {}

    async def ensure_bucket(self) -> None:
        """There is nothing to create."""

    async def put_bytes(
        self, key: str, data: bytes, *, content_type: str = OCTETS, write_once: bool = False
    ) -> ObjectRef:
        if write_once and key in self.objects and self.objects[key][0] != data:
            raise AlreadyExists(key, f"the object {key!r} exists, with other bytes")
        self.objects[key] = (bytes(data), content_type)
        self.times[key] = datetime.now(UTC)
        return _ref(key, data)

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
            data = b"".join([part async for part in parts])
        return await self.put_bytes(key, data, content_type=content_type, write_once=write_once)

    async def get_bytes(
        self, key: str, *, sha256: bytes = b"", max_size: int | None = None
    ) -> bytes:
        data, _ = self._find(key)
        if max_size is not None and len(data) > max_size:
            raise PayloadTooLarge(len(data), max_size, f"the object {key!r}")
        if sha256 and hashlib.sha256(data).digest() != sha256:
            raise ObjectCorrupt(key)
        return data

    async def get_stream(
        self,
        key: str,
        *,
        sha256: bytes = b"",
        offset: int = 0,
        length: int | None = None,
        chunk_size: int = CHUNK_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        data, _ = self._find(key)
        end = len(data) if length is None else min(len(data), offset + length)
        for start in range(offset, end, chunk_size):
            yield data[start : min(end, start + chunk_size)]
        if sha256 and hashlib.sha256(data).digest() != sha256:
            raise ObjectCorrupt(key)

    async def head(self, key: str) -> StoredObject:
        data, content_type = self._find(key)
        return StoredObject(_ref(key, data), content_type, self.times.get(key))

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def copy(self, source: str, target: str) -> ObjectRef:
        data, content_type = self._find(source)
        return await self.put_bytes(target, data, content_type=content_type)

    async def page(self, after: str = "", limit: int = 1000) -> list[Listed]:
        keys = sorted(key for key in self.objects if key > after)[:limit]
        return [Listed(key, len(self.objects[key][0]), self.times[key]) for key in keys]

    async def presign_get(self, key: str, expires_seconds: int, *, filename: str = "") -> str:
        return f"memory:{key}"

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
        return PresignedUpload(f"memory:{key}")

    def _find(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise ObjectNotFound(key)
        return self.objects[key]


def _ref(key: str, data: bytes) -> ObjectRef:
    return ObjectRef(key, len(data), hashlib.sha256(data).digest())
