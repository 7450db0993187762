"""What callers and handlers change about jobs: starting over, moving, snoozing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos import bulk_rules
from tests.chaos.evidence import Event, Evidence, Row
from tests.chaos.history import OK, UNKNOWN
from tests.chaos.job_rules import (
    BLOCKED,
    CLAIMED,
    EPSILON_SECONDS,
    REDRIVEN,
    SCHEDULED,
    SNOOZED,
    SUCCEEDED,
    TERMINAL,
    UPDATED,
)
from tests.chaos.ledger import SNOOZE
from tests.chaos.verdict import Violation, Violations

Op = Mapping[str, Any]
FORBIDDEN = "FORBIDDEN_TRANSITION"


def _ops(evidence: Evidence, name: str) -> dict[str, list[Op]]:
    """Calls of one kind, by the job they are about."""
    found: dict[str, list[Op]] = defaultdict(list)
    for op in evidence.history:
        if op["op"] == name:
            found[op["job"]].append(op)
    return found


# --- redrives


def check_redrives(evidence: Evidence) -> Violations:
    """I32: a call that was answered made one job, or found one that lives; nobody else does."""
    rows = {row.id: row for row in evidence.rows}
    repeats: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.rows:
        first = evidence.events.get(row.id, [])[:1]
        if first and (first[0].reason == REDRIVEN) != (row.origin is not None):
            text = f"it repeats {row.origin}, and began for reason {first[0].reason}"
            yield Violation("I32", "other", text, row.id)
        if row.origin is not None:
            repeats[row.origin].append(row)
    calls, lots = _ops(evidence, "retry"), bulk_rules.lots(evidence)
    for origin in calls.keys() | repeats.keys():
        yield from _told(calls[origin], repeats[origin])
        if not any(row.labels.get("lot") in lots for row in repeats[origin]):
            yield from _counted(origin, calls[origin], repeats[origin])
        yield from _one_by_one(evidence, origin, repeats[origin])
        for row in repeats[origin]:
            yield from _alike(row, rows.get(origin), _is_replaced(evidence, row))


def _told(calls: Sequence[Op], repeats: Sequence[Row]) -> Violations:
    stored = {row.id for row in repeats}
    for op in calls:
        if op["outcome"] == OK and op["made"] not in stored:
            text = f"it repeats {op['job']}, they said, and is in no shard"
            yield Violation("I32", "lost", text, op["made"])
        elif op.get("reason") == FORBIDDEN:
            text = "it had ended without success, and could not be started over"
            yield Violation("I32", "lost", text, op["job"])


def _counted(origin: str, calls: Sequence[Op], repeats: Sequence[Row]) -> Violations:
    made = [op["made"] for op in calls if op["outcome"] == OK and not op["existing"]]
    unknown = sum(op["outcome"] == UNKNOWN for op in calls)
    if len(set(made)) != len(made):
        yield Violation("I32", "lost", f"two calls made the same job: {made}", origin)
    if len(repeats) > len(made) + unknown:
        text = f"it was started over {len(repeats)} times by {len(made)} calls, {unknown} unknown"
        yield Violation("I32", "twins", text, origin)


def _one_by_one(evidence: Evidence, origin: str, repeats: Sequence[Row]) -> Violations:
    """Each began when its origin and those before it had ended, and not with success."""
    before = origin
    for row in sorted(repeats, key=lambda row: row.created):
        last = evidence.events.get(before, [])[-1:]
        is_over = bool(last) and last[0].state in TERMINAL
        ended = last[0].time if is_over else math.inf
        if row.created < ended - EPSILON_SECONDS:
            text = f"it was started over as {row.id} before {before} had ended"
            yield Violation("I32", "twins", text, origin)
        if before == origin and last and last[0].state == SUCCEEDED:
            yield Violation("I32", "twins", f"it succeeded, and is repeated by {row.id}", origin)
        before = row.id


def _is_replaced(evidence: Evidence, row: Row) -> bool:
    """Whether it has taken the content of somebody who wanted its unique key."""
    events = evidence.events.get(row.id, [])
    return row.unique is not None and any(event.reason == UPDATED for event in events)


def _alike(row: Row, origin: Row | None, is_replaced: bool) -> Violations:
    if origin is None:
        yield Violation("I32", "lost", f"it repeats {row.origin}, which is gone", row.id)
        return
    kept = (row.namespace, row.type, row.unique), (origin.namespace, origin.type, origin.unique)
    if kept[0] != kept[1] or (row.labels != origin.labels and not is_replaced):
        yield Violation("I32", "other", "it is not what it repeats", row.id)


# --- updates


def check_updates(evidence: Evidence) -> Violations:
    """I33: what was acknowledged is in the row and among its events; what was refused is not."""
    calls = _ops(evidence, "update")
    for row in evidence.rows:
        if row.origin is None and row.unique is None:  # those are replaced: `unique_rules`
            yield from _updated(row, evidence.events.get(row.id, []), calls.get(row.id, []))


def _updated(row: Row, events: Sequence[Event], calls: Sequence[Op]) -> Violations:
    sure = [op for op in calls if op["outcome"] == OK]
    unknown = [op for op in calls if op["outcome"] == UNKNOWN]
    moves = [event for event in events if event.reason == UPDATED]
    if len(moves) < len(sure):
        text = f"{len(sure)} updates were acknowledged, {len(moves)} happened"
        yield Violation("I33", "lost", text, row.id)
    elif len(moves) > len(sure) + len(unknown):
        text = f"it was changed {len(moves)} times by {len(sure)} calls, {len(unknown)} unknown"
        yield Violation("I33", "double", text, row.id)
    # Nobody knows when an unknown one came, if it did.
    marks = {op["mark"]: op for op in [*sure[-1:], *unknown]}
    mark = row.labels.get("mark", "")
    if mark in marks and moves:
        yield from _as_asked(row, marks[mark], moves[-1])
    elif sure or mark:
        text = f"it is marked as {mark!r}; the last update said {list(marks)[:1]}"
        yield Violation("I33", "lost", text, row.id)
    for op in calls:
        if op.get("reason") == FORBIDDEN and not _had_begun(events, op["end"]):
            yield Violation("I33", "other", "it waited, and could not be changed", row.id)


def _as_asked(row: Row, op: Op, move: Event) -> Violations:
    earliest = op["at"] - EPSILON_SECONDS
    latest = max(op["at"], move.time) + EPSILON_SECONDS
    if row.priority != op["priority"] or not earliest <= row.first_due <= latest:
        asked = (op["priority"], op["at"])
        text = f"{asked} was acknowledged, the row says {(row.priority, row.first_due)}"
        yield Violation("I33", "lost", text, row.id)


def _had_begun(events: Sequence[Event], until: float) -> bool:
    waits = (SCHEDULED, BLOCKED)
    return any(e.state not in waits and e.time <= until + EPSILON_SECONDS for e in events)


# --- snoozing


def check_snoozes(evidence: Evidence) -> Violations:
    """I34: only a handler snoozes; it runs again after its pause, as the attempt it was."""
    pauses = {op["ref"]: op["pause"] for op in evidence.history if "pause" in op}
    for row in evidence.rows:
        events = evidence.events.get(row.id, [])
        for number, event in enumerate(events):
            if event.reason == SNOOZED:
                pause = pauses.get(row.ref, 0.0)
                yield from _snoozed(evidence, row, events, number, pause)


def _snoozed(
    evidence: Evidence, row: Row, events: Sequence[Event], number: int, pause: float
) -> Violations:
    fence = events[number].fence
    run = evidence.ledger.of(row.id).get(fence)
    if run is None or run.outcome != SNOOZE:
        text = f"dispatch {fence} is said to have snoozed; the ledger says otherwise"
        yield Violation("I34", "other", text, row.id)
        return
    later = [again for other, again in evidence.ledger.of(row.id).items() if other > fence]
    begins = min((again.began for again in later), default=math.inf)
    if run.ended is not None and begins < run.ended + pause - EPSILON_SECONDS:
        text = f"it began {begins - run.ended:.3f} s after it snoozed for {pause:.3f} s"
        yield Violation("I34", "other", text, row.id)
    before = [e.attempt for e in events[:number] if e.reason == CLAIMED]
    after = [e.attempt for e in events[number:] if e.reason == CLAIMED]
    if after and before and after[0] > before[-1]:
        text = f"dispatch {fence} snoozed, and was counted as an attempt"
        yield Violation("I34", "other", text, row.id)


def unproven(evidence: Evidence) -> Iterator[str]:
    """What was to happen, and never did."""
    reasons = {event.reason for events in evidence.events.values() for event in events}
    if any("pause" in op for op in evidence.history) and SNOOZED not in reasons:
        yield "no handler ever snoozed"
    redrives = [op for op in evidence.history if op["op"] == "retry" and op["outcome"] == OK]
    if redrives and all(op["existing"] for op in redrives):
        yield "no redrive made a job"
