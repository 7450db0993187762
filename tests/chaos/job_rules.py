"""What must hold for each job by itself: its events, its attempts, its one result.

The table of steps is written here a second time, by hand and as numbers, on purpose: a checker that
shared the service's own table would share its mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.evidence import Event, Evidence, Row
from tests.chaos.ledger import DONE, FAIL, Run
from tests.chaos.verdict import Violation, Violations

NEW, SCHEDULED, DISPATCHED, RUNNING = 0, 1, 2, 3
SUCCEEDED, FAILED, CANCELLED, EXPIRED, BLOCKED = 4, 5, 6, 7, 8
TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELLED, EXPIRED})
CREATED, CLAIMED, STARTED, SUCCESS, RETRY, FAILURE, HANDED_BACK, SWEPT, RESCUED = range(1, 10)
CANCEL, EXPIRY, SNOOZED, UNBLOCKED, PARENT_FAILED, UPDATED, LATE_COMMIT, REDRIVEN = range(10, 18)

STEPS: Mapping[tuple[int, int], frozenset[int]] = {
    (NEW, SCHEDULED): frozenset({CREATED, REDRIVEN}),
    (NEW, BLOCKED): frozenset({CREATED}),
    (BLOCKED, SCHEDULED): frozenset({UNBLOCKED}),
    (BLOCKED, FAILED): frozenset({PARENT_FAILED}),
    (BLOCKED, CANCELLED): frozenset({PARENT_FAILED, CANCEL}),
    (BLOCKED, EXPIRED): frozenset({EXPIRY}),
    (SCHEDULED, SCHEDULED): frozenset({UPDATED}),
    (SCHEDULED, DISPATCHED): frozenset({CLAIMED}),
    (SCHEDULED, SUCCEEDED): frozenset({LATE_COMMIT}),
    (SCHEDULED, CANCELLED): frozenset({CANCEL}),
    (SCHEDULED, EXPIRED): frozenset({EXPIRY}),
    (DISPATCHED, RUNNING): frozenset({STARTED}),
    (DISPATCHED, SCHEDULED): frozenset({HANDED_BACK, SWEPT, RESCUED, SNOOZED}),
    (DISPATCHED, FAILED): frozenset({RESCUED}),
    (DISPATCHED, CANCELLED): frozenset({CANCEL}),
    (RUNNING, SUCCEEDED): frozenset({SUCCESS}),
    (RUNNING, SCHEDULED): frozenset({RETRY, HANDED_BACK, RESCUED, SNOOZED}),
    (RUNNING, FAILED): frozenset({FAILURE, RESCUED}),
    (RUNNING, CANCELLED): frozenset({CANCEL}),
}
#: Losses of workers that cost a job nothing.
LOSS_BUDGET = 3
#: What a schedule of the load asks for, which no submission says.
TICK: Mapping[str, int] = {"attempts": 1, "fails": 0}
#: Clocks of one machine, read by different processes.
EPSILON_SECONDS = 0.1


def check_events(evidence: Evidence) -> Violations:
    """I3, I4, I5, I15, I22: one legal, gapless line of events that ends once, as the row says."""
    for row in evidence.rows:
        events = evidence.events.get(row.id, [])
        yield from _line(row, events)
        yield from _ends(row, events)
        yield from _fences(row, events)
    known = {row.id for row in evidence.rows}
    for job in evidence.events.keys() - known:
        yield Violation("I4", "other", "events of a job that has no row", job)


def _line(row: Row, events: Sequence[Event]) -> Violations:
    if [event.version for event in events] != list(range(1, len(events) + 1)):
        text = f"versions are {[event.version for event in events]}"
        yield Violation("I4", "gaps", text, row.id)
    before = NEW
    for event in events:
        if event.reason not in STEPS.get((before, event.state), ()):
            text = f"step {before} -> {event.state} for reason {event.reason}"
            yield Violation("I4", "other", f"{text} at version {event.version}", row.id)
        before = event.state
    last = (events[-1].state, events[-1].version) if events else None
    if last != (row.state, row.version):
        text = f"the row says {(row.state, row.version)}, its events {last}"
        yield Violation("I4", "gaps", text, row.id)


def _ends(row: Row, events: Sequence[Event]) -> Violations:
    ends = [event for event in events if event.state in TERMINAL]
    if len(ends) > 1:
        yield Violation("I3", "double", f"it ended {len(ends)} times", row.id)
    elif ends and events[-1] is not ends[0]:
        yield Violation("I3", "double", "events follow its end", row.id)
    if row.state not in TERMINAL:
        yield Violation("I22", "stuck", f"still in state {row.state}", row.id)


def _fences(row: Row, events: Sequence[Event]) -> Violations:
    """A claim adds one; whatever follows carries the number of the last claim."""
    current, started = 0, set()
    for event in events:
        if event.reason == CLAIMED:
            current += 1
        if event.fence != current:
            text = f"fence {event.fence} at version {event.version}, after {current} claims"
            counts_as = "double" if event.state == SUCCEEDED else "other"
            yield Violation("I5", counts_as, text, row.id)
        if event.reason == STARTED:
            if event.fence in started:
                yield Violation("I15", "other", f"dispatch {event.fence} started twice", row.id)
            started.add(event.fence)
    if row.fence != current:
        text = f"the row's fence is {row.fence} after {current} claims"
        yield Violation("I5", "other", text, row.id)


def check_effects(evidence: Evidence) -> Violations:
    """I6-I9, I15: the recorded result is what one attempt did, and no other came after it."""
    for row in evidence.rows:
        events = evidence.events.get(row.id, [])
        runs = evidence.ledger.of(row.id)
        yield from _dispatched(row, runs, _claims(events))
        yield from _punctual(row, runs, events)
        if row.state == SUCCEEDED and events:
            yield from _result(evidence, row, events[-1].fence, runs)
    known = {row.id for row in evidence.rows}
    for job in evidence.ledger.runs.keys() - known:
        yield Violation("I1", "lost", "a handler ran for a job that has no row", job)


def _claims(events: Sequence[Event]) -> dict[int, Event]:
    return {event.fence: event for event in events if event.reason == CLAIMED}


def _dispatched(row: Row, runs: Mapping[int, Run], claims: Mapping[int, Event]) -> Violations:
    for fence, run in runs.items():
        claim = claims.get(fence)
        if fence > row.fence or claim is None:
            text = f"dispatch {fence} ran, the row knows {row.fence}"
            yield Violation("I15", "other", text, row.id)
        elif run.began < claim.time - EPSILON_SECONDS:
            text = f"dispatch {fence} began {claim.time - run.began:.3f} s before its claim"
            yield Violation("I15", "other", text, row.id)
        elif run.attempt != claim.attempt:
            text = f"dispatch {fence} ran as attempt {run.attempt}, counted as {claim.attempt}"
            yield Violation("I12", "other", text, row.id)
        if run.starts > 1:
            text = f"dispatch {fence} was started {run.starts} times"
            yield Violation("I15", "double", text, row.id)


def _punctual(row: Row, runs: Mapping[int, Run], events: Sequence[Event]) -> Violations:
    """By the time that was said last: what was handed out before that knows an earlier one."""
    claims = _claims(events)
    moved = max((event.time for event in events if event.reason == UPDATED), default=0.0)
    for fence, run in runs.items():
        is_older = fence in claims and claims[fence].time < moved
        if run.began < row.first_due - EPSILON_SECONDS and not is_older:
            early = row.first_due - run.began
            yield Violation("I10", "other", f"it began {early:.3f} s before its time", row.id)


def _result(evidence: Evidence, row: Row, fence: int, runs: Mapping[int, Run]) -> Violations:
    run = runs.get(fence)
    if run is None or run.outcome != DONE:
        text = f"SUCCEEDED by dispatch {fence}, which did not end well in the ledger"
        yield Violation("I8", "double", text, row.id)
    elif run.is_zombie:
        yield Violation("I7", "double", f"dispatch {fence} was a zombie, and committed", row.id)
    accepted = evidence.ledger.accepted.get(row.id)
    if accepted != fence and run is not None and not run.is_zombie:
        text = f"the fenced effect is of dispatch {accepted}, the result of {fence}"
        yield Violation("I6", "double", text, row.id)
    yield from _output(evidence, row, fence)


def _output(evidence: Evidence, row: Row, fence: int) -> Violations:
    said = row.said()
    if row.output_ref is not None:
        key = row.output_ref["key"]
        said = evidence.objects.get(key)
        if said is None:
            yield Violation("I8", "lost", f"its output {key} does not exist", row.id)
            return
        if f"/{row.id}/{fence}/" not in key:
            yield Violation("I8", "double", f"its output {key} is not of its attempt", row.id)
        if said.get("torn") or row.output_ref["sha256"] != said.get("sha256"):
            yield Violation("I8", "lost", f"its output {key} has other bytes", row.id)
            return
    if said is None or (said.get("job"), said.get("fence")) != (row.id, fence):
        yield Violation("I6", "double", f"its output is not that of dispatch {fence}", row.id)


def check_inputs(evidence: Evidence) -> Violations:
    """I26: what a row refers to exists, among the inputs and as large as it was."""
    for row in evidence.rows:
        if row.input_ref is None:
            continue
        found = evidence.objects.get(row.input_ref["key"])
        if found is None or found.get("role") != "input":
            text = f"its input {row.input_ref['key']} does not exist"
            yield Violation("I26", "lost", text, row.id)
        elif found["size"] != row.input_ref["size"]:
            text = f"its input {row.input_ref['key']} has {found['size']} bytes"
            yield Violation("I26", "lost", text, row.id)


def check_given(evidence: Evidence) -> Violations:
    """I26, I8: whatever ran was given what its job was submitted with, and nobody else's input."""
    orders = {op["ref"]: op for op in reversed(evidence.history) if op["op"] == "enqueue"}
    made = {op["name"]: op for op in evidence.history if op["op"] == "schedule.create"}
    names = {schedule["id"]: schedule["name"] for schedule in evidence.schedules}
    for row in evidence.rows:
        if row.schedule is not None:
            order = made.get(names.get(row.schedule, ""), {})
        else:
            order = orders.get(row.ref, {})
        for fence, run in evidence.ledger.of(row.id).items():
            if run.input != order.get("input", run.input):
                text = f"dispatch {fence} was given another input than its job was submitted with"
                yield Violation("I8", "double", text, row.id)


def check_times(evidence: Evidence) -> Violations:
    """I10: what was to begin later is due later, and what may expire has had its time."""
    firsts: dict[str, Mapping[str, Any]] = {}
    for op in evidence.history:
        if op["op"] == "enqueue":
            firsts.setdefault(op["ref"], op)
    for row in evidence.rows:
        order = firsts.get(row.ref)
        # What repeats a job is due at once, however soon that was cancelled.
        if order is None or row.schedule is not None or row.origin is not None:
            continue
        asked = order.get("begin", 0.0) + order.get("delay", 0.0)
        events = evidence.events.get(row.id, [])
        is_moved = any(event.reason == UPDATED for event in events)  # as `change_rules` look at
        if row.first_due < asked - EPSILON_SECONDS and not is_moved:
            text = f"it is due {asked - row.first_due:.3f} s before the time that was asked for"
            yield Violation("I10", "other", text, row.id)
        ended = events[-1:]
        until = order.get("begin", 0.0) + order.get("expire_after", 0.0)
        if row.state == EXPIRED and ended and ended[0].time < until - EPSILON_SECONDS:
            text = f"it expired {until - ended[0].time:.3f} s before its time"
            yield Violation("I10", "lost", text, row.id)


def check_attempts(evidence: Evidence) -> Violations:
    """I12: a job fails only when its handler did, as often as it may, or workers kept dying."""
    orders = {op["ref"]: op for op in evidence.history if op["op"] == "enqueue"}
    for row in evidence.rows:
        order = orders.get(row.ref)
        events = evidence.events.get(row.id, [])
        yield from _retries(evidence, row, events)
        if row.schedule is not None:
            order = TICK
        if order is None or not events:
            continue
        limit = order["attempts"]
        if row.state == FAILED and events[-1].reason != PARENT_FAILED:
            yield from _failed(evidence, row, events, limit)
        elif row.state == SUCCEEDED and order["fails"] >= limit:
            yield Violation("I12", "double", "it succeeded, though its handler cannot", row.id)
        if row.attempt > limit:
            text = f"{row.attempt} attempts of {limit}"
            yield Violation("I12", "other", text, row.id)


def _retries(evidence: Evidence, row: Row, events: Sequence[Event]) -> Violations:
    for event in events:
        if event.reason in (RETRY, FAILURE):
            run = evidence.ledger.of(row.id).get(event.fence)
            if run is None or run.outcome != FAIL:
                text = f"dispatch {event.fence} is said to have failed; the ledger says otherwise"
                yield Violation("I12", "other", text, row.id)


def _failed(evidence: Evidence, row: Row, events: Sequence[Event], limit: int) -> Violations:
    losses = sum(event.reason == RESCUED for event in events)
    if events[-1].reason == RESCUED and losses <= LOSS_BUDGET:
        yield Violation("I12", "lost", f"FAILED after {losses} lost workers", row.id)
    if row.attempt < limit:
        text = f"FAILED after {row.attempt} of {limit} attempts"
        yield Violation("I12", "lost", text, row.id)


def check_final(evidence: Evidence) -> Violations:
    """I3 over time: what had ended in an earlier dump is unchanged."""
    rows = {row.id: row for row in evidence.rows}
    for job, before in evidence.earlier.items():
        after = rows.get(job)
        if after is None:
            yield Violation("I3", "lost", "it had ended, and is gone", job)
        elif after != before:
            text = f"it had ended as {(before.state, before.version, before.fence)}, now it is "
            text += f"{(after.state, after.version, after.fence)}"
            yield Violation("I3", "double", text, job)
