"""What services ask of an object store. No driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from services.mesh.jobs.model import ObjectRef

DEPENDENCY = "s3"
OCTETS = "application/octet-stream"
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What the store knows of an object; its SHA-256 is empty if it was not told when writing."""

    ref: ObjectRef
    content_type: str = OCTETS
    time: datetime | None = None
    """When it was written, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a list."""

    key: str
    size: int
    time: datetime
    """When it was written, by the store's clock."""


@dataclass(frozen=True, slots=True)
class PresignedUpload:
    """Where to PUT the bytes, and the headers that must be sent with them."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


class BlobStore(Protocol):
    """One bucket."""

    async def ensure_bucket(self) -> None:
        """Create the bucket unless it is there."""
        ...

    async def put_bytes(
        self, key: str, data: bytes, *, content_type: str = OCTETS, write_once: bool = False
    ) -> ObjectRef:
        """Store the bytes under the key.

        With `write_once` an existing object is kept: AlreadyExists, unless it has the same bytes.
        """
        ...

    async def put_stream(
        self,
        key: str,
        chunks: AsyncIterable[bytes],
        *,
        content_type: str = OCTETS,
        write_once: bool = False,
        max_size: int | None = None,
    ) -> ObjectRef:
        """Store what the iterator yields, in chunks of any size, within bounded memory.

        PayloadTooLarge beyond `max_size`. Nothing is stored unless the iterator ends well.
        """
        ...

    async def get_bytes(
        self, key: str, *, sha256: bytes = b"", max_size: int | None = None
    ) -> bytes:
        """The whole object; ObjectNotFound, ObjectCorrupt, PayloadTooLarge beyond `max_size`."""
        ...

    def get_stream(
        self,
        key: str,
        *,
        sha256: bytes = b"",
        offset: int = 0,
        length: int | None = None,
        chunk_size: int = CHUNK_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        """The object, or a range of it, in chunks.

        With `sha256`, which needs the whole object, ObjectCorrupt is raised after the last chunk.
        """
        ...

    async def head(self, key: str) -> StoredObject:
        """What is stored under the key; ObjectNotFound if nothing is."""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are fine."""
        ...

    async def copy(self, source: str, target: str) -> ObjectRef:
        """Copy an object within the store; ObjectNotFound if there is none."""
        ...

    async def page(self, after: str = "", limit: int = 1000) -> list[Listed]:
        """The objects whose keys come after one, in the order of their keys."""
        ...

    async def presign_get(self, key: str, expires_seconds: int, *, filename: str = "") -> str:
        """A URL to read the object with; `filename` is what a browser saves it as."""
        ...

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
        """A URL to write the object with. What is given is signed: other uploads are refused."""
        ...
