"""What the Scaler counts."""

from __future__ import annotations

from services.mesh.telemetry.metrics import Metrics
from services.scaler.domain.decision import Decision, PoolStatus


class PoolMetrics:
    """Pools and workers as numbers, by type."""

    def __init__(self, metrics: Metrics) -> None:
        self._desired = metrics.gauge(
            "pool_desired", "How many workers a pool should have.", ("type",)
        )
        self._workers = metrics.gauge(
            "pool_workers", "How many workers a pool has, by condition.", ("type", "condition")
        )
        self._decisions = metrics.counter(
            "pool_decisions", "Decisions that differ from the one before.", ("type", "reason")
        )
        self._starts = metrics.counter("worker_starts", "Workers started for a pool.", ("type",))
        self._crashes = metrics.counter(
            "worker_crashes", "Workers that died young, without being told to go.", ("type",)
        )
        self._start_seconds = metrics.histogram(
            "worker_start_seconds", "From the start of a worker to its registration.", ("type",)
        )
        self._leading = metrics.gauge("scaler_leading", "Whether this is the Scaler that acts.")

    def leading(self, leads: bool) -> None:
        self._leading.set(leads)

    def status(self, type_: str, status: PoolStatus) -> None:
        fleet = status.fleet
        self._desired.labels(type_).set(status.decision.desired)
        self._workers.labels(type_, "actual").set(fleet.live)
        self._workers.labels(type_, "starting").set(fleet.starting)
        self._workers.labels(type_, "draining").set(fleet.draining)

    def decided(self, type_: str, decision: Decision) -> None:
        self._decisions.labels(type_, decision.reason.name).inc()

    def started(self, type_: str) -> None:
        self._starts.labels(type_).inc()

    def crashed(self, type_: str) -> None:
        self._crashes.labels(type_).inc()

    def registered(self, type_: str, seconds: float) -> None:
        self._start_seconds.labels(type_).observe(seconds)

    def forget(self, type_: str | None = None) -> None:
        """A pool is gone, or (None) another process speaks for all of them now."""
        for gauge in (self._desired, self._workers):
            for labels in {sample.labels["type"] for m in gauge.collect() for sample in m.samples}:
                if type_ is None or labels == type_:
                    self._drop(labels)

    def _drop(self, type_: str) -> None:
        self._desired.remove(type_)
        for condition in ("actual", "starting", "draining"):
            self._workers.remove(type_, condition)
