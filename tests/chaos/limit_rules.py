"""Limits: how many handlers of one type, or of one key of it, ran at once, by the effect ledger.

A place of a limit is held under the lease of its worker, from before a handler begins until after
it has ended. So what counts is what handlers did, not when rows say so. Whose worker lost its lease
has lost its place with it, and may go on for as long as it does not know: those do not count.
Nor do those that began before every scheduler can have heard of the limit: they hold no place.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.evidence import Evidence, Row
from tests.chaos.job_rules import CLAIMED, RESCUED
from tests.chaos.ledger import Run
from tests.chaos.verdict import Violation, Violations

#: What a lost lease may be older than the first sign of it, on a busy machine.
GRACE_SECONDS = 20.0
#: How long a scheduler may not know a limit that was just set: an etcd watch, on a busy machine.
UNKNOWN_SECONDS = 1.0
#: A type, and of a limit per key the namespace and the key.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """How many of a type may run at once; 0: as many as want to. And from when on."""

    total: int
    per_key: int
    since: float

    def of(self, key: Key) -> int:
        return self.total if len(key) == 1 else self.per_key


def check_limits(evidence: Evidence) -> Violations:
    """I14: of no type, and of no key, more at once than its limit."""
    limits = _limits(evidence)
    for key, runs in _held(evidence).items():
        most, run = _most(runs)
        limit = limits[key[0]].of(key)
        if most > limit:
            text = f"with it {most} handlers of {'/'.join(key)} ran at once, of {limit}"
            yield Violation("I14", "other", text, run.job)


def unproven(evidence: Evidence) -> Iterator[str]:
    """A limit that nobody ever had to wait for."""
    held = _held(evidence)
    for type_, limit in _limits(evidence).items():
        if limit.per_key:
            of_keys = (runs for key, runs in held.items() if key[0] == type_ and len(key) > 1)
            if max((_most(runs)[0] for runs in of_keys), default=0) < limit.per_key:
                yield f"the limit of {type_} was never reached"
        if limit.total and ((type_,) not in held or _most(held[type_,])[0] < limit.total):
            yield f"the limit of all {type_} was never reached"


def _limits(evidence: Evidence) -> dict[str, _Bounds]:
    ops = (op for op in evidence.history if op["op"] == "limit")
    return {
        op["type"]: _Bounds(
            op.get("total", 0), op.get("per_key", 0), op.get("end", 0.0) + UNKNOWN_SECONDS
        )
        for op in ops
    }


def _held(evidence: Evidence) -> dict[Key, list[Run]]:
    """Attempts that have held a place from their beginning to their end, by what they share."""
    limits, lost = _limits(evidence), _lost_leases(evidence)
    keys = {op["ref"]: op["limit_key"] for op in evidence.history if "limit_key" in op}
    held: dict[Key, list[Run]] = defaultdict(list)
    for row in evidence.rows:
        if row.type not in limits:
            continue
        limit = limits[row.type]
        shared = _shared(row, limit, keys.get(row.ref, ""))
        workers = _workers(evidence, row.id)
        for fence, run in evidence.ledger.of(row.id).items():
            until = lost.get(workers.get(fence, ""), math.inf) - GRACE_SECONDS
            if run.ended is not None and run.ended < until and run.began >= limit.since:
                for key in shared:
                    held[key].append(run)
    return held


def _shared(row: Row, limit: _Bounds, key: str) -> list[Key]:
    """The limits that a job is under."""
    found: list[Key] = [(row.type,)] if limit.total else []
    return [*found, (row.type, row.namespace, key)] if limit.per_key and key else found


def _most(runs: Sequence[Run]) -> tuple[int, Run]:
    """How many ran at once at most, and the one with which they were that many."""
    steps = [(run.began, 1, run) for run in runs]
    steps += [(run.ended or math.inf, -1, run) for run in runs]
    now, most, found = 0, 0, runs[0]
    for _, step, run in sorted(steps, key=lambda one: one[:2]):
        now += step
        if now > most:
            most, found = now, run
    return most, found


def _workers(evidence: Evidence, job: str) -> dict[int, str]:
    events = evidence.events.get(job, ())
    return {e.fence: e.worker or "" for e in events if e.reason == CLAIMED}


def _lost_leases(evidence: Evidence) -> dict[str, float]:
    """The first sign that a worker has lost its lease: it is rescued from, or its process takes
    work by another name.
    """
    lost: dict[str, float] = {}
    names: dict[int, dict[str, float]] = defaultdict(dict)
    for job, events in evidence.events.items():
        runs = evidence.ledger.of(job)
        for event in events:
            worker = event.worker or ""
            if event.reason == RESCUED:
                lost[worker] = min(event.time, lost.get(worker, math.inf))
            elif event.reason == CLAIMED and event.fence in runs:
                mine = names[runs[event.fence].pid]
                mine[worker] = min(event.time, mine.get(worker, math.inf))
    for mine in names.values():
        ordered = sorted(mine, key=lambda worker: mine[worker])
        for worker, successor in pairwise(ordered):
            lost[worker] = min(mine[successor], lost.get(worker, math.inf))
    return lost
