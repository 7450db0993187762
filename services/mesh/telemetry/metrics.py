"""The numbers of a process: one Prometheus registry, passed by constructor.

Names are `jobmesh_…` in base units (`_seconds`, `_bytes`, `_total`). Labels have few values: types,
states, methods, shards; never ids.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

#: From a tenth of a millisecond to a minute: calls, statements, waits.
LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


def version() -> str:
    """The version of the installed project."""
    try:
        return metadata.version("jobmesh")
    except metadata.PackageNotFoundError:
        return "unknown"


class Metrics:
    """Makes metrics of this process. Asking twice for the same name returns the same metric."""

    def __init__(self, service: str = "", instance: str = "") -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        ProcessCollector(registry=self.registry)
        labels = ("service", "instance", "version", "python")
        info = self.gauge("build_info", "What runs here; the value is always 1.", labels)
        info.labels(service, instance, version(), platform.python_version()).set(1)

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """`counter("jobs_claimed", …)` is exposed as `jobmesh_jobs_claimed_total`."""
        made = self._made.get(name)
        if made is None:
            made = Counter(f"jobmesh_{name}", help, labels, registry=self.registry)
            self._made[name] = made
        assert isinstance(made, Counter), name
        return made

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        made = self._made.get(name)
        if made is None:
            made = Gauge(f"jobmesh_{name}", help, labels, registry=self.registry)
            self._made[name] = made
        assert isinstance(made, Gauge), name
        return made

    def histogram(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        made = self._made.get(name)
        if made is None:
            made = Histogram(
                f"jobmesh_{name}", help, labels, registry=self.registry, buckets=buckets
            )
            self._made[name] = made
        assert isinstance(made, Histogram), name
        return made

    def render(self) -> bytes:
        """Everything in the Prometheus text format."""
        return generate_latest(self.registry)

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        """The present value of a sample by its full exposed name; for tests and Describe RPCs."""
        return self.registry.get_sample_value(name, dict(labels or {}))


class LoopMetrics:
    """Counts the passes of the process's loops."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.histogram(
            "loop_pass_seconds", "How long one pass of a loop took.", ("loop", "outcome")
        )
        self._items = metrics.counter("loop_items", "What the passes did.", ("loop", "item"))

    def passed(self, loop: str, seconds: float, counts: Mapping[str, int]) -> None:
        self._seconds.labels(loop, "ok").observe(seconds)
        for item, count in counts.items():
            if count:
                self._items.labels(loop, item).inc(count)

    def failed(self, loop: str, seconds: float) -> None:
        self._seconds.labels(loop, "error").observe(seconds)
