"""What every adapter of the object store must do.

Subclass the suite in a test module and give it a `store` fixture.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import uuid4

import pytest

from services.mesh.blob import BlobStore, output_key
from services.mesh.errors import AlreadyExists, ObjectCorrupt, ObjectNotFound, PayloadTooLarge
from services.mesh.jobs.model import ObjectRef

MIB = 1024 * 1024


def fresh_key() -> str:
    return output_key("default", uuid4(), 1, "out.bin")


async def in_chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def collected(store: BlobStore, key: str, **options: int) -> bytes:
    async with aclosing(store.get_stream(key, **options)) as chunks:  # type: ignore[arg-type]
        return b"".join([chunk async for chunk in chunks])


class BlobConformance:
    async def test_lists_go_by_key_page_by_page(self, store: BlobStore) -> None:
        first = f"default/inputs/{uuid4()}"
        keys = [f"{first}-{number}" for number in range(5)]
        for key in keys:
            await store.put_bytes(key, b"12")
        page = await store.page(first, 3)
        assert [one.key for one in page] == keys[:3]
        assert {one.size for one in page} == {2}
        rest = [one.key for one in await store.page(keys[2], 1000)]
        assert rest[:2] == keys[3:]
        written = (await store.head(keys[0])).time
        assert written is not None
        assert abs((written - page[0].time).total_seconds()) < 2

    async def test_a_copy_has_the_bytes_and_what_is_known_of_them(self, store: BlobStore) -> None:
        source, target = fresh_key(), fresh_key()
        ref = await store.put_bytes(source, b"hello", content_type="text/plain")
        copied = await store.copy(source, target)
        assert copied == ObjectRef(target, 5, ref.sha256)
        assert (await store.head(target)).content_type == "text/plain"
        with pytest.raises(ObjectNotFound):
            await store.copy(fresh_key(), target)

    async def test_bytes_come_back_as_they_were_put(self, store: BlobStore) -> None:
        key = fresh_key()
        ref = await store.put_bytes(key, b"hello", content_type="text/plain")
        assert ref == ObjectRef(key, 5, hashlib.sha256(b"hello").digest())
        assert await store.get_bytes(key, sha256=ref.sha256) == b"hello"

    async def test_nothing_is_a_fine_object(self, store: BlobStore) -> None:
        key = fresh_key()
        ref = await store.put_bytes(key, b"")
        assert ref.size == 0
        assert await store.get_bytes(key, sha256=ref.sha256) == b""
        assert await collected(store, key) == b""

    async def test_head_tells_size_checksum_and_type(self, store: BlobStore) -> None:
        key = fresh_key()
        ref = await store.put_bytes(key, b"hello", content_type="text/plain")
        stored = await store.head(key)
        assert stored.ref == ref
        assert stored.content_type == "text/plain"

    async def test_a_missing_object_is_not_found(self, store: BlobStore) -> None:
        key = fresh_key()
        with pytest.raises(ObjectNotFound):
            await store.get_bytes(key)
        with pytest.raises(ObjectNotFound):
            await store.head(key)
        with pytest.raises(ObjectNotFound):
            await collected(store, key)

    @pytest.mark.parametrize("size", [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 20 * MIB + 17])
    async def test_a_stream_comes_back_as_it_was_put(self, store: BlobStore, size: int) -> None:
        key, data = fresh_key(), os.urandom(size)
        ref = await store.put_stream(key, in_chunks(data, 777_777))
        assert ref == ObjectRef(key, size, hashlib.sha256(data).digest())
        assert await store.get_bytes(key, sha256=ref.sha256) == data
        assert (await store.head(key)).ref.size == size

    async def test_a_range_is_read_alone(self, store: BlobStore) -> None:
        key = fresh_key()
        await store.put_bytes(key, bytes(range(100)))
        assert await collected(store, key, offset=10, length=5) == bytes(range(10, 15))
        assert await collected(store, key, offset=90) == bytes(range(90, 100))
        assert await collected(store, key, offset=95, length=50) == bytes(range(95, 100))

    async def test_chunks_have_the_size_that_was_asked_for(self, store: BlobStore) -> None:
        key = fresh_key()
        await store.put_bytes(key, b"x" * 250)
        async with aclosing(store.get_stream(key, chunk_size=100)) as chunks:
            assert [len(chunk) async for chunk in chunks] == [100, 100, 50]

    async def test_other_bytes_than_recorded_are_corrupt(self, store: BlobStore) -> None:
        key = fresh_key()
        await store.put_bytes(key, b"flipped")
        recorded = hashlib.sha256(b"original").digest()
        with pytest.raises(ObjectCorrupt):
            await store.get_bytes(key, sha256=recorded)

    async def test_a_read_over_the_limit_is_refused(self, store: BlobStore) -> None:
        key = fresh_key()
        await store.put_bytes(key, b"x" * 100)
        assert len(await store.get_bytes(key, max_size=100)) == 100
        with pytest.raises(PayloadTooLarge):
            await store.get_bytes(key, max_size=99)

    async def test_a_stream_over_the_limit_stores_nothing(self, store: BlobStore) -> None:
        key = fresh_key()
        with pytest.raises(PayloadTooLarge):
            await store.put_stream(key, in_chunks(b"x" * (9 * MIB), MIB), max_size=9 * MIB - 1)
        with pytest.raises(ObjectNotFound):
            await store.head(key)

    async def test_a_stream_that_breaks_stores_nothing(self, store: BlobStore) -> None:
        async def broken() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"x" * MIB
            raise RuntimeError("the source went away")

        key = fresh_key()
        with pytest.raises(RuntimeError, match="went away"):
            await store.put_stream(key, broken())
        with pytest.raises(ObjectNotFound):
            await store.head(key)

    async def test_a_second_write_replaces_the_first(self, store: BlobStore) -> None:
        key = fresh_key()
        await store.put_bytes(key, b"first")
        await store.put_bytes(key, b"second")
        assert await store.get_bytes(key) == b"second"

    @pytest.mark.parametrize("size", [100, 9 * MIB])
    async def test_what_is_written_once_is_kept(self, store: BlobStore, size: int) -> None:
        key = fresh_key()
        await store.put_stream(key, in_chunks(b"a" * size, MIB), write_once=True)
        with pytest.raises(AlreadyExists, match=r"^the object '"):
            await store.put_stream(key, in_chunks(b"b" * size, MIB), write_once=True)
        with pytest.raises(AlreadyExists):
            await store.put_bytes(key, b"b", write_once=True)
        assert await store.get_bytes(key) == b"a" * size

    @pytest.mark.parametrize("size", [100, 9 * MIB])
    async def test_the_same_bytes_may_be_written_once_again(
        self, store: BlobStore, size: int
    ) -> None:
        key = fresh_key()
        first = await store.put_stream(key, in_chunks(b"a" * size, MIB), write_once=True)
        second = await store.put_stream(key, in_chunks(b"a" * size, MIB), write_once=True)
        assert first == second

    async def test_deleted_objects_are_gone_and_missing_ones_are_fine(
        self, store: BlobStore
    ) -> None:
        keys = [fresh_key() for _ in range(3)]
        for key in keys:
            await store.put_bytes(key, b"")
        await store.delete([*keys, fresh_key()])
        await store.delete([])
        for key in keys:
            with pytest.raises(ObjectNotFound):
                await store.head(key)

    async def test_a_bucket_may_be_ensured_twice(self, store: BlobStore) -> None:
        await store.ensure_bucket()
        await store.ensure_bucket()
