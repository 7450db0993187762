"""Who gets in: the quota of the namespace first, then what this process can carry.

A call is let in or refused at once, before anything is done for it. A stream is slowed down
instead: its sender notices by the connection being full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from services.enqueue.domain.quotas import Quotas
from services.mesh.clock import Clock
from services.mesh.errors import Overloaded, ResourceExhausted
from services.mesh.rpc.work import WorkLimit
from services.mesh.telemetry.metrics import Metrics


class Gate:
    """One per process."""

    def __init__(self, quotas: Quotas, work: WorkLimit, clock: Clock, metrics: Metrics) -> None:
        self._quotas, self._work, self._clock = quotas, work, clock
        self._refused = metrics.counter(
            "refused_jobs", "Jobs that were not let in, by reason.", ("reason",)
        )

    @contextmanager
    def admitted(self, namespace: str, jobs: int, size: int) -> Iterator[None]:
        """The jobs of one call, until it is answered; ResourceExhausted if they are too many."""
        try:
            self._quotas.take(namespace, jobs, self._clock.monotonic())
            with self._work.admitted(jobs, size):
                yield
        except ResourceExhausted as error:
            self._refused.labels(error.reason).inc(jobs)
            if isinstance(error, Overloaded):  # here or at an Orchestrator: nothing was stored
                self._quotas.give_back(namespace, jobs)
            raise

    async def paced(self, namespace: str, jobs: int) -> None:
        """Return when the jobs of a stream fit into the quota of its namespace."""
        while True:
            wait = self._quotas.reserve(namespace, jobs, self._clock.monotonic())
            if wait <= 0:
                return
            await asyncio.sleep(wait)
