"""What ties jobs to each other must hold: who waits for others begins when they have ended, or ends
as it asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.evidence import Event, Evidence, Row
from tests.chaos.job_rules import (
    BLOCKED,
    CANCELLED,
    EPSILON_SECONDS,
    FAILED,
    PARENT_FAILED,
    SCHEDULED,
    SUCCEEDED,
    TERMINAL,
)
from tests.chaos.verdict import Violation, Violations

#: How a job ends whose parent did not succeed; "run": not because of that.
ENDS: Mapping[str, int] = {"cancel": CANCELLED, "fail": FAILED}


@dataclass(frozen=True, slots=True)
class Parent:
    """What a job waits for: how and when that ended, if it did."""

    ref: str
    policy: str
    row: Row | None
    end: Event | None

    @property
    def is_in_the_way(self) -> bool:
        """It did not succeed, and its child must not run without that."""
        return self.policy != "run" and (self.end is None or self.end.state != SUCCEEDED)

    def had_ended(self, at: float) -> bool:
        return self.end is not None and self.end.time <= at + EPSILON_SECONDS


def check_dependencies(evidence: Evidence) -> Violations:
    """I31: no job is released before its parents ended, nor by any it must not run without."""
    for row, parents in _children(evidence):
        events = evidence.events.get(row.id, [])
        for parent in parents:
            if parent.row is None:
                text = f"it waits for {parent.ref}, which is in no shard"
                yield Violation("I31", "twins", text, row.id)
        yield from _released(row, events, parents)
        yield from _orphaned(row, events, parents)
    told = {row.id for row, _ in _children(evidence)}
    for row in evidence.rows:
        events = evidence.events.get(row.id, [])
        waited = any(e.state == BLOCKED or e.reason == PARENT_FAILED for e in events)
        if waited and row.id not in told:
            yield Violation("I31", "lost", "it waited for others, and nobody said so", row.id)


def _children(evidence: Evidence) -> Iterator[tuple[Row, list[Parent]]]:
    """Jobs that wait for others, with these. What repeats one of them waits for nobody."""
    orders = {op["ref"]: op for op in evidence.history if op["op"] == "enqueue"}
    rows = {row.ref: row for row in evidence.rows if row.schedule is None and row.origin is None}
    for ref, row in rows.items():
        if waits := orders.get(ref, {}).get("parents"):
            yield row, [_parent(evidence, rows, wait) for wait in waits]


def _parent(evidence: Evidence, rows: Mapping[str, Row], wait: Sequence[Any]) -> Parent:
    ref, policy = wait
    row = rows.get(ref)
    last = evidence.events.get(row.id, [])[-1:] if row is not None else []
    end = last[0] if last and last[0].state in TERMINAL else None
    return Parent(ref, policy, row, end)


def _released(row: Row, events: Sequence[Event], parents: Sequence[Parent]) -> Violations:
    free = next((event for event in events if event.state == SCHEDULED), None)
    if free is None:
        return
    for parent in parents:
        if not parent.had_ended(free.time):
            text = f"it was released before {parent.ref} had ended"
            yield Violation("I31", "other", text, row.id)
        if parent.is_in_the_way:
            text = f"it was released, though {parent.ref} did not succeed"
            yield Violation("I31", "other", text, row.id)


def _orphaned(row: Row, events: Sequence[Event], parents: Sequence[Parent]) -> Violations:
    """Who ended because of a parent did so as it had asked for, and after that one's end."""
    for event in events:
        if event.reason != PARENT_FAILED:
            continue
        fits = [
            parent
            for parent in parents
            if parent.is_in_the_way
            and ENDS[parent.policy] == event.state
            and parent.had_ended(event.time)
        ]
        if not fits:
            text = f"it ended in state {event.state} because of a parent, and none asks for that"
            yield Violation("I31", "lost", text, row.id)


def unproven(evidence: Evidence) -> Iterator[str]:
    """Ways to be released, or not, that no tree went."""
    children = list(_children(evidence))
    if not any("parents" in op for op in evidence.history):
        return
    lines = [(evidence.events.get(row.id, []), parents) for row, parents in children]
    if not any(events[:1] and events[0].state == BLOCKED for events, _ in lines):
        yield "no job ever waited for another"
    ends = {event.state for events, _ in lines for event in events if event.reason == PARENT_FAILED}
    for policy, state in ENDS.items():
        if state not in ends:
            yield f"no job ended by its policy towards a parent: {policy}"
    if not any(_runs_anyway(events, parents) for events, parents in lines):
        yield "no job ran though a parent had failed"


def _runs_anyway(events: Sequence[Event], parents: Sequence[Parent]) -> bool:
    failed = any(parent.end is not None and parent.end.state != SUCCEEDED for parent in parents)
    return failed and any(event.state == SCHEDULED for event in events)
