"""Inputs and outputs as bytes: where they are kept, and how they get there and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from uuid import uuid4

from services.enqueue.domain.admission import check_owner
from services.mesh.blob import BlobStore, PresignedUpload, StoredObject, input_key
from services.mesh.clock import Clock
from services.mesh.errors import InvalidField, ObjectNotFound
from services.mesh.jobs.model import ObjectRef, Payload


class Inputs:
    """Puts large inputs away before their jobs are stored."""

    def __init__(
        self,
        store: BlobStore,
        inline_bytes: int,
        upload_bytes: int,
        clock: Clock,
        renew_after: timedelta | None = None,
    ) -> None:
        """`renew_after`: an object that is older is copied when a job comes to refer to it, so that
        it cannot be collected at that very moment.
        """
        self._store, self._clock, self._renew_after = store, clock, renew_after
        self._inline_bytes, self._upload_bytes = inline_bytes, upload_bytes

    def is_large(self, size: int) -> bool:
        """Whether bytes of this size belong into the store."""
        return size > self._inline_bytes

    async def offload(self, namespace: str, data: bytes, content_type: str) -> ObjectRef:
        """Put inline bytes away."""
        return await self._store.put_bytes(_new_key(namespace), data, content_type=content_type)

    async def verify(self, namespace: str, given: ObjectRef) -> ObjectRef:
        """The object a caller named: its own, really there, and as large as it was said to be."""
        check_owner(given.key, namespace)
        stored = await self._store.head(given.key)
        found = stored.ref
        if given.size and given.size != found.size:
            raise InvalidField(
                "input.object.size_bytes", f"the object has {found.size} bytes, not {given.size}"
            )
        key = await self._renewed(namespace, given.key) if self._is_old(stored) else given.key
        return ObjectRef(key, found.size, given.sha256 or found.sha256)

    def _is_old(self, stored: StoredObject) -> bool:
        if self._renew_after is None or stored.time is None:
            return False
        return stored.time < self._clock.now() - self._renew_after

    async def _renewed(self, namespace: str, key: str) -> str:
        return (await self._store.copy(key, _new_key(namespace))).key

    async def upload(
        self, namespace: str, chunks: AsyncIterator[bytes], content_type: str, size: int
    ) -> ObjectRef:
        """Store a stream of bytes. `size`, if given, must be what arrives."""
        return await self._store.put_stream(
            _new_key(namespace),
            _exactly(chunks, size) if size else chunks,
            content_type=content_type,
            max_size=self._upload_bytes,
        )

    async def upload_url(
        self, namespace: str, content_type: str, seconds: int
    ) -> tuple[PresignedUpload, ObjectRef]:
        """Where a caller may PUT one input by itself, and the reference to submit then."""
        key = _new_key(namespace)
        upload = await self._store.presign_put(key, seconds, content_type=content_type)
        return upload, ObjectRef(key, 0)


class Outputs:
    """Hands committed outputs out."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def chunks(self, output: Payload) -> AsyncIterator[bytes]:
        """The bytes, wherever they are."""
        if output.ref is None:
            yield output.data or b""
            return
        ref = output.ref
        async with aclosing(self._store.get_stream(ref.key, sha256=ref.sha256)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def download_url(self, job_id: str, output: Payload, seconds: int) -> str:
        """Where a caller may GET the output by itself; only objects have such a place."""
        if output.ref is None:
            raise ObjectNotFound(
                job_id, f"the output of job {job_id} is inline: use GetJob or DownloadOutput"
            )
        return await self._store.presign_get(output.ref.key, seconds)


def _new_key(namespace: str) -> str:
    return input_key(namespace, uuid4())


async def _exactly(chunks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The chunks, or InvalidField before the end if they are not `size` bytes in all."""
    arrived = 0
    async for chunk in chunks:
        arrived += len(chunk)
        if arrived > size:
            break
        yield chunk
    if arrived != size:
        raise InvalidField("start.size_bytes", f"said {size} bytes, but {arrived} arrived")
