"""Who gets in: the quota of the namespace first, then what this process can carry.

A call is let in or refused at once, before anything is done for it. A stream is slowed down
instead: its sender notices by the connection being full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from types import TracebackType
from weakref import WeakValueDictionary

from services.enqueue.domain.quotas import Quotas
from services.mesh.clock import Clock
from services.mesh.errors import Overloaded, ResourceExhausted
from services.mesh.rpc.work import WorkLimit
from services.mesh.telemetry.metrics import Metrics


class Guest:
    """The jobs of one call, let in for the length of a block."""

    __slots__ = ("_gate", "jobs", "measure", "namespace", "size")

    def __init__(self, gate: Gate, namespace: str, jobs: int, measure: Callable[[], int]) -> None:
        self._gate, self.namespace, self.jobs = gate, namespace, jobs
        self.measure, self.size = measure, 0

    def __enter__(self) -> None:
        self._gate.enter(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._gate.leave(self, error)


class Gate:
    """One per process."""

    def __init__(self, quotas: Quotas, work: WorkLimit, clock: Clock, metrics: Metrics) -> None:
        self._quotas, self._work, self._clock = quotas, work, clock
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        refused = metrics.counter(
            "refused_jobs", "Jobs that were not let in, by reason.", ("reason",)
        )
        #: By reason, looked up once: there may be a flood of them.
        self._refused = cache(refused.labels)

    def admitted(self, namespace: str, jobs: int, measure: Callable[[], int]) -> Guest:
        """The jobs of one call, until it is answered; ResourceExhausted if they are too many. Their
        bytes are measured only if the quota lets them in: it refuses far more often.
        """
        return Guest(self, namespace, jobs, measure)

    def enter(self, guest: Guest) -> None:
        try:
            self._quotas.take(guest.namespace, guest.jobs, self._clock.monotonic())
            guest.size = guest.measure()
            self._work.take(guest.jobs, guest.size)
        except ResourceExhausted as error:
            self._count_refused(guest, error)
            raise

    def leave(self, guest: Guest, error: BaseException | None) -> None:
        self._work.give_back(guest.jobs, guest.size)
        if isinstance(error, ResourceExhausted):
            self._count_refused(guest, error)

    def _count_refused(self, guest: Guest, error: ResourceExhausted) -> None:
        self._refused(error.reason).inc(guest.jobs)
        if isinstance(error, Overloaded):  # here or at an Orchestrator: nothing was stored
            self._quotas.give_back(guest.namespace, guest.jobs)

    def is_spent(self, namespace: str) -> bool:
        """Whether the namespace has sent more than its rate lately, and is stored with pauses."""
        return self._quotas.is_spent(namespace, self._clock.monotonic())

    def pause(self, namespace: str) -> float:
        """Seconds until the next put of what was let in of the namespace; 0: it may go."""
        return self._quotas.pause(namespace, self._clock.monotonic())

    def went(self, namespace: str) -> None:
        """A put of the namespace is on its way."""
        self._quotas.put(namespace, self._clock.monotonic())

    async def paced(self, namespace: str, jobs: int) -> None:
        """Return when the jobs of a stream fit into the quota of its namespace: one stream after
        the other, beside the calls.
        """
        if not self._quotas.is_bounded(namespace):
            return
        # Kept only as long as somebody is in it.
        line = self._lines.setdefault(namespace, asyncio.Lock())
        async with line:
            since = now = self._clock.monotonic()
            while (wait := self._quotas.reserve(namespace, jobs, since, now)) > 0:
                await asyncio.sleep(wait)
                now = self._clock.monotonic()
