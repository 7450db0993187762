"""What must hold of the rows, the events, the ledger and what clients were told.

Written apart from the service's own table of transitions, as numbers, on purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from services.mesh.jobs.states import TERMINAL
from services.mesh.store.answers import CancelOutcome, CancelResult
from tests.simulation.network import EPOCH
from tests.simulation.rows import Row
from tests.simulation.shard import ModelShard

#: (from, to, cause) by their numbers.
STEPS = frozenset(
    {(0, 1, 1), (1, 2, 2), (1, 4, 16), (1, 6, 10), (1, 7, 11)}
    | {(2, 3, 3), (2, 1, 7), (2, 1, 8), (2, 1, 9), (2, 5, 9), (2, 6, 10)}
    | {(3, 4, 4), (3, 1, 5), (3, 1, 7), (3, 1, 9), (3, 5, 6), (3, 5, 9), (3, 6, 10)}
)
LOSS_BUDGET = 3


@dataclass(slots=True)
class Call:
    """One submission, and what its client was told."""

    job: dict[str, Any]
    begin: float
    end: float = 0.0
    outcome: str = "unknown"
    job_id: UUID | None = None


@dataclass(slots=True)
class History:
    """Everything clients did."""

    calls: list[Call] = field(default_factory=list)
    cancels: dict[UUID, CancelResult] = field(default_factory=dict)
    tried: set[UUID] = field(default_factory=set)
    zombies: int = 0


def judge(
    shards: Sequence[ModelShard], ledger: list[tuple[Any, ...]], history: History
) -> list[str]:
    """Everything that is wrong."""
    rows = [row for shard in shards for row in shard.rows.values()]
    runs: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for line in ledger:
        runs[line[1]].append(line)
    problems = list(_submissions(rows, history))
    for row in rows:
        problems += _events(row)
        problems += _effects(row, runs.get(str(row.new.id), []), history)
        problems += _cancel(row, history)
    return problems


def _submissions(rows: list[Row], history: History) -> Iterator[str]:
    stored: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        stored[row.new.labels["ref"]].append(row)
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in history.calls:
        calls[call.job["ref"]].append(call)
    for ref, made in calls.items():
        found = stored.get(ref, [])
        told = {call.job_id for call in made if call.outcome == "ok"}
        if len(found) > 1:
            yield f"I1 {ref} is stored {len(found)} times"
        if told - {row.new.id for row in found}:
            yield f"I1 {ref} was acknowledged and is not stored"
        if found and all(call.outcome == "fail" for call in made):
            yield f"I1 {ref} was refused, and is stored"


def _events(row: Row) -> Iterator[str]:
    job, before, ends = row.new.id, 0, 0
    for number, event in enumerate(row.events, 1):
        if event.version != number:
            yield f"I4 {job}: version {event.version} is number {number}"
        if (before, int(event.state), int(event.cause)) not in STEPS:
            yield f"I4 {job}: {before} to {int(event.state)} by {event.cause.name}"
        ends += event.state in TERMINAL
        before = int(event.state)
    if ends > 1 or before != row.state:
        yield f"I3 {job}: ended {ends} times, row {row.state.name}"
    claims = [event.fence for event in row.events if event.cause == 2]
    if claims != list(range(1, row.fence + 1)):
        yield f"I5 {job}: fences {claims}"
    if row.state not in TERMINAL:
        yield f"I22 {job}: {row.state.name} after healing (fence {row.fence}, {row.worker_id})"


@dataclass(slots=True)
class _Runs:
    """What the ledger says about one job."""

    starts: dict[int, float] = field(default_factory=dict)
    twice: set[int] = field(default_factory=set)
    accepted: int = 0
    """The last dispatch that did something, as a fenced resource would see it."""
    zombies: int = 0


def _played(lines: list[tuple[Any, ...]]) -> _Runs:
    runs = _Runs()
    for kind, _, fence, _, at, outcome in lines:
        if kind == "S":
            runs.twice |= {fence} & runs.starts.keys()
            runs.starts[fence] = at
        elif outcome == "done" and fence < max(runs.starts):
            runs.zombies += 1
        elif outcome == "done":
            runs.accepted = fence
    return runs


def _effects(row: Row, lines: list[tuple[Any, ...]], history: History) -> Iterator[str]:
    job, runs = row.new.id, _played(lines)
    history.zombies += runs.zombies
    for fence in runs.twice:
        yield f"I15 {job}: dispatch {fence} began twice"
    if any(fence > row.fence for fence in runs.starts):
        yield f"I15 {job}: a dispatch ran that the row never made: {sorted(runs.starts)}"
    if row.state == 4:
        yield from _result(row, runs)
    if row.state == 5 and row.events[-1].cause == 9 and row.losses <= LOSS_BUDGET:
        yield f"I12 {job}: failed after {row.losses} losses"
    yield from _early(row, runs.starts)


def _result(row: Row, runs: _Runs) -> Iterator[str]:
    job, won = row.new.id, row.events[-1].fence
    if f'"fence": {won}}}'.encode() not in (row.output.data or b""):
        yield f"I6 {job}: dispatch {won} won, the output is {row.output.data!r}"
    if runs.accepted < won:
        yield f"I8 {job}: dispatch {won} won, the ledger's last is {runs.accepted}"
    if any(fence > won for fence in runs.starts):
        yield f"I7 {job}: dispatch {won} won after {max(runs.starts)} had begun"


def _early(row: Row, starts: dict[int, float]) -> Iterator[str]:
    if starts:
        first = min(starts.values())
        due = (row.first_due_time - EPOCH).total_seconds()
        if first < due - timedelta(milliseconds=1).total_seconds():
            yield f"I10 {row.new.id}: began {due - first:.3f} s before its time"


def _cancel(row: Row, history: History) -> Iterator[str]:
    answer = history.cancels.get(row.new.id)
    if answer is not None:
        said = 6 if answer.outcome is CancelOutcome.CANCELLED else answer.state
        if said != row.state:
            yield f"I11 {row.new.id}: said {said}, ended {row.state.name}"
    elif row.state == 6 and row.new.id not in history.tried:
        yield f"I11 {row.new.id}: CANCELLED, and nobody asked"
