"""Limits: how many handlers of one key ran at once, by the effect ledger.

A place of a limit is held under the lease of its worker, from before a handler begins until after
it has ended. So what counts is what handlers did, not when rows say so. Whose worker lost its lease
has lost its place with it, and may go on for as long as it does not know: those do not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.chaos.evidence import Evidence
from tests.chaos.job_rules import CLAIMED, RESCUED
from tests.chaos.ledger import Run
from tests.chaos.verdict import Violation, Violations

#: What a lost lease may be older than the first sign of it, on a busy machine.
GRACE_SECONDS = 20.0
Key = tuple[str, str, str]


def check_limits(evidence: Evidence) -> Violations:
    """I14: of no key more at once than its limit."""
    limits = _limits(evidence)
    for key, runs in _held(evidence).items():
        most, run = _most(runs)
        if most > limits[key[0]]:
            text = f"with it {most} handlers of {'/'.join(key)} ran at once, of {limits[key[0]]}"
            yield Violation("I14", "other", text, run.job)


def unproven(evidence: Evidence) -> Iterator[str]:
    """A limit that nobody ever had to wait for."""
    for type_, limit in _limits(evidence).items():
        reached = (_most(runs)[0] for key, runs in _held(evidence).items() if key[0] == type_)
        if max(reached, default=0) < limit:
            yield f"the limit of {type_} was never reached"


def _limits(evidence: Evidence) -> dict[str, int]:
    return {op["type"]: op["per_key"] for op in evidence.history if op["op"] == "limit"}


def _held(evidence: Evidence) -> dict[Key, list[Run]]:
    """Attempts that have held a place from their beginning to their end, by what they share."""
    limits, lost = _limits(evidence), _lost_leases(evidence)
    keys = {op["ref"]: op["limit_key"] for op in evidence.history if "limit_key" in op}
    held: dict[Key, list[Run]] = defaultdict(list)
    for row in evidence.rows:
        if row.type not in limits or row.ref not in keys:
            continue
        workers = _workers(evidence, row.id)
        for fence, run in evidence.ledger.of(row.id).items():
            until = lost.get(workers.get(fence, ""), math.inf) - GRACE_SECONDS
            if run.ended is not None and run.ended < until:
                held[row.type, row.namespace, keys[row.ref]].append(run)
    return held


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
