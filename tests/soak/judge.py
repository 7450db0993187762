"""Slopes, plateaus and ratios of a soak's samples, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A service may grow by so many MB an hour (the goal), or, over the fitted time, by so many MB in
#: all: allocators take memory in steps, and one step in half an hour is no slope.
MB_PER_HOUR, MB_STEP = 1.0, 2.0
FDS_PER_HOUR, FDS_STEP = 5.0, 10.0
#: A shard's tables are at a plateau if they grow by no more than this in the last third.
PLATEAU = 0.05
#: A claim may cost so many times what it did in the beginning, or stay below so many ms for p99.
CLAIM_RATIO, CLAIM_P99_MS = 1.5, 20.0
#: Of the run, so much is warming up and not compared with.
WARMING = 0.05
#: Of these the code is ours; others are shown, and not judged.
OURS = ("enqueue", "orchestrator", "scheduler", "scaler", "worker")

Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """A straight line through samples; per hour, with twice its standard error."""

    slope: float
    error: float
    hours: float

    def exceeds(self, per_hour: float, step: float) -> bool:
        """It surely grows, faster than this and by more than a step."""
        surely = self.slope - self.error
        return surely > per_hour and surely * self.hours > step


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """Least squares over (seconds, value)."""
    count = len(points)
    if count < 3:
        return Fit(0.0, math.inf, 0.0)
    mean_t = sum(t for t, _ in points) / count
    mean_v = sum(v for _, v in points) / count
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in points) / spread
    rest = sum((v - mean_v - slope * (t - mean_t)) ** 2 for t, v in points)
    error = 2 * math.sqrt(rest / (count - 2) / spread)
    return Fit(slope * 3600, error * 3600, (points[-1][0] - points[0][0]) / 3600)


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of a part of the run."""

    samples: Sequence[Sample]

    def series(self, of: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
        found = ((sample["t"], of(sample)) for sample in self.samples)
        return [(t, value) for t, value in found if value is not None]

    def claims(self) -> dict[str, float]:
        """What claims cost in this time: by the server's count, and by the schedulers' clocks."""
        if len(self.samples) < 2:
            return {"calls": 0.0}
        first, last = self.samples[0], self.samples[-1]
        spent = {
            name: sum(
                last["shards"][shard]["claims"][name] - first["shards"][shard]["claims"][name]
                for shard in last["shards"]
            )
            for name in ("calls", "ms", "blocks", "rows")
        }
        calls = max(1.0, spent["calls"])
        buckets = {
            bound: count - first["claim_buckets"].get(bound, 0.0)
            for bound, count in last["claim_buckets"].items()
        }
        return {
            "calls": spent["calls"],
            "rows": spent["rows"],
            "mean_ms": spent["ms"] / calls,
            "blocks": spent["blocks"] / calls,
            "p50_ms": 1e3 * quantile(buckets, 0.5),
            "p99_ms": 1e3 * quantile(buckets, 0.99),
        }


def quantile(buckets: Mapping[str, float], share: float) -> float:
    """From a histogram of counts up to each bound; even within a bucket."""
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    wanted = share * (bounds[-1][1] if bounds else 0.0)
    below, low = 0.0, 0.0
    for bound, count in bounds:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        below, low = count, bound
    return low


class Soaked:
    """The samples of a run, and its judgement."""

    def __init__(self, samples: Sequence[Sample], held: tuple[float, float]) -> None:
        self.samples = samples
        self.held = held
        self._end = samples[-1]["t"]

    def between(self, begin: float, end: float) -> Window:
        return Window([sample for sample in self.samples if begin <= sample["t"] <= end])

    def part(self, begin: float, end: float) -> Window:
        return self.between(begin * self._end, end * self._end)

    def processes(self) -> dict[str, dict[str, Any]]:
        """Memory, files and CPU of every process that lived to the end."""
        second = self.part(0.5, 1.0)
        told = {}
        for name in self.samples[-1]["processes"]:

            def value(key: str, name: str = name) -> Callable[[Sample], float | None]:
                return lambda sample: sample["processes"].get(name, {}).get(key)

            memory, files = fit(second.series(value("mb"))), fit(second.series(value("fds")))
            cpu = second.series(value("cpu"))
            seconds = cpu[-1][0] - cpu[0][0]
            told[name] = {
                "mb": self.samples[-1]["processes"][name]["mb"],
                "mb_per_hour": memory.slope,
                "mb_error": memory.error,
                "fds": self.samples[-1]["processes"][name]["fds"],
                "fds_per_hour": files.slope,
                "cpu_percent": 100 * (cpu[-1][1] - cpu[0][1]) / seconds if seconds else 0.0,
                "ours": name.startswith(OURS),
                "leaks": memory.exceeds(MB_PER_HOUR, MB_STEP),
                "loses_files": files.exceeds(FDS_PER_HOUR, FDS_STEP),
            }
        return told

    def tables(self) -> dict[str, dict[str, Any]]:
        """Sizes of every shard, and of every table over all shards."""
        names = {n for shard in self.samples[-1]["shards"].values() for n in shard["tables"]}
        told = {shard: self._grown(_size_of(shard)) for shard in self.samples[-1]["shards"]}
        return told | {f"  {name}": self._grown(_table(name)) for name in sorted(names)}

    def _grown(self, size: Callable[[Sample], float]) -> dict[str, Any]:
        last = self.part(2 / 3, 1.0).series(size)
        line = fit(last)
        mean = sum(value for _, value in last) / len(last)
        growth = line.slope * line.hours / mean if mean else 0.0
        return {
            "mb": last[-1][1],
            "peak_mb": max(value for _, value in self.part(0, 1).series(size)),
            "growth": growth,
            # Less than a few pages of everything is no growth.
            "plateau": growth <= PLATEAU or line.slope * line.hours < 1.0,
        }

    def claims(self) -> dict[str, dict[str, float]]:
        return {
            "first third": self.part(WARMING, 1 / 3).claims(),
            "while a transaction is held": self.between(*self.held).claims(),
            "last third": self.part(2 / 3, 1.0).claims(),
        }

    def complaints(self, errors: Mapping[str, int], left_open: int) -> list[str]:
        """Why this run failed; nothing if it passed."""
        found = [f"{count} x {name}" for name, count in errors.items()]
        if left_open:
            found.append(f"{left_open} jobs never ended")
        for name, process in self.processes().items():
            if process["ours"] and process["leaks"]:
                found.append(f"{name} grows by {process['mb_per_hour']:.1f} MB/h")
            if process["ours"] and process["loses_files"]:
                found.append(f"{name} opens {process['fds_per_hour']:.0f} files/h more")
        for name, table in self.tables().items():
            if not name.startswith(" ") and not table["plateau"]:
                found.append(f"{name} grew by {100 * table['growth']:.0f} % in the last third")
        return found + list(self._slow_claims())

    def _slow_claims(self) -> list[str]:
        windows = self.claims()
        base = windows.pop("first third")
        found = []
        for name, window in windows.items():
            if not window["calls"] or not base["calls"]:
                found.append(f"no claims {name}")
                continue
            slower = window["mean_ms"] / base["mean_ms"]
            if slower > CLAIM_RATIO and window["p99_ms"] > CLAIM_P99_MS:
                found.append(f"claims take {slower:.1f} times as long: {name}")
            more = window["blocks"] / base["blocks"]
            if name == "last third" and more > CLAIM_RATIO:
                found.append(f"claims touch {more:.1f} times as many blocks: {name}")
        return found


def _size_of(shard: str) -> Callable[[Sample], float]:
    return lambda sample: sum(map(_bytes, sample["shards"][shard]["tables"].values())) / 1e6


def _table(name: str) -> Callable[[Sample], float]:
    return lambda sample: sum(_bytes(s["tables"][name]) for s in sample["shards"].values()) / 1e6


def _bytes(table: Mapping[str, float]) -> float:
    return table["table"] + table["indexes"]
