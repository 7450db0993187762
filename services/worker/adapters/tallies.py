"""Numbers per attempt, counted cheaply and shown to Prometheus when it asks.

The client library's own metrics take a lock and walk the buckets on every observation, which adds
up to a third of what a trivial attempt costs. All of this runs in one thread, so plain numbers do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

RUN_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0, 1800.0, 7200.0)
WAIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)


class Distribution:
    """A histogram of one type."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """The buckets, each with all below it, and the sum of the values."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True)), self._total


class TypeTally:
    """What happened to the attempts of one type."""

    __slots__ = ("finished", "run", "wait")

    def __init__(self) -> None:
        self.finished: dict[str, int] = {}
        self.run = Distribution(RUN_BOUNDS)
        self.wait = Distribution(WAIT_BOUNDS)

    def finish(self, outcome: str) -> None:
        self.finished[outcome] = self.finished.get(outcome, 0) + 1


class Tallies(Collector):
    """The tallies of all types, as metrics."""

    def __init__(self, types: Iterable[str]) -> None:
        self.by_type = {type_: TypeTally() for type_ in types}

    def collect(self) -> Iterator[Metric]:
        yield self._finished()
        for name, told, field in (
            ("attempt_run_seconds", "How long handlers ran.", "run"),
            ("attempt_wait_seconds", "From due to the handler's start.", "wait"),
        ):
            family = HistogramMetricFamily(f"jobmesh_{name}", told, labels=("type",))
            for type_, tally in self.by_type.items():
                buckets, total = getattr(tally, field).shown()
                family.add_metric((type_,), buckets, total)
            yield family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "jobmesh_attempts_finished",
            "Attempts that ended here, by outcome.",
            labels=("type", "outcome"),
        )
        for type_, tally in self.by_type.items():
            for outcome, count in tally.finished.items():
                family.add_metric((type_, outcome), count)
        return family
