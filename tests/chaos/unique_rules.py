"""Unique keys: at most one live job holds one, and who came meanwhile was told so.

When a job is stored and when it ends is not known to the moment: the clock is read before a
statement waits for the key, and before it is committed. What is sure is that a job lives from when
its submitter was told, or somebody has touched it, until its end was written. Those spans of two
jobs with one key never meet. And that nobody finds a job alive when somebody has heard of its end.

A submission whose policy is to replace leaves its own labels on the job of another: so the `ref` of
such a row says whose content it has, and no longer who made it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.evidence import Event, Evidence, Row
from tests.chaos.history import FAIL, HELD, OK, UNKNOWN
from tests.chaos.job_rules import EPSILON_SECONDS, SCHEDULED, TERMINAL, UPDATED
from tests.chaos.verdict import Violation, Violations

Op = Mapping[str, Any]
Key = tuple[str, str]
#: How much later than it is dated an end may be seen: its shard may have stood still in between.
UNSEEN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Life:
    """A job with a unique key, and between when it was surely live."""

    row: Row
    events: Sequence[Event]
    since: float
    until: float
    heard: float
    """When somebody first heard of its end."""

    @property
    def changes(self) -> list[float]:
        """When it took the content of another submission."""
        return [event.time for event in self.events if event.reason == UPDATED]

    def is_met_by(self, op: Op) -> bool:
        """Whether somebody may have found it live during a call."""
        begin, end = _span(op)
        is_over = self.until < begin - UNSEEN_SECONDS or self.heard < begin - EPSILON_SECONDS
        return self.row.created <= end + EPSILON_SECONDS and not is_over

    def waited_for_all_of(self, op: Op) -> bool:
        """Whether nobody but submitters had touched it when a call was over."""
        end = _span(op)[1] + EPSILON_SECONDS
        return all(event.time > end for event in self.events if event.state != SCHEDULED)


@dataclass(slots=True)
class _Keyed:
    """All that is known of one key."""

    name: str
    lives: list[_Life]
    ops: list[Op]
    refused: list[Op]
    """Of `ops` and of redrives."""

    def life(self, job: str) -> _Life | None:
        return next((life for life in self.lives if life.row.id == job), None)

    def of(self, ref: str) -> list[Op]:
        return [op for op in self.ops if op["ref"] == ref]


def check_unique(evidence: Evidence) -> Violations:
    """I14: one live job per key; what was said of it to those who came; and its content."""
    for keyed in _keys(evidence):
        yield from _one_at_a_time(keyed)
        for op in keyed.ops:
            if op["outcome"] == OK:
                yield from _answered(keyed, op)
        for op in keyed.refused:
            yield from _refused(keyed, op)
        yield from _stored(keyed)
        for life in keyed.lives:
            yield from _content(keyed, life)
    yield from _left(evidence)


def _keys(evidence: Evidence) -> Iterator[_Keyed]:
    ops: dict[Key, list[Op]] = defaultdict(list)
    refused: dict[Key, list[Op]] = defaultdict(list)
    rows: dict[Key, list[Row]] = defaultdict(list)
    keys = {row.id: (row.namespace, row.unique) for row in evidence.rows if row.unique}
    for op in evidence.history:
        if "unique" in op:
            ops[op["namespace"], op["unique"]].append(op)
        if op.get("reason") == HELD:
            refused[_key_of(op, keys)].append(op)
    for row in evidence.rows:
        if row.unique is not None:
            rows[row.namespace, row.unique].append(row)
    heard = _heard_ends(evidence)
    for key in ops.keys() | rows.keys() | refused.keys():
        told = _told_times(ops[key])
        lives = [_life(row, evidence.events.get(row.id, []), told, heard) for row in rows[key]]
        yield _Keyed("/".join(key), lives, ops[key], refused[key])


def _heard_ends(evidence: Evidence) -> dict[str, float]:
    """When watchers were first told that a job had ended."""
    heard: dict[str, float] = {}
    for line in evidence.watches:
        for job, _, state in line.get("told", ()):
            if state in TERMINAL:
                heard[job] = min(line["at"], heard.get(job, math.inf))
    return heard


def _key_of(op: Op, keys: Mapping[str, Key]) -> Key:
    """A redrive names the job that it is about."""
    if "unique" in op:
        return op["namespace"], op["unique"]
    return keys.get(op.get("job", ""), (op["namespace"], ""))


def _told_times(ops: Sequence[Op]) -> dict[str, float]:
    """When somebody first knew of a job."""
    told: dict[str, float] = {}
    for op in ops:
        if op["outcome"] == OK:
            told[op["job"]] = min(_span(op)[1], told.get(op["job"], math.inf))
    return told


def _life(
    row: Row, events: Sequence[Event], told: Mapping[str, float], heard: Mapping[str, float]
) -> _Life:
    touched = events[1].time if len(events) > 1 else math.inf
    is_over = bool(events) and events[-1].state in TERMINAL
    until = events[-1].time if is_over else math.inf
    since = min(touched, told.get(row.id, math.inf))
    return _Life(row, events, since, until, heard.get(row.id, math.inf))


def _span(op: Op) -> tuple[float, float]:
    """From when to when something may have come of a call."""
    end = math.inf if op["outcome"] == UNKNOWN else op.get("end", math.inf)
    return op.get("begin", 0.0), end


def _covers(op: Op, time: float) -> bool:
    begin, end = _span(op)
    return begin - EPSILON_SECONDS <= time <= end + EPSILON_SECONDS


# --- who lives


def _one_at_a_time(keyed: _Keyed) -> Violations:
    known = [life for life in keyed.lives if life.since < math.inf]
    last: _Life | None = None
    for life in sorted(known, key=lambda life: life.since):
        # Told of late, it may have ended before: then nothing is sure of it.
        if life.since >= life.until:
            continue
        if last is not None and life.since < last.until - EPSILON_SECONDS:
            beside = min(last.until, life.until) - life.since
            text = f"it held {keyed.name} beside {last.row.id} for {beside:.3f} s"
            yield Violation("I14", "twins", text, life.row.id)
        if last is None or life.until > last.until:
            last = life


def _left(evidence: Evidence) -> Violations:
    live = {row.id for row in evidence.rows if row.state not in TERMINAL}
    for line in evidence.held:
        if line["job"] not in live:
            text = f"it has ended or is gone, and holds {line['namespace']}/{line['key']}"
            yield Violation("I27", "other", text, line["job"])


# --- what was said


def _answered(keyed: _Keyed, op: Op) -> Violations:
    life = keyed.life(op["job"])
    if life is None:
        text = f"{op['ref']} was told that it holds {keyed.name}; it has another key, or no row"
        yield Violation("I14", "lost", text, op["job"])
    elif not op["existing"]:
        if not _covers(op, life.row.created):
            yield Violation("I14", "other", f"{op['ref']} made it at another time", life.row.id)
    elif op.get("key") and life.row.key == op["key"]:
        pass  # its own, from an earlier call
    elif op["policy"] == "refuse":
        text = f"{op['ref']} was to be refused beside it, and was told of it as its own"
        yield Violation("I14", "other", text, life.row.id)
    elif not life.is_met_by(op):
        text = f"{op['ref']} was not stored, since this one holds {keyed.name}; it had ended"
        yield Violation("I14", "lost", text, life.row.id)
    elif op["policy"] == "replace":
        yield from _replaced(keyed, op, life)


def _replaced(keyed: _Keyed, op: Op, life: _Life) -> Violations:
    """Who replaced has the last word, unless another one came after it or at the same time."""
    is_sure = op.get("told_ref") == op["ref"] or life.waited_for_all_of(op)
    if is_sure and not any(_covers(op, time) for time in life.changes):
        text = f"{op['ref']} was to replace it, and nothing was changed"
        yield Violation("I14", "lost", text, life.row.id)
    later = {
        other["ref"]
        for other in keyed.ops
        if other["policy"] == "replace" and _span(other)[1] >= _span(op)[0]
    }
    if op.get("told_ref") == op["ref"] and life.row.ref not in later:
        text = f"{op['ref']} has replaced it, and it has the content of {life.row.ref}"
        yield Violation("I14", "lost", text, life.row.id)


def _refused(keyed: _Keyed, op: Op) -> Violations:
    life = keyed.life(op["holder"])
    if op.get("policy", "refuse") != "refuse":
        text = f"{op['ref']} was refused, which it had not asked for"
        yield Violation("I14", "lost", text, op["holder"])
    if life is None:
        text = f"{op['ref']} was refused since it holds {keyed.name}; it has another key, or no row"
        yield Violation("I14", "lost", text, op["holder"])
    elif not life.is_met_by(op):
        text = f"{op['ref']} was refused since it holds {keyed.name}; it had ended"
        yield Violation("I14", "lost", text, op["holder"])


# --- what is stored


def _stored(keyed: _Keyed) -> Violations:
    """No more than were submitted, and none that was refused or left out."""
    firsts = [life for life in keyed.lives if life.row.origin is None]
    made = {op["job"] for op in keyed.ops if op["outcome"] == OK and not op["existing"]}
    unknown = {op["ref"] for op in keyed.ops if op["outcome"] == UNKNOWN}
    if len(firsts) > len(made) + len(unknown):
        text = f"{len(firsts)} jobs have held {keyed.name}, of {len(made)} that were stored and "
        text += f"{len(unknown)} unknown"
        yield Violation("I14", "twins", text, firsts[-1].row.id)
    rows: dict[str, list[Row]] = defaultdict(list)
    for life in firsts:
        rows[life.row.ref].append(life.row)
    for ref, same in rows.items():
        if len(same) > 1:
            text = f"{ref} is there {len(same)} times: {[row.id for row in same]}"
            yield Violation("I14", "twins", text, same[0].id)


def _content(keyed: _Keyed, life: _Life) -> Violations:
    """What it has is what somebody submitted: who made it, or who replaced that."""
    row, ops = life.row, keyed.of(life.row.ref)
    if not ops:
        yield Violation("I1", "twins", f"nobody submitted {row.ref} under {keyed.name}", row.id)
        return
    if not life.changes:
        if row.origin is None:
            yield from _made(row, ops)
        return
    if not any(_may_have_replaced(op, row.id) for op in ops):
        text = f"it has the content of {row.ref}, which did not replace it"
        yield Violation("I14", "twins", text, row.id)
    if row.first_due < ops[0].get("begin", 0.0) + ops[0].get("delay", 0.0) - EPSILON_SECONDS:
        yield Violation("I10", "other", f"it is due before {row.ref} asked for", row.id)
    replacing = [op for op in keyed.ops if op["policy"] == "replace" and op["outcome"] != FAIL]
    for time in life.changes:
        if not any(_covers(op, time) for op in replacing):
            yield Violation("I14", "other", "it was replaced when nobody asked for it", row.id)


def _made(row: Row, ops: Sequence[Op]) -> Violations:
    asked = (ops[0].get("type", row.type), ops[0].get("key") or None)
    if (row.type, row.key) != asked:
        text = f"{row.ref} was submitted as {asked}, and is stored as {(row.type, row.key)}"
        yield Violation("I2", "other", text, row.id)
    if all(op["outcome"] == FAIL for op in ops):
        text = f"{row.ref} was refused ({ops[-1].get('error')}), and is stored"
        yield Violation("I1", "twins", text, row.id)
    elif not any(op["outcome"] == UNKNOWN or op.get("job") == row.id for op in ops):
        text = f"{row.ref} was told that another one holds its key, and is stored"
        yield Violation("I14", "twins", text, row.id)


def _may_have_replaced(op: Op, job: str) -> bool:
    if op["policy"] != "replace":
        return False
    return op["outcome"] == UNKNOWN or bool(op.get("existing") and op["job"] == job)


def unproven(evidence: Evidence) -> Iterator[str]:
    """Keys that nobody had to share, and policies that were never asked."""
    if not any("unique" in op for op in evidence.history):
        return
    keys = list(_keys(evidence))
    ops = [op for keyed in keys for op in keyed.ops if op["outcome"] == OK and op["existing"]]
    if not any(op["policy"] == "keep" and op.get("told_ref") != op["ref"] for op in ops):
        yield "nobody was told of another job that holds its unique key"
    if not any(life.changes for keyed in keys for life in keyed.lives):
        yield "no job was replaced under its unique key"
    if not any("unique" in op for keyed in keys for op in keyed.refused):
        yield "nobody was refused for a unique key"
    if all(len(keyed.lives) < 2 for keyed in keys):
        yield "no unique key was ever held again"
