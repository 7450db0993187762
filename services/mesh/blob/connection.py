"""A boto3 client in a bounded pool of threads, and what its failures mean."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from services.mesh.blob.port import DEPENDENCY
from services.mesh.errors import DependencyUnavailable, ObjectNotFound, OutOfRange
from services.mesh.runtime import Dependency, in_own_thread

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

log = logging.getLogger(__name__)

T = TypeVar("T")

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_EXISTS = frozenset({"412", "PreconditionFailed"})
_GONE = frozenset({"NoSuchUpload"})
_CONFLICT = frozenset({"409", "ConditionalRequestConflict"})
_OUTSIDE = frozenset({"416", "InvalidRange"})


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach the store."""

    # Empty takes the default of AWS for the region.
    endpoint: str
    region: str
    access_key: str
    secret_key: str
    # How clients outside reach it, if not at `endpoint`: pre-signed URLs point there.
    public_endpoint: str = ""
    # Calls at once, and so threads and connections.
    threads: int = 16
    # Each call is tried that often, and each try may be silent that long.
    attempts: int = 3
    connect_seconds: float = 2.0
    timeout_seconds: float = 5.0


class WriteRefused(Exception):  # noqa: N818 - an outcome that the caller judges, not an error yet
    """A conditional write was refused: the key exists, or somebody else is writing it."""

    def __init__(self, conflict: bool) -> None:
        super().__init__("conflict" if conflict else "exists")
        self.conflict = conflict


class UploadGone(Exception):  # noqa: N818 - an outcome that the caller judges, not an error yet
    """The store knows no such upload: it lost it, or completed it and that answer was lost."""


class S3Connection:
    """Threads and connections to one endpoint; the stores of several buckets share it."""

    def __init__(self, settings: S3Settings, *, dependency: Dependency | None = None) -> None:
        self.settings = settings
        self._dependency = dependency
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="blob")
        self._clients: dict[str, S3Client] = {}
        self._making = threading.Lock()

    async def close(self) -> None:
        """End when the calls under way have ended; those that wait for a thread are dropped."""
        await in_own_thread(self._threads.shutdown, cancel_futures=True)
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    async def call(self, key: str, function: Callable[[S3Client], T]) -> T:
        """Run `function` with the client in a thread; what it raises comes back as a MeshError."""
        try:
            result = await self._run(key, function, self.settings.endpoint)
        except DependencyUnavailable as error:
            if self._dependency is not None:
                self._dependency.down(error)
            raise
        if self._dependency is not None:
            self._dependency.up()
        return result

    async def sign(self, function: Callable[[S3Client], T]) -> T:
        """Run `function` with a client for the endpoint that outsiders see; it makes no call."""
        endpoint = self.settings.public_endpoint or self.settings.endpoint
        return await self._run("", function, endpoint)

    async def _run(self, key: str, function: Callable[[S3Client], T], endpoint: str) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self._guarded(key, function, endpoint)
        )

    def _guarded(self, key: str, function: Callable[[S3Client], T], endpoint: str) -> T:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return function(self._client(endpoint))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise _judged(key, code, str(error)) from error
        except (BotoCoreError, OSError) as error:
            raise DependencyUnavailable(DEPENDENCY, f"the object store is away: {error}") from error

    def _client(self, endpoint: str) -> S3Client:
        with self._making:
            if endpoint not in self._clients:
                self._clients[endpoint] = self._make(endpoint)
            return self._clients[endpoint]

    def _make(self, endpoint: str) -> S3Client:
        # Imported here: it takes half a second, and many processes never touch an object.
        import boto3
        from botocore.config import Config

        settings = self.settings
        config = Config(
            signature_version="s3v4",
            # Signed over the content: the store refuses what was damaged on the way. Other
            # checksums are left out, as stores differ in which they know.
            s3={
                "addressing_style": "path" if endpoint else "auto",
                "payload_signing_enabled": True,
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": settings.attempts},
            connect_timeout=settings.connect_seconds,
            read_timeout=settings.timeout_seconds,
            max_pool_connections=settings.threads,
        )
        # A session of our own: the default one is shared by all and not safe to use from threads.
        return boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=settings.region,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            config=config,
        )


def _judged(key: str, code: str, said: str) -> Exception:
    """What an answer of the store means, by its error code."""
    if code in _MISSING:
        return ObjectNotFound(key)
    if code in _OUTSIDE:
        return OutOfRange(f"the object {key!r} ends before the range")
    if code in _GONE:
        return UploadGone(said)
    if code in _EXISTS or code in _CONFLICT:
        return WriteRefused(conflict=code in _CONFLICT)
    return DependencyUnavailable(DEPENDENCY, f"the object store refused: {said}")
