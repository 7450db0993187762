"""Bytes up and down in chunks: inputs too large for a message, outputs of any size."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import grpc

from jobmesh.client.caller import Caller, pauses
from jobmesh.client.status import is_transient
from jobmesh.errors import InputError, call_error
from jobmesh.v1.enqueue_service_pb2 import (
    DownloadOutputRequest,
    DownloadOutputResponse,
    OutputInfo,
    UploadInputRequest,
    UploadStart,
)
from jobmesh.v1.payload_pb2 import Payload

if TYPE_CHECKING:
    from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceAsyncStub

T = TypeVar("T")

#: The most that travels inside a message; the contract's bound of `Payload.data`.
INLINE_BYTES = 1024 * 1024
CHUNK_BYTES = 256 * 1024
#: A transfer may take as long as this pace allows, and never less than a minute.
SLOWEST_BYTES_PER_SECOND = 256 * 1024
SHORTEST_DEADLINE_SECONDS = 60.0
DOWNLOAD_SECONDS = 3600.0


class Transfer:
    """Uploads and downloads over one stub. Both start over when the connection breaks."""

    def __init__(self, caller: Caller, stub: EnqueueServiceAsyncStub) -> None:
        self._caller = caller
        self._stub = stub

    async def upload(self, content: bytes | Path, content_type: str, namespace: str) -> Payload:
        """Stores an input and returns the reference to submit a job with."""
        size = _size(content)
        start = UploadStart(namespace=namespace, content_type=content_type, size_bytes=size)
        timeout = max(SHORTEST_DEADLINE_SECONDS, size / SLOWEST_BYTES_PER_SECOND)

        async def once() -> Payload:
            source = _Source(content)
            try:
                answer = await self._stub.UploadInput(source.messages(start), timeout=timeout)
            except asyncio.CancelledError:
                if source.failure is not None:
                    raise source.failure from None
                raise
            return answer.payload

        return await self._repeated(once, timeout)

    async def download(self, job_id: str, namespace: str, target: IO[bytes]) -> str:
        """Writes a job's output into `target` and returns its media type."""
        request = DownloadOutputRequest(namespace=namespace, job_id=job_id)

        async def once() -> str:
            target.seek(0)
            target.truncate()
            stream = self._stub.DownloadOutput(request, timeout=DOWNLOAD_SECONDS)
            try:
                return await _receive(stream, target)
            finally:
                stream.cancel()

        return await self._repeated(once, DOWNLOAD_SECONDS)

    async def _repeated(self, once: Callable[[], Awaitable[T]], timeout: float) -> T:
        for tries, pause in enumerate(pauses(), start=1):
            try:
                return await once()
            except grpc.aio.AioRpcError as failure:
                error = self._caller.explain(failure, timeout)
            if not is_transient(error) or tries >= self._caller.attempts:
                raise error
            await asyncio.sleep(max(pause, error.retry_after or 0))
        raise AssertionError("pauses never end")


def _size(content: bytes | Path) -> int:
    if isinstance(content, bytes):
        return len(content)
    try:
        return content.stat().st_size
    except OSError as error:
        raise _unreadable(content, error) from None


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(f"input: cannot read the file {file}: {error.strerror}")


class _Source:
    """What one try sends. If it cannot be read gRPC cancels the call, and `failure` says why."""

    def __init__(self, content: bytes | Path) -> None:
        self._content = content
        self.failure: InputError | None = None

    async def messages(self, start: UploadStart) -> AsyncIterator[UploadInputRequest]:
        yield UploadInputRequest(start=start)
        content = self._content
        try:
            # Reading a file is off the loop: a slow disk must not hold up the loop's other calls.
            with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield UploadInputRequest(chunk=chunk)
        except OSError as error:
            assert isinstance(content, Path)
            self.failure = _unreadable(content, error)
            raise


async def _receive(stream: AsyncIterable[DownloadOutputResponse], target: IO[bytes]) -> str:
    info = OutputInfo()
    digest = hashlib.sha256()
    async for response in stream:
        if response.HasField("info"):
            info = response.info
        digest.update(response.chunk)
        await asyncio.to_thread(target.write, response.chunk)
    if info.sha256 and digest.digest() != info.sha256:
        raise call_error(
            "DATA_LOSS",
            "the output's checksum differs from the recorded one",
            reason="OBJECT_CORRUPT",
        )
    return info.content_type
