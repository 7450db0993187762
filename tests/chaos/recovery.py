"""How long things took to work again, from the fault log: I23 to I25, as a table with targets.

A sample is *alone* if no other fault was under way while it was taken. Targets are meant for one
fault at a time, so they are held against those; the others are shown beside them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.evidence import Evidence
from tests.chaos.history import read_lines
from tests.chaos.job_rules import CLAIMED, DISPATCHED, RUNNING, SWEPT


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    seconds: float
    alone: bool = False


@dataclass(slots=True)
class Measure:
    """One line of the table."""

    name: str
    target: float
    samples: list[Sample] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        every = [sample.seconds for sample in self.samples]
        alone = [sample.seconds for sample in self.samples if sample.alone]
        judged = percentile(alone or every, 0.99)
        return {
            "name": self.name,
            "target": self.target,
            "count": len(every),
            "p50": percentile(every, 0.5),
            "p99": percentile(every, 0.99),
            "alone": len(alone),
            "alone_p50": percentile(alone, 0.5),
            "alone_p99": percentile(alone, 0.99),
            "met": None if judged is None else judged <= self.target,
        }


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value that this share of all do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


#: Canaries: the line of the table they belong to, and its target.
_CANARIES: dict[tuple[str, str], tuple[str, float]] = {
    ("kill.scheduler", "struck"): ("scheduler killed: the next job ends", 8.0),
    ("kill.orchestrator", "struck"): ("orchestrator killed: the next job ends", 8.0),
    ("kill.enqueue", "struck"): ("enqueue killed: the next job ends", 8.0),
    ("kill.nats", "struck"): ("broker killed: the next job ends", 8.0),
    ("kill.etcd", "struck"): ("etcd member killed: the next job ends", 4.0),
    ("kill.shard", "struck"): ("shard killed: the next job of another one ends", 2.0),
    ("stop.shard", "struck"): ("shard frozen: the next job of another one ends", 2.0),
    ("kill.shard", "healed"): ("shard back: its next job ends", 3.0),
    ("restart.shard", "healed"): ("shard back: its next job ends", 3.0),
    ("stop.shard", "healed"): ("shard back: its next job ends", 3.0),
    ("readonly.shard", "healed"): ("shard back: its next job ends", 3.0),
    ("full.shard", "healed"): ("shard back: its next job ends", 3.0),
    ("stop.nats", "healed"): ("broker back: the next job ends", 6.0),
    ("quorum.etcd", "healed"): ("quorum back: the next job ends", 8.0),
    ("kill.all", "struck"): ("everything killed: the next job ends", 30.0),
}


def measure(folder: Path, evidence: Evidence) -> list[Measure]:
    """All lines of the table that have samples."""
    table = _Table(evidence)
    table.add("worker killed: its jobs start again", 8.0, _rescued(evidence))
    for line in read_lines(folder / "canaries.jsonl"):
        named = _CANARIES.get((line["kind"], line["when"]))
        if named and "ended" in line:
            taken = (line["began"], line["ended"], line["fault"])
            table.add(*named, [taken])
    table.add("dispatch lost: dispatched again", 6.0, _swept(evidence))
    table.add("watch cut: resumed", 3.0, _resumed(evidence))
    table.add("lateness of first starts under faults", 10.0, _lateness(evidence))
    return [measure for measure in table.measures.values() if measure.samples]


Taken = tuple[float, float, int | None]
"""When, how long, and by which fault."""


class _Table:
    def __init__(self, evidence: Evidence) -> None:
        self.measures: dict[str, Measure] = {}
        self._faults = [
            (fault["began"], fault.get("healed", fault["began"] + 60), fault["number"])
            for fault in evidence.faults
        ]

    def add(self, name: str, target: float, taken: Iterable[Taken]) -> None:
        measure = self.measures.setdefault(name, Measure(name, target))
        measure.samples += [
            Sample(at, seconds, self._is_alone(at, seconds, own)) for at, seconds, own in taken
        ]

    def _is_alone(self, at: float, seconds: float, own: int | None) -> bool:
        if own is None:
            return False
        return not any(
            number != own and began < at + seconds and healed > at
            for began, healed, number in self._faults
        )


def _rescued(evidence: Evidence) -> Iterator[Taken]:
    """For each job that a killed worker had in hand: until a handler of it began again."""
    killed = {
        fault["detail"]["worker_id"]: fault
        for fault in evidence.faults
        if fault["kind"] == "kill.worker" and fault["detail"].get("worker_id")
    }
    for job, events in evidence.events.items():
        for held, following in pairwise(events):
            fault = killed.get(held.worker or "")
            if fault is None or held.state not in (DISPATCHED, RUNNING):
                continue
            at = fault["began"]
            if held.time <= at < following.time:
                again = [run.began for run in evidence.ledger.of(job).values() if run.began > at]
                if again:
                    yield at, min(again) - at, fault["number"]


def _swept(evidence: Evidence) -> Iterator[Taken]:
    """From a claim whose dispatch was lost to the next claim."""
    for events in evidence.events.values():
        for index, event in enumerate(events):
            if event.reason == SWEPT:
                claim = next(e for e in reversed(events[:index]) if e.reason == CLAIMED)
                again = next((e for e in events[index:] if e.reason == CLAIMED), None)
                if again:
                    yield claim.time, again.time - claim.time, None


def _resumed(evidence: Evidence) -> Iterator[Taken]:
    for line in evidence.watches:
        if "resumed" in line:
            yield line["resumed"], line["at"] - line["resumed"], None


def _lateness(evidence: Evidence) -> Iterator[Taken]:
    for row in evidence.rows:
        runs = evidence.ledger.of(row.id)
        if runs:
            began = min(run.began for run in runs.values())
            yield row.first_due, max(0.0, began - row.first_due), None


def by_second(times: Iterable[float]) -> dict[int, int]:
    """How many fell into each second."""
    counts: dict[int, int] = defaultdict(int)
    for time in times:
        counts[int(time)] += 1
    return counts
