"""Calls to etcd: deadlines, failover between endpoints, login, one error for all that is away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TypeVar

from etcd import rpc_pb2 as pb
from grpc.aio import AioRpcError, StreamStreamCall, UnaryUnaryMultiCallable

from services.mesh.clock import Clock, SystemClock
from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.endpoint import Endpoint, EtcdSettings
from services.mesh.lease.etcd.failure import Refused, away, judge
from services.mesh.runtime import Backoff
from services.mesh.runtime.deadline import bounded

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[[Endpoint], UnaryUnaryMultiCallable[Request, Response]]
Metadata = tuple[tuple[str, str], ...]
KeepAliveStream = StreamStreamCall[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
WatchStream = StreamStreamCall[pb.WatchRequest, pb.WatchResponse]

#: Between the attempts of a repeatable call.
BACKOFF = Backoff(first=0.05, ceiling=0.5)
#: Makes a member without a leader refuse at once, so that we go to another one.
REQUIRE_LEADER = ("hasleader", "true")


class EtcdClient:
    """A connection to an etcd cluster, made on the event loop it is used from."""

    def __init__(self, settings: EtcdSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        targets = settings.targets()
        # Clients start at different members, so that one does not serve them all.
        random.shuffle(targets)
        self._endpoints = [Endpoint(target, settings) for target in targets]
        self._active = 0
        self._metadata: Metadata = (REQUIRE_LEADER,)
        self._login_needed = bool(settings.username)
        self._login_lock = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections. Calls under way fail."""
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    # --- keys ---

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        limit: int = 0,
        revision: int = 0,
        serializable: bool = False,
    ) -> pb.RangeResponse:
        """Read one key, or [key, range_end); `serializable` may read a member that lags."""
        request = pb.RangeRequest(
            key=key, range_end=range_end, limit=limit, revision=revision, serializable=serializable
        )
        return await self._call(lambda e: e.kv.Range, request, repeatable=True)

    async def put(self, key: bytes, value: bytes, *, lease_id: int = 0) -> pb.PutResponse:
        request = pb.PutRequest(key=key, value=value, lease=lease_id)
        return await self._call(lambda e: e.kv.Put, request, repeatable=True)

    async def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Delete one key, or [key, range_end); how many were there."""
        request = pb.DeleteRangeRequest(key=key, range_end=range_end)
        return (await self._call(lambda e: e.kv.DeleteRange, request, repeatable=True)).deleted

    async def txn(self, request: pb.TxnRequest, *, repeatable: bool = False) -> pb.TxnResponse:
        """Run a transaction; `repeatable` if running it twice does no harm and answers the same."""
        return await self._call(lambda e: e.kv.Txn, request, repeatable=repeatable)

    async def compact(self, revision: int) -> bool:
        """Forget the history before `revision`; False if it was forgotten already."""
        try:
            await self._call(lambda e: e.kv.Compact, pb.CompactionRequest(revision=revision))
        except Refused as refused:
            if refused.compacted:
                return False
            raise
        return True

    async def status(self) -> pb.StatusResponse:
        """Version, size, leader and alarms of the member that answers."""
        return await self._call(lambda e: e.maintenance.Status, pb.StatusRequest(), repeatable=True)

    # --- leases ---

    async def grant(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        # May be repeated: a lease granted without our knowing holds no keys and expires by itself.
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        return await self._call(lambda e: e.lease.LeaseGrant, request, repeatable=True)

    async def revoke(self, lease_id: int, timeout: float | None = None) -> None:
        """End a lease now; one that is gone already is fine."""
        request = pb.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._call(lambda e: e.lease.LeaseRevoke, request, timeout, repeatable=True)
        except Refused as refused:
            if not refused.lease_not_found:
                raise

    async def time_to_live(self, lease_id: int) -> int:
        """Seconds the lease has left; -1 if it is gone."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id)
        return (await self._call(lambda e: e.lease.LeaseTimeToLive, request, repeatable=True)).TTL

    async def keys_of(self, lease_id: int) -> list[bytes]:
        """The keys that would go with the lease."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id, keys=True)
        answer = await self._call(lambda e: e.lease.LeaseTimeToLive, request, repeatable=True)
        return list(answer.keys)

    # --- streams: a failure inside the block becomes DependencyUnavailable, and the next goes
    # elsewhere ---

    @asynccontextmanager
    async def keep_alive_stream(self) -> AsyncGenerator[KeepAliveStream, None]:
        """A stream on which leases are renewed."""
        endpoint = self._endpoints[self._active]
        with self._failing_over(endpoint):
            call = endpoint.lease.LeaseKeepAlive(metadata=await self._credentials(endpoint))
            try:
                yield call
            finally:
                call.cancel()

    @asynccontextmanager
    async def watch_stream(
        self, watcher: pb.WatchCreateRequest
    ) -> AsyncGenerator[WatchStream, None]:
        """A stream with one watcher on it."""
        endpoint = self._endpoints[self._active]
        with self._failing_over(endpoint):
            call = endpoint.watch.Watch(metadata=await self._credentials(endpoint))
            try:
                await call.write(pb.WatchRequest(create_request=watcher))
                yield call
            finally:
                call.cancel()

    @contextmanager
    def _failing_over(self, endpoint: Endpoint) -> Generator[None, None, None]:
        try:
            yield
        except AioRpcError as error:
            raise self._failed(endpoint, error) from error
        except (TimeoutError, asyncio.InvalidStateError) as error:
            self._leave(endpoint)
            raise away(endpoint.target, str(error) or "no answer in time") from error
        except asyncio.CancelledError as error:
            # grpc raises this also when the call, not our task, was cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise away(endpoint.target, "the stream was cancelled") from error

    # --- the call itself ---

    async def _call(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout: float | None = None,
        *,
        repeatable: bool = False,
    ) -> Response:
        timeout = bounded(timeout or self._settings.timeout_seconds)
        deadline = self._clock.monotonic() + timeout
        for failures in count(1):
            try:
                return await self._attempt(method, request, deadline, repeatable)
            except DependencyUnavailable as failure:
                pause = BACKOFF.delay(failures)
                if not self._may_repeat(failure, repeatable, deadline - pause):
                    raise
                why = {"action": "etcd_call_repeated", "error": str(failure)}
                log.debug("calling etcd again", extra=why)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the count does not end")

    def _may_repeat(self, failure: DependencyUnavailable, repeatable: bool, until: float) -> bool:
        if self._clock.monotonic() >= until:
            return False
        if isinstance(failure, Refused):
            # A call without a valid token was not carried out: even an unrepeatable one may go.
            return failure.token_expired and bool(self._settings.username)
        return repeatable

    async def _attempt(
        self, method: Method[Request, Response], request: Request, deadline: float, repeatable: bool
    ) -> Response:
        endpoint = self._endpoints[self._active]
        left = deadline - self._clock.monotonic()
        # With somewhere else to go, a member that hangs gets only half of the time.
        patience = left / 2 if repeatable and len(self._endpoints) > 1 else left
        try:
            metadata = await self._credentials(endpoint)
            return await method(endpoint)(request, timeout=patience, metadata=metadata)
        except AioRpcError as error:
            raise self._failed(endpoint, error) from error

    def _failed(self, endpoint: Endpoint, error: AioRpcError) -> DependencyUnavailable:
        failure = judge(endpoint.target, error)
        if not isinstance(failure, Refused):
            self._leave(endpoint)
        elif failure.token_expired and self._settings.username:
            self._login_needed = True
        return failure

    def _leave(self, endpoint: Endpoint) -> None:
        """Go to the next endpoint, unless another call has already gone."""
        if len(self._endpoints) > 1 and self._endpoints[self._active] is endpoint:
            self._active = (self._active + 1) % len(self._endpoints)
            log.warning(
                "leaving etcd endpoint",
                extra={"action": "etcd_endpoint_left", "endpoint": endpoint.target},
            )

    async def _credentials(self, endpoint: Endpoint) -> Metadata:
        if self._login_needed:
            async with self._login_lock:
                if self._login_needed:
                    await self._log_in(endpoint)
        return self._metadata

    async def _log_in(self, endpoint: Endpoint) -> None:
        request = pb.AuthenticateRequest(
            name=self._settings.username, password=self._settings.password
        )
        answer = await endpoint.auth.Authenticate(request, timeout=self._settings.timeout_seconds)
        self._metadata = (REQUIRE_LEADER, ("token", answer.token))
        self._login_needed = False
