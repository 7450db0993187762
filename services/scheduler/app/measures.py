"""The scheduler's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from services.mesh.telemetry.metrics import Metrics

#: From a millisecond to ten minutes: how late a job was handed out.
_LATENESS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600)
#: Of a large batch so many jobs are measured: a measurement costs as much as sending a job.
_SAMPLES = 16


class Measures:
    """What the agents count; made once per process."""

    def __init__(self, metrics: Metrics) -> None:
        by_shard = ("shard",)
        self._claimed = metrics.counter("claimed", "Jobs handed to workers.", ("type", "shard"))
        self._claims = metrics.histogram("claim_seconds", "How long claims took.", by_shard)
        self._lateness = metrics.histogram(
            "lateness_seconds", "From due to claimed; a sample of each batch.", ("type",), _LATENESS
        )
        self._unsent = metrics.counter(
            "unsent", "Claimed, could not be sent, taken back.", by_shard
        )
        self._returned = metrics.counter(
            "returned", "Jobs taken back, by duty (sweep, rescue).", ("shard", "duty")
        )
        self._expired = metrics.counter("expired", "Jobs not started in time.", by_shard)
        self._released = metrics.counter(
            "released", "Jobs that waited for others and no longer do.", by_shard
        )
        self._purged = metrics.counter(
            "purged", "Ended jobs deleted after they were kept for long enough.", by_shard
        )
        self._fired = metrics.counter("schedules_fired", "Jobs made by schedules.", by_shard)
        self._missed = metrics.counter("schedules_missed", "Nominal times passed over.", by_shard)
        self._called = metrics.counter(
            "calls", "Calls for workers, since due work was served by nobody.", ("type",)
        )
        self._parked = metrics.gauge("parked_credit", "Room that waits for work.", ("type",))
        self._lag = metrics.gauge("slot_lag_seconds", "How far slot grabbing is behind.", by_shard)
        self._open = metrics.gauge("shard_open", "Whether the shard is served.", by_shard)
        self._parked_types: set[str] = set()

    def claimed(self, type_: str, shard: str, due_times: list[datetime], when: datetime) -> None:
        self._claimed.labels(type_, shard).inc(len(due_times))
        step = -(-len(due_times) // _SAMPLES)
        lateness = self._lateness.labels(type_)
        for due_time in due_times[::step]:
            lateness.observe(max(0.0, (when - due_time).total_seconds()))

    def claim_took(self, shard: str, seconds: float) -> None:
        self._claims.labels(shard).observe(seconds)

    def unsent(self, shard: str, count: int) -> None:
        self._unsent.labels(shard).inc(count)

    def returned(self, shard: str, duty: str, count: int) -> None:
        self._returned.labels(shard, duty).inc(count)

    def called(self, type_: str) -> None:
        self._called.labels(type_).inc()

    def expired(self, shard: str, count: int) -> None:
        self._expired.labels(shard).inc(count)

    def released(self, shard: str, count: int) -> None:
        self._released.labels(shard).inc(count)

    def purged(self, shard: str, count: int) -> None:
        self._purged.labels(shard).inc(count)

    def fired(self, shard: str, jobs: int, missed: int) -> None:
        self._fired.labels(shard).inc(jobs)
        self._missed.labels(shard).inc(missed)

    def parked(self, credit: Mapping[str, int]) -> None:
        """Set the credit of all types; those that were there before and are not now become 0."""
        for type_ in self._gone(credit):
            self._parked.labels(type_).set(0)
        for type_, room in credit.items():
            self._parked.labels(type_).set(room)
        self._parked_types = set(credit)

    def lag(self, shard: str, seconds: float) -> None:
        self._lag.labels(shard).set(seconds)

    def shard_open(self, shard: str, is_open: bool) -> None:
        self._open.labels(shard).set(is_open)

    def _gone(self, credit: Mapping[str, int]) -> Iterable[str]:
        return self._parked_types.difference(credit)
