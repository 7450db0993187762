"""An upload that is given up leaves no parts behind, whatever was under way at that instant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from services.mesh.blob.connection import UploadGone
from services.mesh.blob.s3 import S3BlobStore
from services.mesh.blob.upload import PART_BYTES
from services.mesh.errors import DependencyUnavailable


class Client:
    """A store that knows which uploads there are."""

    def __init__(self) -> None:
        self.uploads: set[str] = set()

    def create_multipart_upload(self, **_: Any) -> dict[str, str]:
        self.uploads.add("u1")
        return {"UploadId": "u1"}

    def upload_part(self, **_: Any) -> dict[str, str]:
        # A part that comes late makes the store keep the upload, as S3 may.
        self.uploads.add("u1")
        return {"ETag": "e"}

    def abort_multipart_upload(self, *, UploadId: str, **_: Any) -> None:  # noqa: N803
        self.uploads.discard(UploadId)


class Threads:
    """Calls go on when whoever waits for them is cancelled; the one at the gate waits there."""

    def __init__(self, gated: int) -> None:
        self.client, self._left = Client(), gated
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()

    async def call(self, key: str, function: Callable[[Any], Any]) -> Any:
        return await asyncio.shield(asyncio.create_task(self._run(function)))

    async def _run(self, function: Callable[[Any], Any]) -> Any:
        self._left -= 1
        if self._left == 0:
            self.arrived.set()
            await self.gate.wait()
        return function(self.client)


async def two_parts() -> AsyncIterator[bytes]:
    yield bytes(PART_BYTES)
    yield b"rest"


@pytest.mark.parametrize("gated", [1, 2, 3], ids=["begin", "first part", "last part"])
async def test_an_upload_that_is_cancelled_is_aborted_after_what_is_under_way(gated: int) -> None:
    threads = Threads(gated)
    store = S3BlobStore(cast(Any, threads), "bucket")
    put = asyncio.create_task(store.put_stream("key", two_parts()))
    await threads.arrived.wait()
    put.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    threads.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await put
    for _ in range(5):
        await asyncio.sleep(0)
    assert threads.client.uploads == set()


async def test_an_upload_that_the_store_forgot_is_the_stores_fault() -> None:
    threads = Threads(0)

    def forgotten(**_: Any) -> None:
        raise UploadGone("no such upload")

    threads.client.upload_part = forgotten  # type: ignore[method-assign,assignment]
    store = S3BlobStore(cast(Any, threads), "bucket")
    with pytest.raises(DependencyUnavailable):
        await store.put_stream("key", two_parts())
