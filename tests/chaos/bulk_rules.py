"""Redrives by filter: all that match are started over, each once, and nothing else is.

A call finds those that ended without success and were not started over before, and starts them over
a moment later. So two calls at the same time, of which one may be a call that nobody waits for any
more, can start one job over twice; a call that came afterwards leaves it alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.evidence import Evidence, Row
from tests.chaos.history import FAIL, OK, UNKNOWN
from tests.chaos.job_rules import CANCELLED, EPSILON_SECONDS, EXPIRED, FAILED
from tests.chaos.verdict import Violation, Violations

Op = Mapping[str, Any]
MANY, COUNT = "retry.many", "retry.count"
UNSUCCESSFUL = frozenset({FAILED, CANCELLED, EXPIRED})


class _Lot:
    """The jobs that one filter names, with those that repeat them."""

    def __init__(self, evidence: Evidence, rows: Sequence[Row], calls: Sequence[Op]) -> None:
        self._evidence = evidence
        self.rows = rows
        self.calls = [op for op in calls if op["op"] == MANY and op["outcome"] != FAIL]
        self.counts = [op for op in calls if op["op"] == COUNT]
        self.repeats: dict[str, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.created):
            if row.origin is not None:
                self.repeats[row.origin].append(row)

    def covering(self, row: Row) -> list[Op]:
        """The calls that may have made it."""
        return [op for op in self.calls if _covers(op, row.created)]

    def surely_since(self, row: Row) -> float:
        """From when on everybody could see it."""
        events = self._evidence.events.get(row.id, [])
        return events[1].time if len(events) > 1 else math.inf

    def ended(self, row: Row) -> float:
        """When it ended without success, if it did."""
        last = self._evidence.events.get(row.id, [])[-1:]
        return last[0].time if last and row.state in UNSUCCESSFUL else math.inf

    def known_to_end(self) -> dict[str, float]:
        """When somebody first read of a job how it had ended: from then on all must know."""
        last = {row.id: row.version for row in self.rows if row.state in UNSUCCESSFUL}
        known: dict[str, float] = {}
        for op in self._evidence.history:
            job = op.get("job", "")
            if op["op"] == "get" and op["outcome"] == OK and op["version"] == last.get(job):
                known.setdefault(job, op.get("end", math.inf))
        return known


def check_bulk(evidence: Evidence) -> Violations:
    """I32: what calls by filter started over, and what they said of it."""
    for lot in lots(evidence).values():
        for row in lot.rows:
            yield from _asked_for(lot, row)
        known = lot.known_to_end()
        for op in lot.calls:
            if op["outcome"] == OK:
                yield from _counted(lot, op)
                yield from _complete(lot, op, known)
        for op in lot.counts:
            if op["outcome"] == OK:
                yield from _matched(lot, op, known)


def lots(evidence: Evidence) -> dict[str, _Lot]:
    """By the label that the filters name."""
    calls: dict[str, list[Op]] = defaultdict(list)
    for op in evidence.history:
        if op["op"] in (MANY, COUNT):
            calls[op["lot"]].append(op)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.rows:
        if (name := row.labels.get("lot", "")) in calls:
            rows[name].append(row)
    return {name: _Lot(evidence, rows[name], ops) for name, ops in calls.items()}


def _span(op: Op) -> tuple[float, float]:
    begin, end = op.get("begin", 0.0), op.get("end", math.inf)
    return begin, math.inf if op["outcome"] == UNKNOWN else end


def _covers(op: Op, time: float) -> bool:
    begin, end = _span(op)
    return begin - EPSILON_SECONDS <= time <= end + EPSILON_SECONDS


def _asked_for(lot: _Lot, row: Row) -> Violations:
    repeats = lot.repeats.get(row.id, [])
    for number, repeat in enumerate(repeats):
        calls = lot.covering(repeat)
        if not calls:
            text = f"it was started over as {repeat.id}, and nobody asked for it then"
            yield Violation("I32", "twins", text, row.id)
        elif number and not _came_before(lot, calls, repeats[0]):
            text = f"it was started over as {repeats[0].id}, and once more as {repeat.id}"
            yield Violation("I32", "twins", text, row.id)


def _came_before(lot: _Lot, calls: Sequence[Op], repeat: Row) -> bool:
    """Whether one of these calls may have looked when nothing repeated the job yet."""
    since = lot.surely_since(repeat) + EPSILON_SECONDS
    return any(_span(op)[0] <= since for op in calls)


def _counted(lot: _Lot, op: Op) -> Violations:
    """It has made as many as it says. More, if a try of it was not heard of."""
    made = [row for rows in lot.repeats.values() for row in rows if _covers(op, row.created)]
    if len(made) < op["count"]:
        text = f"{op['count']} of {op['lot']} were started over, they said; there are {len(made)}"
        yield Violation("I32", "lost", text)


def _complete(lot: _Lot, op: Op, known: Mapping[str, float]) -> Violations:
    if op["partial"]:
        return
    begin, end = _span(op)
    for job, time in known.items():
        repeats = lot.repeats.get(job, [])
        if time <= begin and not any(row.created <= end + EPSILON_SECONDS for row in repeats):
            text = f"it had ended without success, and {op['lot']} was started over without it"
            yield Violation("I32", "lost", text, job)


def _matched(lot: _Lot, op: Op, known: Mapping[str, float]) -> Violations:
    """A count without a deed: those that match for all of the call, up to those that ever do."""
    begin, end = _span(op)
    if op["partial"]:
        return
    least, most = 0, 0
    for row in lot.rows:
        repeats = lot.repeats.get(row.id, [])
        is_alone = all(one.created > end + EPSILON_SECONDS for one in repeats)
        least += known.get(row.id, math.inf) <= begin and is_alone
        was_alone = all(lot.surely_since(one) > begin - EPSILON_SECONDS for one in repeats)
        most += lot.ended(row) <= end + EPSILON_SECONDS and was_alone
    if not least <= op["count"] <= most:
        text = f"{op['count']} of {op['lot']} match, they said; there are {least} to {most}"
        yield Violation("I32", "other", text)


def unproven(evidence: Evidence) -> Iterator[str]:
    """Filters that matched nothing, or that nobody used again."""
    known = lots(evidence)
    if not known:
        return
    whole = [[op for op in lot.calls if _is_whole(op)] for lot in known.values()]
    if not any(op["count"] for ops in whole for op in ops):
        yield "no redrive by filter made a job"
    if all(len(ops) < 2 for ops in whole):
        yield "nobody started a lot over twice"


def _is_whole(op: Op) -> bool:
    return bool(op["outcome"] == OK and not op["partial"])
