"""A lease and the task that keeps it alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Self

import grpc
from etcd import rpc_pb2 as pb

from services.mesh.clock import Clock, SystemClock
from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.client import EtcdClient, KeepAliveStream
from services.mesh.lease.port import Lease, LeaseState
from services.mesh.runtime import Backoff, until_beat

log = logging.getLogger(__name__)

#: A lease of five seconds is renewed every other second, when the process is awake anyhow.
RENEWALS_PER_TTL = 2.5
#: One renewal may wait for its answer for the TTL divided by this: short enough for another try,
#: perhaps at another member, before the trust window ends.
PATIENCE_PER_TTL = 5
BACKOFF = Backoff(first=0.1, ceiling=1.0)
REVOKE_SECONDS = 2.0


class LeaseSession(Lease):
    """One granted lease; the package's docstring has its states. `grant` makes it, `close` ends it.

    The renewing task runs on the loop of its owner: handlers run elsewhere, so what starves this
    loop starves the worker as well, and a lease that outlives a stuck worker would only hide it.
    """

    def __init__(
        self,
        client: EtcdClient,
        lease_id: int,
        ttl_seconds: int,
        sent: float,
        margin_seconds: float,
        clock: Clock,
    ) -> None:
        self._client = client
        self._clock = clock
        self._lease_id = lease_id
        self._ttl = ttl_seconds
        self._margin = margin_seconds
        self._state = LeaseState.HELD
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[LeaseState], None]] = []
        self._doubt_timer: asyncio.TimerHandle | None = None
        self._trusted_until = inf  # until the next line: nobody was in doubt yet
        self._renewed(sent, ttl_seconds)
        self._task = asyncio.create_task(self._keep_alive(), name=f"lease-{lease_id:x}")

    @classmethod
    async def grant(
        cls,
        client: EtcdClient,
        *,
        ttl_seconds: int = 5,
        margin_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> Self:
        """Ask for a lease and start renewing it; DependencyUnavailable if none is to be had."""
        if not 0 <= margin_seconds < ttl_seconds:
            raise ValueError(
                f"lease margin {margin_seconds} s: expected less than the TTL of {ttl_seconds} s"
            )
        clock = clock or SystemClock()
        sent = clock.monotonic()
        granted = await client.grant(ttl_seconds)
        return cls(client, granted.ID, granted.TTL, sent, margin_seconds, clock)

    @property
    def lease_id(self) -> int:
        return self._lease_id

    @property
    def state(self) -> LeaseState:
        if self._state is LeaseState.HELD and self._clock.monotonic() >= self._trusted_until:
            return LeaseState.DOUBTFUL
        return self._state

    @property
    def alive(self) -> bool:
        return self.state is LeaseState.HELD

    @property
    def trusted_until(self) -> float:
        """End of the trust window, on the monotonic clock."""
        return self._trusted_until

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    def on_change(self, callback: Callable[[LeaseState], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        if self._state is LeaseState.CLOSED:
            return
        was_lost = self._state is LeaseState.LOST
        self._enter(LeaseState.CLOSED)
        self._cancel_timer()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if not was_lost:
            await self._revoke()

    async def _revoke(self) -> None:
        try:
            await self._client.revoke(self._lease_id, REVOKE_SECONDS)
        except DependencyUnavailable as error:
            # It expires by itself within the TTL; whoever waits for it waits that much longer.
            log.warning(
                "could not revoke lease",
                extra={"action": "lease_revoke_failed", "error": str(error)},
            )

    # --- renewing ---

    async def _keep_alive(self) -> None:
        failures = 0
        while not self._lost.is_set():
            renewed_before = self._trusted_until
            try:
                async with self._client.keep_alive_stream() as stream:
                    await self._renew_until_lost(stream)
            except DependencyUnavailable as error:
                log.warning(
                    "could not renew lease",
                    extra={"action": "lease_renewal_failed", "error": str(error)},
                )
            except Exception:
                # This task must not die silently: whatever it was, the lease needs renewing.
                log.exception("renewal failed", extra={"action": "lease_renewal_failed"})
            failures = 1 if self._trusted_until > renewed_before else failures + 1
            if not self._lost.is_set():
                await asyncio.sleep(BACKOFF.delay(failures))

    async def _renew_until_lost(self, stream: KeepAliveStream) -> None:
        """Renew, one at a time: so each answer belongs to a known moment of sending."""
        request = pb.LeaseKeepAliveRequest(ID=self._lease_id)
        while True:
            sent = self._clock.monotonic()
            async with asyncio.timeout(self._ttl / PATIENCE_PER_TTL):
                await stream.write(request)
                answer = await stream.read()
            if answer is grpc.aio.EOF or not isinstance(answer, pb.LeaseKeepAliveResponse):
                raise TimeoutError("the renewal stream ended")
            if answer.TTL <= 0:
                self._lose()
                return
            self._renewed(sent, answer.TTL)
            await asyncio.sleep(until_beat(self._ttl / RENEWALS_PER_TTL))

    def _renewed(self, sent: float, ttl_seconds: int) -> None:
        # By the clock, too: who looked while the loop was stuck saw doubt before it was announced,
        # and waits to be told of its end.
        was_doubtful = self.state is LeaseState.DOUBTFUL
        self._trusted_until = sent + ttl_seconds - self._margin
        self._cancel_timer()
        left = self._trusted_until - self._clock.monotonic()
        self._doubt_timer = asyncio.get_running_loop().call_later(max(0.0, left), self._doubt)
        if was_doubtful and left > 0:
            log.info("lease is back", extra={"action": "lease_back", "lease_id": self._lease_id})
            self._enter(LeaseState.HELD)

    # --- states ---

    def _doubt(self) -> None:
        log.warning(
            "lease in doubt", extra={"action": "lease_doubtful", "lease_id": self._lease_id}
        )
        self._enter(LeaseState.DOUBTFUL)

    def _lose(self) -> None:
        log.error("lease lost", extra={"action": "lease_lost", "lease_id": self._lease_id})
        self._cancel_timer()
        self._enter(LeaseState.LOST)
        self._lost.set()

    def _enter(self, state: LeaseState) -> None:
        self._state = state
        for callback in self._callbacks:
            try:
                callback(state)
            except Exception:
                log.exception("lease callback failed", extra={"action": "lease_callback_failed"})

    def _cancel_timer(self) -> None:
        if self._doubt_timer is not None:
            self._doubt_timer.cancel()
            self._doubt_timer = None
