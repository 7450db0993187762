"""Workers that were told to go, until they are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.mesh.clock import Clock
from services.mesh.errors import MeshError
from services.scaler.adapters.process.handle import ProcessHandle
from services.scaler.domain.fleet import Worker
from services.scaler.ports import WorkerCalls

log = logging.getLogger(__name__)

#: The process behind a worker, if it is certain; None if not.
Identify = Callable[[Worker], ProcessHandle | None]


@dataclass(slots=True)
class _Order:
    worker: Worker
    #: It must be gone by then.
    overdue_at: datetime
    heard: bool = False
    terminated: bool = False


class Departures:
    """Asks workers to drain, again if they did not hear, and reminds those that do not end."""

    def __init__(
        self, calls: WorkerCalls, identify: Identify, clock: Clock, grace: timedelta
    ) -> None:
        self._calls, self._identify, self._clock, self._grace = calls, identify, clock, grace
        self._orders: dict[str, _Order] = {}

    def ids(self) -> frozenset[str]:
        return frozenset(self._orders)

    def review(self, registered: Set[str]) -> None:
        """A worker whose registration is gone has ended, or is about to."""
        for worker_id in self._orders.keys() - registered:
            del self._orders[worker_id]

    async def see_off(
        self, workers: Sequence[Worker], timeout: timedelta | None, limit: timedelta
    ) -> None:
        """Have them drain within `timeout`; `limit` is when their patience ends, with the grace."""
        overdue_at = self._clock.now() + limit + self._grace
        for worker in workers:
            order = _Order(worker, overdue_at, heard=worker.draining)
            self._orders.setdefault(worker.worker_id, order)
        orders = [self._orders[worker.worker_id] for worker in workers]
        await asyncio.gather(*(self._ask(order, timeout) for order in orders if not order.heard))
        for order in orders:
            self._remind(order)

    async def _ask(self, order: _Order, timeout: timedelta | None) -> None:
        try:
            await self._calls.drain(order.worker, timeout)
            order.heard = True
        except MeshError as error:
            # Asked again at the next pass; a worker that is gone takes its registration with it.
            extra = {"action": "drain_not_heard", "worker_id": order.worker.worker_id}
            log.warning("could not ask a worker to drain: %s", error, extra=extra)

    def _remind(self, order: _Order) -> None:
        if order.terminated or self._clock.now() < order.overdue_at:
            return
        order.terminated = True
        process = self._identify(order.worker)
        sent = process is not None and process.terminate()
        extra = {"action": "worker_overdue", "worker_id": order.worker.worker_id, "signalled": sent}
        log.warning("a worker has not ended in time", extra=extra)
