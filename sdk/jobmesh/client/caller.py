"""One channel to one service: deadlines on every call, retries where they are safe."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import ClassVar, Protocol, TypeVar

import grpc

from jobmesh.client.status import from_rpc, is_transient
from jobmesh.errors import CallError

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)

ADDRESS_VARIABLE = "JOBMESH_ADDRESS"
DEFAULT_ADDRESS = "127.0.0.1:7101"
DEFAULT_TIMEOUT_SECONDS = 10.0
#: Tries per call, the first included; with the waits below about 3 seconds in all.
DEFAULT_ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0

CHANNEL_OPTIONS = (
    # Pages and full jobs may be larger than gRPC's 4 MiB; what we send never is.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A mesh that restarts is found again at once, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also how long a connection may take to be made, at least: the default lets a replica that
    # takes connections and says nothing hold every call for 20 seconds.
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


def pauses() -> Iterator[float]:
    """Waits between tries: doubling, with jitter, so that many clients do not come back at once."""
    ceiling = FIRST_PAUSE_SECONDS
    while True:
        yield ceiling * random.uniform(0.5, 1.0)
        ceiling = min(ceiling * 2, MAX_PAUSE_SECONDS)


class Method(Protocol[Request, Response]):
    """A method of a stub, or what stands for one and explains its errors itself."""

    def __call__(self, request: Request, /, *, timeout: float) -> Awaitable[Response]: ...


class Caller:
    """Calls methods of one service. The channel is opened at the first call, in the loop of it."""

    #: The process that opened the first channel of all. What gRPC has begun there does not live
    #: through a fork, closed or not: in a child every call would hang, or crash.
    _opened_in: ClassVar[int | None] = None

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = DEFAULT_ATTEMPTS,
        credentials: grpc.ChannelCredentials | None = None,
        service: str = "mesh",
        variable: str = ADDRESS_VARIABLE,
    ) -> None:
        self.address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        self.timeout = timeout
        self.attempts = attempts
        #: For the words about one that does not answer: what it is, and what says where it is.
        self.service, self.variable = service, variable
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = self._open()
        return self._channel

    def _open(self) -> grpc.aio.Channel:
        if Caller._opened_in not in (None, os.getpid()):
            raise RuntimeError(
                "this process was forked from one that has called the mesh, and gRPC does not live "
                "through that: fork before the first call, or spawn instead"
            )
        Caller._opened_in = os.getpid()
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self.address, self._credentials, options=CHANNEL_OPTIONS)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        repeat: bool | Callable[[CallError], bool],
        timeout: float | None = None,
    ) -> Response:
        """The answer, within `timeout` over all tries.

        `repeat` says whether the call may be sent again after a passing error. A function is asked
        each time; it may change the request, and the error's `retry_after` with it.
        """
        allowed = repeat if callable(repeat) else lambda error: bool(repeat)
        limit = timeout or self.timeout
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit
        for tries, pause in enumerate(pauses(), start=1):
            try:
                return await method(request, timeout=max(deadline - clock(), 0.001))
            except grpc.aio.AioRpcError as failure:
                error = self.explain(failure, limit)
            except CallError as failure:
                error = failure
            if not is_transient(error) or tries >= self.attempts or not allowed(error):
                raise error
            wait = max(pause, error.retry_after or 0)
            if clock() + wait >= deadline:
                raise error
            await asyncio.sleep(wait)
        raise AssertionError("pauses never end")

    def explain(self, error: grpc.aio.AioRpcError, timeout: float) -> CallError:
        """A failed call as an exception of ours."""
        return from_rpc(error, self.address, timeout, self.service, self.variable)
