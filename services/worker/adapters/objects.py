"""Inputs, outputs and logs in object stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import ceil
from pathlib import Path
from typing import BinaryIO

from services.mesh.blob import BlobStore, output_key
from services.mesh.blob.keys import OUTPUT_NAME
from services.mesh.errors import ObjectCorrupt
from services.mesh.jobs.logs import (
    LOG_CONTENT_TYPE,
    LOG_NAME,
    LOG_SO_FAR_NAME,
    LogLine,
    log_to_bytes,
)
from services.mesh.jobs.model import ObjectRef, Payload
from services.mesh.runtime import in_own_thread
from services.worker.domain.attempt import Attempt
from services.worker.ports import Objects

PIECE_BYTES = 1024 * 1024


class BlobObjects(Objects):
    """The port over two buckets."""

    def __init__(self, inputs: BlobStore, outputs: BlobStore) -> None:
        self._inputs, self._outputs = inputs, outputs

    async def read(self, ref: ObjectRef) -> bytes:
        data = await self._inputs.get_bytes(ref.key, sha256=ref.sha256)
        if len(data) != ref.size:
            raise ObjectCorrupt(ref.key)
        return data

    async def download(self, ref: ObjectRef, target: Path) -> None:
        size = 0
        with await in_own_thread(target.open, "wb") as file:
            async for chunk in self._inputs.get_stream(ref.key, sha256=ref.sha256):
                size += len(chunk)
                await in_own_thread(file.write, chunk)
        if size != ref.size:
            raise ObjectCorrupt(ref.key)

    async def input_url(self, ref: ObjectRef, seconds: float) -> str:
        return await self._inputs.presign_get(ref.key, ceil(seconds))

    async def output_url(self, attempt: Attempt, seconds: float) -> str:
        return (await self._outputs.presign_put(_output_key(attempt), ceil(seconds))).url

    async def uploaded(self, attempt: Attempt) -> ObjectRef:
        return (await self._outputs.head(_output_key(attempt))).ref

    async def store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Payload:
        key = _output_key(attempt)
        if isinstance(content, bytes):
            ref = await self._outputs.put_bytes(
                key, content, content_type=content_type, write_once=True
            )
        else:
            with await in_own_thread(content.open, "rb") as file:
                ref = await self._outputs.put_stream(
                    key, _pieces(file), content_type=content_type, write_once=True
                )
        return Payload.stored(ref, content_type)

    async def keep_log(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        await self._write_log(_key(attempt, LOG_NAME), lines)

    async def keep_log_so_far(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        await self._write_log(_key(attempt, LOG_SO_FAR_NAME), lines)

    async def forget_log_so_far(self, attempt: Attempt) -> None:
        await self._outputs.delete([_key(attempt, LOG_SO_FAR_NAME)])

    async def _write_log(self, key: str, lines: Sequence[LogLine]) -> None:
        data = await in_own_thread(log_to_bytes, lines)
        await self._outputs.put_bytes(key, data, content_type=LOG_CONTENT_TYPE)


def _output_key(attempt: Attempt) -> str:
    return _key(attempt, OUTPUT_NAME)


def _key(attempt: Attempt, name: str) -> str:
    return output_key(attempt.namespace, attempt.job_id, attempt.fence, name)


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await in_own_thread(file.read, PIECE_BYTES):
        yield piece
