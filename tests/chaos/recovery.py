"""How long things took to work again, from the fault log: I23 to I25, as a table with targets.

A sample is *alone* if no other fault was in force while it was taken; else it says which were.
Targets are meant for one fault at a time. In a run whose faults overlap they are held against the
samples that are alone, where there are any; a run that keeps its faults apart is judged by all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import samples
from tests.chaos.evidence import Evidence
from tests.chaos.history import read_lines
from tests.chaos.samples import Taken

_WORST = 5
_EVERYTHING = "kill.all"
_EVERYTHING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    seconds: float
    beside: tuple[str, ...] = ()
    """Other faults that were in force meanwhile."""
    by: str = ""
    """The fault it belongs to, if that is known."""

    @property
    def alone(self) -> bool:
        return not self.beside

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "seconds": round(self.seconds, 3), "by": self.by} | {
            "beside": list(self.beside)
        }


@dataclass(slots=True)
class Measure:
    """One line of the table."""

    name: str
    target: float
    samples: list[Sample] = field(default_factory=list)
    share: float = 0.99
    """The share of the samples that must keep the target."""
    is_target: bool = True
    """Whether it says how a fault is recovered from; else it is only shown."""

    def to_json(self) -> dict[str, Any]:
        every = [sample.seconds for sample in self.samples]
        alone = [sample.seconds for sample in self.samples if sample.alone]
        worst = sorted(self.samples, key=lambda sample: -sample.seconds)[:_WORST]
        return {
            "name": self.name,
            "target": self.target,
            "count": len(every),
            "p50": percentile(every, 0.5),
            "p99": percentile(every, 0.99),
            "max": percentile(every, 1.0),
            "alone": len(alone),
            "alone_p50": percentile(alone, 0.5),
            "alone_p99": percentile(alone, 0.99),
            "met": self._keeps(alone or every),
            "met_by_all": self._keeps(every),
            "worst": [sample.to_json() for sample in worst],
        }

    def _keeps(self, seconds: Sequence[float]) -> bool | None:
        judged = percentile(seconds, self.share)
        return None if judged is None else judged <= self.target


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value that this share of all do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


RESCUED = "worker killed: its jobs start again"
SWEPT = "dispatch lost: dispatched again"
SILENT = "messages pass again: lost ones dispatched again"
RESUMED = "watch cut: resumed"
BREAKER = "shard away: the breaker of an Orchestrator opens"
ELSEWHERE = "shard away: calls for other shards that fail"
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
    (_EVERYTHING, "struck"): ("everything killed: the next job ends", _EVERYTHING_SECONDS),
}
#: What else a kind of fault must yield samples of.
_YIELDS: dict[str, tuple[str, ...]] = {
    "kill.worker": (RESCUED,),
    "drop.broker": (SWEPT,),
    "kill.enqueue": (RESUMED,),
    "kill.shard": (BREAKER, ELSEWHERE),
    "stop.shard": (BREAKER, ELSEWHERE),
}


def measure(folder: Path, evidence: Evidence) -> list[Measure]:
    """All lines of the table that have samples."""
    table = _Table(evidence)
    table.add(Measure(RESCUED, 8.0), samples.rescued(evidence))
    for line in read_lines(folder / "canaries.jsonl"):
        named = _CANARIES.get((line["kind"], line["when"]))
        # One that never ended took at least as long as it was waited for.
        seconds = line.get("ended", line.get("lasted"))
        if named and seconds is not None:
            table.add(Measure(*named), [Taken(line["began"], seconds, line["fault"])])
    table.add(Measure(BREAKER, 2.0), samples.opened_breakers(evidence, folder / "logs"))
    table.add(Measure(ELSEWHERE, 0.0, share=1.0), samples.errors_elsewhere(evidence))
    table.add(Measure(SWEPT, 6.0), samples.swept(evidence))
    table.add(Measure(SILENT, 6.0), samples.swept_in_silence(evidence))
    table.add(Measure(RESUMED, 3.0), samples.resumed(evidence))
    late = Measure("lateness of first starts under faults", 10.0, is_target=False)
    table.add(late, samples.lateness(evidence))
    return [measure for measure in table.measures.values() if measure.samples]


class _Table:
    def __init__(self, evidence: Evidence) -> None:
        self.measures: dict[str, Measure] = {}
        self._faults = [
            (fault["began"], fault.get("healed", fault["began"] + 60), fault)
            for fault in evidence.faults
        ]

    def add(self, measure: Measure, taken: Iterable[Taken]) -> None:
        """Under the line of that name, which is this one if it is the first."""
        line = self.measures.setdefault(measure.name, measure)
        for one in taken:
            sample = self._sample(one)
            if sample.by.startswith(_EVERYTHING) and line.is_target:
                self._everything(line.name).samples.append(sample)
            else:
                line.samples.append(sample)

    def _everything(self, name: str) -> Measure:
        """What else recovers when all is killed at once has the time that all of it has."""
        name = "everything killed: " + name.rpartition(": ")[2]
        return self.measures.setdefault(name, Measure(name, _EVERYTHING_SECONDS))

    def _sample(self, taken: Taken) -> Sample:
        """With its own fault told from others; one that is the only one in force is its own."""
        at, seconds, own = taken
        found = [
            fault
            for began, healed, fault in self._faults
            if fault["number"] == own or (began < at + seconds and healed > at)
        ]
        if own is None and len(found) == 1:
            own = found[0]["number"]
        by = next((_name(fault) for fault in found if fault["number"] == own), "")
        beside = tuple(_name(fault) for fault in found if fault["number"] != own)
        return Sample(at, seconds, beside, by)


def _name(fault: dict[str, Any]) -> str:
    return f"{fault['kind']} {fault['target']}"


# --- the verdict of a run that keeps its faults apart


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of the targets."""

    kept: list[str]
    missed: list[str]
    """Each with its figures."""

    @property
    def word(self) -> str:
        return "FAIL" if self.missed or not self.kept else "PASS"

    @property
    def line(self) -> str:
        told = f"recovery: {self.word} targets={len(self.kept) + len(self.missed)}"
        return f"{told} missed={len(self.missed)}" + "".join(f"; {one}" for one in self.missed)


def judge(measures: Sequence[Measure], kinds: Collection[str]) -> Recovery:
    """Every target that faults of these kinds have; one without samples was not kept."""
    targets = [measure for measure in measures if measure.is_target]
    kept = [measure for measure in targets if measure.to_json()["met_by_all"]]
    missed = [measure for measure in targets if measure not in kept]
    lacking = sorted(set(_expected(kinds)) - {measure.name for measure in measures})
    told = [f"{one.name} {_judged(one)} > {one.target:g} (of {len(one.samples)})" for one in missed]
    told += [f"{name}: no samples" for name in lacking]
    return Recovery([one.name for one in kept], told)


def _judged(measure: Measure) -> str:
    value = percentile((sample.seconds for sample in measure.samples), measure.share)
    return f"{value:g}"


def _expected(kinds: Collection[str]) -> Iterator[str]:
    for (kind, _), (name, _target) in _CANARIES.items():
        if kind in kinds:
            yield name
    for kind in kinds:
        yield from _YIELDS.get(kind, ())


def by_second(times: Iterable[float]) -> dict[int, int]:
    """How many fell into each second."""
    counts: dict[int, int] = defaultdict(int)
    for time in times:
        counts[int(time)] += 1
    return counts
